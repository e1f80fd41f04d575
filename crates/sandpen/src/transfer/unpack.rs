//! A tar stream out of a sandbox, written below a directory of this machine.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};

use sandbox::{Error, Result};
use tar::{Archive, Entry, EntryType};

use super::host_tree::HostTree;
use super::links::Links;
use super::{Bounds, Copied, names};
use crate::output::reason;

/// All links of one copy, with their targets.
const MOST_LINK_BYTES: usize = 32 << 20;

/// Names in the stream begin with the directory's own, which `tree` stands for.
pub fn unpack(stream: impl Read, tree: &HostTree, bounds: Bounds, admitted: Links) -> Result<Copied> {
    let mut copied = Copied::default();
    let mut links = Waiting::default();
    let mut archive = Archive::new(stream);
    for entry in archive.entries().map_err(|cause| broken(&cause))? {
        let mut entry = entry.map_err(|cause| broken(&cause))?;
        let path = entry.path_bytes().into_owned();
        let names = names_below(&path)?;
        let (kind, size) = (entry.header().entry_type(), entry.size());
        bounds.check(&copied, size)?;
        match (kind, names.split_last()) {
            (EntryType::Directory, _) => {
                tree.directory(&names)?;
                copied.directories += 1;
            }
            (EntryType::Regular | EntryType::Continuous, Some((name, above))) => {
                write(&mut entry, tree, above, name)?;
                copied.files += 1;
                copied.bytes += size;
            }
            (EntryType::Symlink, Some(_)) => match entry.link_name_bytes() {
                Some(target) if admitted.admit(names.len(), &target) => {
                    links.add(path, target.into_owned())?;
                    copied.links += 1;
                }
                Some(_) | None => copied.skipped += 1,
            },
            (_, _) => copied.skipped += 1,
        }
    }
    links.make(tree)?;
    Ok(copied)
}

/// Links that are made when all else is there. As bytes, because there may be many and deep ones.
#[derive(Debug, Default)]
struct Waiting {
    links: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
}

impl Waiting {
    fn add(&mut self, path: Vec<u8>, target: Vec<u8>) -> Result<()> {
        self.bytes += path.len() + target.len();
        if self.bytes > MOST_LINK_BYTES {
            return Err(Error::limit_exceeded("there are too many links to copy at once")
                .with_hint("pack them into an archive in the sandbox, and copy that"));
        }
        self.links.push((path, target));
        Ok(())
    }

    fn make(self, tree: &HostTree) -> Result<()> {
        for (path, target) in self.links {
            if let Some((name, above)) = names_below(&path)?.split_last() {
                tree.link(above, name, &names::target(&target))?;
            }
        }
        Ok(())
    }
}

/// Files and links, by their paths without the first name.
#[derive(Debug, Default)]
pub struct Wanted {
    pub files: BTreeSet<Vec<u8>>,
    pub links: BTreeSet<Vec<u8>>,
}

/// What came of what was wanted.
#[derive(Debug, Default)]
pub struct Received {
    pub paths: BTreeSet<Vec<u8>>,
    pub bytes: u64,
}

/// Of what is in the stream that which is wanted, and of links among that those that lead to nothing outside. Tells what came.
pub fn unpack_some(stream: impl Read, tree: &HostTree, bounds: Bounds, wanted: &Wanted) -> Result<Received> {
    let (mut copied, mut paths) = (Copied::default(), BTreeSet::new());
    let mut links = Waiting::default();
    let mut archive = Archive::new(stream);
    for entry in archive.entries().map_err(|cause| broken(&cause))? {
        let mut entry = entry.map_err(|cause| broken(&cause))?;
        let whole = entry.path_bytes().into_owned();
        let names = names_below(&whole)?;
        let path = names.iter().map(|name| name.as_encoded_bytes()).collect::<Vec<_>>().join(&b'/');
        let Some((name, above)) = names.split_last() else { continue };
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous if wanted.files.contains(&path) => {
                bounds.check(&copied, entry.size())?;
                copied.bytes += entry.size();
                copied.files += 1;
                write(&mut entry, tree, above, name)?;
                paths.insert(path);
            }
            EntryType::Symlink if wanted.links.contains(&path) => {
                let target = entry.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
                if !target.is_empty() && Links::LENT.admit(names.len(), &target) {
                    bounds.check(&copied, target.len() as u64)?;
                    copied.bytes += target.len() as u64;
                    copied.links += 1;
                    links.add(whole, target)?;
                    paths.insert(path);
                }
            }
            _ => {}
        }
    }
    links.make(tree)?;
    Ok(Received { paths, bytes: copied.bytes })
}

fn write<R: Read>(entry: &mut Entry<'_, R>, tree: &HostTree, above: &[OsString], name: &OsStr) -> Result<()> {
    let mode = entry.header().mode().unwrap_or(0o644);
    let mut file = tree.new_file(above, name)?;
    let mut buffer = vec![0; super::COPY_BYTES];
    loop {
        let count = entry.read(&mut buffer).map_err(|cause| broken(&cause))?;
        if count == 0 {
            return file.commit(mode);
        }
        file.write_all(&buffer[..count])?;
    }
}

/// Without the first name. The engine does not write `..`; a stream that has one is not from it.
fn names_below(path: &[u8]) -> Result<Vec<OsString>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let names = names.map(names::here).collect::<Result<Vec<_>>>()?;
    Ok(names.into_iter().skip(1).collect())
}

fn broken(cause: &io::Error) -> Error {
    Error::unavailable(format!("the sandbox did not send all files: {}", reason(cause)))
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
