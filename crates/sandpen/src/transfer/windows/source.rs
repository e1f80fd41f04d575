//! A file or directory of this machine, opened to be copied.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::Path;

/// Without it a directory cannot be opened.
const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;

pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)
}

/// Windows does not say what may be executed.
pub fn mode(_: &Metadata) -> u32 {
    0o644
}
