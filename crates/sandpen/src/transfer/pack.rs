//! A directory of this machine as a tar stream.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use sandbox::{Error, Result};
use tar::{Builder, EntryType, Header};

use super::{Copied, host_error};
use crate::output::reason;

/// Everything below `directory`, names relative to it. Links go as links: following one could bring in what nobody named.
pub fn pack<W: Write>(directory: &Path, writer: W) -> Result<(Copied, W)> {
    let mut packing = Packing { builder: Builder::new(writer), copied: Copied { directories: 1, ..Copied::default() } };
    packing.directory(directory, Path::new(""))?;
    let mut writer = packing.builder.into_inner().map_err(|cause| refused(&cause))?;
    writer.flush().map_err(|cause| refused(&cause))?;
    Ok((packing.copied, writer))
}

struct Packing<W: Write> {
    builder: Builder<W>,
    copied: Copied,
}

impl<W: Write> Packing<W> {
    fn directory(&mut self, directory: &Path, name: &Path) -> Result<()> {
        let entries = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.map_err(|cause| host_error(directory, &cause))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let metadata = entry.metadata().map_err(|cause| host_error(&path, &cause))?;
            self.entry(&path, &name.join(entry.file_name()), &metadata)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path, metadata: &Metadata) -> Result<()> {
        let kind = metadata.file_type();
        let mut header = Header::new_gnu();
        header.set_mode(metadata.permissions().mode() & 0o777);
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            self.builder.append_data(&mut header, name, io::empty()).map_err(|cause| refused(&cause))?;
            self.copied.directories += 1;
            self.directory(path, name)
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(|cause| host_error(path, &cause))?;
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            self.builder.append_link(&mut header, name, target).map_err(|cause| refused(&cause))?;
            self.copied.links += 1;
            Ok(())
        } else if kind.is_file() {
            let file = File::open(path).map_err(|cause| host_error(path, &cause))?;
            header.set_size(metadata.len());
            // A file that shrinks while it is read must not shift everything behind it.
            let content = file.chain(io::repeat(0)).take(metadata.len());
            self.builder.append_data(&mut header, name, content).map_err(|cause| refused(&cause))?;
            self.copied.files += 1;
            self.copied.bytes += metadata.len();
            Ok(())
        } else {
            self.copied.skipped += 1;
            Ok(())
        }
    }
}

fn refused(cause: &io::Error) -> Error {
    Error::unavailable(format!("the sandbox did not take the files: {}", reason(cause)))
}
