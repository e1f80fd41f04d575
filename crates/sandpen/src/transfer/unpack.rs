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
    // As bytes, because there may be many and deep ones, and they wait for the end.
    let mut links: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut link_bytes = 0;
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
                    link_bytes += path.len() + target.len();
                    if link_bytes > MOST_LINK_BYTES {
                        return Err(Error::limit_exceeded("there are too many links to copy at once")
                            .with_hint("pack them into an archive in the sandbox, and copy that"));
                    }
                    links.push((path.clone(), target.into_owned()));
                    copied.links += 1;
                }
                Some(_) | None => copied.skipped += 1,
            },
            (_, _) => copied.skipped += 1,
        }
    }
    for (path, target) in links {
        if let Some((name, above)) = names_below(&path)?.split_last() {
            tree.link(above, name, &names::target(&target))?;
        }
    }
    Ok(copied)
}

/// What came of what was wanted.
#[derive(Debug, Default)]
pub struct Received {
    pub paths: BTreeSet<Vec<u8>>,
    pub bytes: u64,
}

/// Of the files in the stream those that are wanted, by their paths without the first name. Tells which of them came.
pub fn unpack_some(stream: impl Read, tree: &HostTree, bounds: Bounds, wanted: &BTreeSet<Vec<u8>>) -> Result<Received> {
    let (mut copied, mut paths) = (Copied::default(), BTreeSet::new());
    let mut archive = Archive::new(stream);
    for entry in archive.entries().map_err(|cause| broken(&cause))? {
        let mut entry = entry.map_err(|cause| broken(&cause))?;
        let names = names_below(&entry.path_bytes())?;
        let path = names.iter().map(|name| name.as_encoded_bytes()).collect::<Vec<_>>().join(&b'/');
        let is_file = matches!(entry.header().entry_type(), EntryType::Regular | EntryType::Continuous);
        let Some((name, above)) = names.split_last() else { continue };
        if is_file && wanted.contains(&path) {
            bounds.check(&copied, entry.size())?;
            copied.bytes += entry.size();
            copied.files += 1;
            write(&mut entry, tree, above, name)?;
            paths.insert(path);
        }
    }
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
