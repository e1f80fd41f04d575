//! A directory of this machine as a tar stream.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use sandbox::{Error, Result};
use tar::{Builder, EntryType, Header};

use super::links::Links;
use super::{Copied, HostSource, host_error};
use crate::output::reason;

/// Everything below a directory, names relative to it. Links are left out and counted: where they lead means nothing in a
/// sandbox.
pub fn pack<W: Write>(source: &HostSource, writer: W, _: Links) -> Result<(Copied, W)> {
    let mut packing = Packing { builder: Builder::new(writer), copied: Copied { directories: 1, ..Copied::default() } };
    packing.directory(&source.path, "")?;
    let mut writer = packing.builder.into_inner().map_err(|cause| refused(&cause))?;
    writer.flush().map_err(|cause| refused(&cause))?;
    Ok((packing.copied, writer))
}

struct Packing<W: Write> {
    builder: Builder<W>,
    copied: Copied,
}

impl<W: Write> Packing<W> {
    fn directory(&mut self, path: &Path, name: &str) -> Result<()> {
        let failed = |cause: io::Error| host_error(path, &cause);
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let mut names = entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed)?;
        names.sort();
        for entry in names {
            let below = path.join(&entry);
            let text = entry
                .to_str()
                .ok_or_else(|| Error::unsupported(format!("{} has a name that is not text", below.display())))?;
            let inside = if name.is_empty() { text.to_owned() } else { format!("{name}/{text}") };
            self.entry(&below, &inside)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &str) -> Result<()> {
        let failed = |cause: io::Error| host_error(path, &cause);
        let metadata = std::fs::symlink_metadata(path).map_err(failed)?;
        let mut header = Header::new_gnu();
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        header.set_mtime(modified.unwrap_or_default().as_secs());
        if metadata.is_dir() {
            header.set_mode(0o755);
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            self.builder.append_data(&mut header, name, io::empty()).map_err(|cause| refused(&cause))?;
            self.copied.directories += 1;
            return self.directory(path, name);
        }
        if !metadata.is_file() {
            self.copied.skipped += 1;
            return Ok(());
        }
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        header.set_mode(0o644);
        header.set_entry_type(EntryType::Regular);
        header.set_size(size);
        // A file that shrinks while it is read must not shift everything behind it.
        let content = file.chain(io::repeat(0)).take(size);
        self.builder.append_data(&mut header, name, content).map_err(|cause| refused(&cause))?;
        self.copied.files += 1;
        self.copied.bytes += size;
        Ok(())
    }
}

fn refused(cause: &io::Error) -> Error {
    Error::unavailable(format!("the sandbox did not take the files: {}", reason(cause)))
}
