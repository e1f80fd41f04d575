//! A directory of this machine as a tar stream.
//!
//! From directory descriptor to name, and through no link: what is packed may lie where somebody else can swap a file for
//! a link at any moment.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use sandbox::{Error, Result};
use tar::{Builder, EntryType, Header};

use super::links::Links;
use super::{Copied, HostSource, host_error};
use crate::output::reason;

/// Opening must not wait for the other end of a pipe that has taken a file's place.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Everything below a directory, names relative to it. Links go as links, or those that are not admitted not at all: following one could bring in what
/// nobody named.
pub fn pack<W: Write>(source: &HostSource, writer: W, links: Links) -> Result<(Copied, W)> {
    let copied = Copied { directories: 1, ..Copied::default() };
    let mut packing = Packing { builder: Builder::new(writer), copied, links };
    packing.directory(&source.file, &source.path, Path::new(""))?;
    let mut writer = packing.builder.into_inner().map_err(|cause| refused(&cause))?;
    writer.flush().map_err(|cause| refused(&cause))?;
    Ok((packing.copied, writer))
}

struct Packing<W: Write> {
    builder: Builder<W>,
    copied: Copied,
    links: Links,
}

impl<W: Write> Packing<W> {
    fn directory(&mut self, directory: &File, shown: &Path, name: &Path) -> Result<()> {
        let failed = |errno: Errno| host_error(shown, &errno.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let bytes = entry.file_name().to_bytes();
            if bytes != b"." && bytes != b".." {
                names.push(OsStr::from_bytes(bytes).to_owned());
            }
        }
        names.sort();
        for entry in names {
            self.entry(directory, &entry, &shown.join(&entry), &name.join(&entry))?;
        }
        Ok(())
    }

    fn entry(&mut self, above: &File, entry: &OsStr, shown: &Path, name: &Path) -> Result<()> {
        let failed = |errno: Errno| host_error(shown, &errno.into());
        let stat = rustix::fs::statat(above, entry, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let file = File::from(rustix::fs::openat(above, entry, DIRECTORY, Mode::empty()).map_err(failed)?);
                let mut header = header(&file, shown, EntryType::Directory, 0)?;
                self.builder.append_data(&mut header, name, io::empty()).map_err(|cause| refused(&cause))?;
                self.copied.directories += 1;
                self.directory(&file, shown, name)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(above, entry, Vec::new()).map_err(failed)?;
                if !self.links.admit(name.components().count(), target.as_bytes()) {
                    self.copied.skipped += 1;
                    return Ok(());
                }
                let mut header = Header::new_gnu();
                header.set_mode(0o777);
                header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
                header.set_entry_type(EntryType::Symlink);
                header.set_size(0);
                let target = OsStr::from_bytes(target.as_bytes());
                self.builder.append_link(&mut header, name, target).map_err(|cause| refused(&cause))?;
                self.copied.links += 1;
                Ok(())
            }
            FileType::RegularFile => {
                let file = File::from(rustix::fs::openat(above, entry, FILE, Mode::empty()).map_err(failed)?);
                let size = file.metadata().map_err(|cause| host_error(shown, &cause))?.len();
                let mut header = header(&file, shown, EntryType::Regular, size)?;
                // A file that shrinks while it is read must not shift everything behind it.
                let content = file.chain(io::repeat(0)).take(size);
                self.builder.append_data(&mut header, name, content).map_err(|cause| refused(&cause))?;
                self.copied.files += 1;
                self.copied.bytes += size;
                Ok(())
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                self.copied.skipped += 1;
                Ok(())
            }
        }
    }
}

/// Of what was opened, not of what had the name before.
fn header(file: &File, shown: &Path, kind: EntryType, size: u64) -> Result<Header> {
    let metadata = file.metadata().map_err(|cause| host_error(shown, &cause))?;
    if (kind == EntryType::Regular) != metadata.is_file() {
        return Err(Error::unavailable(format!("{} changed while it was copied", shown.display())));
    }
    let mut header = Header::new_gnu();
    header.set_mode(metadata.permissions().mode() & 0o777);
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
    header.set_entry_type(kind);
    header.set_size(size);
    Ok(header)
}

fn refused(cause: &io::Error) -> Error {
    Error::unavailable(format!("the sandbox did not take the files: {}", reason(cause)))
}
