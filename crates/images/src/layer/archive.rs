//! A tar archive that becomes part of a layer, as `ADD` does it.

use std::fs::File;
use std::io::{self, Read, Seek};

use tar::{Entry, EntryType};
use tokio_util::sync::CancellationToken;

use super::{LayerWriter, shown};
use crate::error::{Error, Result};
use crate::meter::{Compression, Meter, Stream};
use crate::overlaid::{Meta, Seen};
use crate::unpack::Limits;
use crate::unpack::path::parse;

/// Whether a file is an archive that would be unpacked. One in a form that is not read is an error: taken for a plain file
/// it would be something else than its author meant.
pub fn is_archive(file: &mut File) -> Result<bool> {
    let reading = || Error::io("reading a file that is added");
    let mut start = [0; 4];
    let count = file.read(&mut start).map_err(reading())?;
    file.rewind().map_err(reading())?;
    if start.starts_with(b"PK\x03\x04") {
        return Ok(false);
    }
    Compression::of(&start[..count])?;
    let found = begins_like_tar(file);
    file.rewind().map_err(reading())?;
    Ok(found)
}

fn begins_like_tar(file: &mut File) -> bool {
    let Ok(mut stream) = Stream::new(file, Limits::default().ratio) else { return false };
    stream.meter().expect_header();
    let mut block = [0; 512];
    if stream.read_exact(&mut block).is_err() {
        return false;
    }
    let mut header = tar::Header::new_old();
    header.as_mut_bytes().copy_from_slice(&block);
    let sum: u32 = block[..148].iter().chain(&[b' '; 8]).chain(&block[156..]).map(|byte| u32::from(*byte)).sum();
    header.cksum().is_ok_and(|expected| expected == sum) && block.iter().any(|byte| *byte != 0)
}

/// What all entries of one archive have in common.
#[derive(Clone, Copy, Debug)]
pub struct Adding<'a> {
    /// A directory whose path was followed.
    pub to: &'a [u8],
    /// In place of whom the archive names.
    pub owner: Option<(u32, u32)>,
    /// Of directories that the archive goes through and does not describe.
    pub missing: Meta,
    pub cancel: &'a CancellationToken,
}

impl LayerWriter<'_> {
    /// Unpacks an archive. Its names are followed through the links of the image, and stay inside of it.
    pub fn add_archive(&mut self, file: File, adding: &Adding<'_>) -> Result<()> {
        let limits = Limits::default();
        let stream = Stream::new(file, limits.ratio)?;
        let meter = stream.meter();
        let mut archive = tar::Archive::new(stream);
        let mut entries = archive.entries().map_err(|error| meter.explain(error))?;
        let mut bytes = 0u64;
        loop {
            if adding.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            meter.expect_header();
            let Some(entry) = entries.next() else { break };
            let mut entry = entry.map_err(|error| meter.explain(error))?;
            bytes = bytes.saturating_add(entry.size());
            if bytes > limits.bytes {
                return Err(Error::LimitExceeded(format!("its files have more than {} bytes", limits.bytes)));
            }
            self.add_entry(&mut entry, adding, &meter, &limits)?;
            meter.expect_contents(entry.size());
            io::copy(&mut entry, &mut io::sink()).map_err(|error| meter.explain(error))?;
        }
        if meter.at_end() {
            return Err(Error::Refused("the archive is cut off".to_owned()));
        }
        Ok(())
    }

    fn add_entry<R: Read>(
        &mut self,
        entry: &mut Entry<'_, R>,
        adding: &Adding<'_>,
        meter: &Meter,
        limits: &Limits,
    ) -> Result<()> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let extensions = entry.pax_extensions().map_err(|error| meter.explain(error))?;
        for extension in extensions.into_iter().flatten() {
            let extension = extension.map_err(|error| meter.explain(error))?;
            if extension.key_bytes().starts_with(b"GNU.sparse.") {
                return Err(Error::Unsupported("the archive has sparse files in a form that is not read".to_owned()));
            }
        }
        let name = entry.path_bytes().into_owned();
        let names = parse(&name, limits)?;
        let meta = meta(entry, adding).map_err(|error| meter.explain(error))?;
        // What an archive says of its own root goes for nothing: Docker makes the directory before it looks.
        let Some((last, parents)) = names.split_last() else { return Ok(()) };
        let parent = parents.iter().fold(adding.to.to_vec(), |path, name| join(&path, name.as_bytes()));
        let (parent, _) = self.follow(&parent)?;
        self.make_directories(&parent, adding.missing)?;
        let path = join(&parent, last.as_bytes());
        match kind {
            EntryType::Directory => self.directory(&path, meta),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let size = entry.size();
                meter.expect_contents(size);
                self.file(&path, meta, entry, size)
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                if target.is_empty() || target.contains(&0) {
                    return Err(Error::Refused(format!("the link {} says nothing that a link can say", shown(&path))));
                }
                self.link(&path, meta, &target)
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                let refuse =
                    || Error::Refused(format!("the hard link {} leads to nothing in its archive", shown(&path)));
                let names = parse(&target, limits)?;
                let (last, parents) = names.split_last().ok_or_else(refuse)?;
                let parent = parents.iter().fold(adding.to.to_vec(), |path, name| join(&path, name.as_bytes()));
                let target = join(&self.follow(&parent)?.0, last.as_bytes());
                match self.written(&target) {
                    Some(Seen::Other) => self.hard_link(&path, meta, &target),
                    Some(Seen::Directory | Seen::Link(_)) | None => Err(refuse()),
                }
            }
            // Devices and FIFOs, which no image can hold.
            _ => Ok(()),
        }
    }
}

fn meta<R: Read>(entry: &Entry<'_, R>, adding: &Adding<'_>) -> io::Result<Meta> {
    let header = entry.header();
    // Writers that know no owner leave the field empty. The last number of all means nobody to the kernel.
    let number = |field: &[u8], number: io::Result<u64>| {
        if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
            return Ok(0);
        }
        let number = u32::try_from(number?).ok().filter(|number| *number != u32::MAX);
        number.ok_or_else(|| io::Error::other("an owner that there cannot be"))
    };
    let fields = header.as_old();
    let (user, group) = match adding.owner {
        Some(owner) => owner,
        None => (number(&fields.uid, header.uid())?, number(&fields.gid, header.gid())?),
    };
    Ok(Meta { mode: header.mode()? & 0o7777, user, group, modified: header.mtime().unwrap_or(0) })
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}
