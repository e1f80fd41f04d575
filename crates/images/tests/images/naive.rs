//! What an unpacker does that trusts its archive: the negative control. A case that does no harm here proves nothing.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tar::{Archive, EntryType};

/// Joins names to the directory, follows whatever lies there, and believes every header.
pub fn unpack(archive: &[u8], directory: &Path) {
    for entry in Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = directory.join(entry.path().unwrap());
        let link = entry.link_name().unwrap().map(|link| link.into_owned());
        let mode = entry.header().mode().unwrap();
        if let Some(parent) = path.parent() {
            let _ = fs::create_dir_all(parent);
        }
        match entry.header().entry_type() {
            EntryType::Directory => {
                let _ = fs::create_dir_all(&path);
                let _ = fs::set_permissions(&path, fs::Permissions::from_mode(mode));
            }
            EntryType::Symlink => {
                let _ = fs::remove_dir(&path);
                let _ = symlink(link.unwrap(), &path);
            }
            EntryType::Link => {
                let _ = fs::hard_link(directory.join(link.unwrap()), &path);
            }
            EntryType::Char => {
                let device = rustix::fs::makedev(
                    entry.header().device_major().unwrap().unwrap(),
                    entry.header().device_minor().unwrap().unwrap(),
                );
                let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(mode));
                let _ = rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, device);
            }
            _ => {
                let mut contents = Vec::new();
                entry.read_to_end(&mut contents).unwrap();
                let _ = fs::write(&path, contents);
                let _ = fs::set_permissions(&path, fs::Permissions::from_mode(mode));
            }
        }
    }
}
