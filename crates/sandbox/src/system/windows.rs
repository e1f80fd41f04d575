//! Files that are for their owner alone, on Windows: those below a person's own profile are, by what they inherit.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use winapi_util::Handle;
use winapi_util::file::information;

use super::Exposure;

/// Opens a link itself, which then is no regular file.
const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;

pub fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    builder
}

pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    options
}

/// One that somebody named: links are followed.
pub fn file_of_another() -> OpenOptions {
    OpenOptions::new()
}

/// Links are opened, and found out by what they are.
pub fn is_link(_: &io::Error) -> bool {
    false
}

/// Whether a file that is open is the one that has this name.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let named = match Handle::from_path_any(path) {
        Ok(named) => information(named)?,
        // A file that is being removed keeps its name, and lets nobody in, until the last who has it open is gone.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => return Ok(false),
        Err(error) => return Err(error),
    };
    let opened = information(file)?;
    let place = |found: &winapi_util::file::Information| (found.volume_serial_number(), found.file_index());
    Ok(place(&named) == place(&opened))
}

/// What to lock in order to lock an open file that others read and write: here a lock keeps them from doing so, and is on
/// a file beside it.
pub fn lock_of(_: &File, path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    private_file().read(true).write(true).create(true).truncate(false).open(name)
}

pub fn read_at(file: &File, bytes: &mut [u8], position: u64) -> io::Result<usize> {
    match file.seek_read(bytes, position) {
        // The end of the file.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
        other => other,
    }
}

pub fn write_at(file: &File, bytes: &[u8], position: u64) -> io::Result<usize> {
    file.seek_write(bytes, position)
}

/// The names in a directory are on disk when its files are.
pub fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Who may read a file is said by its access list, which is that of the directory unless somebody changed it.
pub fn exposure(_: &Metadata) -> Option<Exposure> {
    None
}

/// Nobody is, here.
pub fn is_root() -> bool {
    false
}

/// There is no such limit.
pub fn allow_descriptors() -> u64 {
    u64::MAX
}

/// Crashes write nothing to disk unless an administrator asked for it.
pub fn keep_out_of_core_dumps() {}
