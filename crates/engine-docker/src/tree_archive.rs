//! A tree of a sandbox as an archive for a volume: what a program may have made of it goes no further. Pure: a stream in, a
//! stream out.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Archive, Builder, Entry, EntryType, Header};

use crate::record::User;

/// How layers mark what is gone. Some daemons would heed it in a volume too.
const WHITEOUT: &str = ".wh.";

/// What a tree may hold. A sandbox's disk bounds what it wrote, but a file with holes says that it is larger than any disk.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub bytes: u64,
    pub entries: u64,
}

/// What was written: the archive itself, by which two trees can be told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub digest: String,
    pub bytes: u64,
}

/// Copy what is below the one directory that an archive of process 1 has at its top: files, directories and links of that
/// user, without the bits that make programs somebody else's.
pub fn copy<W: Write>(archive: impl Read, output: W, user: User, bounds: Bounds) -> io::Result<(W, Written)> {
    let mut copied = Builder::new(Measured { output, hasher: Sha256::new(), bytes: 0 });
    let (mut bytes, mut entries) = (0, 0);
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let Some(path) = below_the_top(&entry)? else { continue };
        entries += 1;
        bytes += entry.size();
        if bytes > bounds.bytes || entries > bounds.entries {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(WHITEOUT)) {
            continue;
        }
        let mut header = Header::new_gnu();
        header.set_uid(user.id.into());
        header.set_gid(user.group.into());
        header.set_mtime(entry.header().mtime()?);
        header.set_mode(entry.header().mode()? & 0o777);
        header.set_size(0);
        match entry.header().entry_type() {
            EntryType::Directory => {
                header.set_entry_type(EntryType::Directory);
                copied.append_data(&mut header, path.join(""), io::empty())?;
            }
            EntryType::Regular | EntryType::Continuous => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(entry.size());
                copied.append_data(&mut header, path, &mut entry)?;
            }
            EntryType::Symlink => {
                header.set_entry_type(EntryType::Symlink);
                header.set_mode(0o777);
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                copied.append_link(&mut header, path, target)?;
            }
            _ => {}
        }
    }
    let Measured { output, hasher, bytes } = copied.into_inner()?;
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((output, Written { digest: format!("sha256:{hex}"), bytes }))
}

/// The name of an entry without the directory at the top; `None` for that directory. It must lead downwards.
fn below_the_top<R: Read>(entry: &Entry<'_, R>) -> io::Result<Option<PathBuf>> {
    let path = entry.path()?;
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(io::Error::other("a name in an archive leads elsewhere"));
    }
    let mut parts = path.components();
    parts.next();
    let rest = parts.as_path();
    Ok((rest != Path::new("")).then(|| rest.to_owned()))
}

struct Measured<W> {
    output: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Measured<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.output.write(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: 1 << 20, entries: 100 };

    fn archive(entries: &[(&str, EntryType, u32, &[u8])]) -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        for (path, kind, mode, contents) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_mtime(77);
            header.set_size(contents.len() as u64);
            archive.append_data(&mut header, path, *contents).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn copied(bytes: &[u8], bounds: Bounds) -> io::Result<(Vec<u8>, Written)> {
        copy(bytes, Vec::new(), User::SANDBOX, bounds)
    }

    #[test]
    fn programs_become_nobody_else_and_devices_are_left() {
        use EntryType::{Block, Char, Directory, Fifo, Link, Regular};
        let (bytes, written) = copied(
            &archive(&[
                ("lib", Directory, 0o755, b""),
                ("lib/bin", Directory, 0o2755, b""),
                ("lib/bin/su", Regular, 0o6755, b"x"),
                ("lib/disk", Block, 0o666, b""),
                ("lib/null", Char, 0o666, b""),
                ("lib/pipe", Fifo, 0o666, b""),
                ("lib/hard", Link, 0o666, b""),
                ("lib/.wh.passwd", Regular, 0o644, b""),
            ]),
            BOUNDS,
        )
        .unwrap();
        let mut read = Archive::new(bytes.as_slice());
        let found: Vec<_> = read.entries().unwrap().map(|entry| entry.unwrap()).collect();
        let found: Vec<_> = found
            .iter()
            .map(|entry| (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap()))
            .collect();
        assert_eq!(found, [("bin/".to_owned(), 0o755), ("bin/su".to_owned(), 0o755)]);
        assert_eq!(written.bytes, bytes.len() as u64);
        let mut read = Archive::new(bytes.as_slice());
        let program = read.entries().unwrap().nth(1).unwrap().unwrap();
        let header = program.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (1000, 1000, 77));
    }

    #[test]
    fn the_same_tree_has_the_same_digest_wherever_it_was() {
        let of = |top: &str, text: &[u8]| {
            let inner = format!("{top}/a");
            let bytes =
                archive(&[(top, EntryType::Directory, 0o700, b""), (inner.as_str(), EntryType::Regular, 0o644, text)]);
            copied(&bytes, BOUNDS).unwrap().1
        };
        assert_eq!(of("one", b"x"), of("two", b"x"));
        assert_ne!(of("one", b"x").digest, of("one", b"y").digest);
    }

    #[test]
    fn more_than_a_disk_is_no_tree() {
        let bytes = archive(&[
            ("lib/a", EntryType::Regular, 0o644, &[0; 600]),
            ("lib/b", EntryType::Regular, 0o644, &[0; 600]),
        ]);
        for (bounds, fits) in [
            (Bounds { bytes: 1200, entries: 2 }, true),
            (Bounds { bytes: 1199, entries: 2 }, false),
            (Bounds { bytes: 1200, entries: 1 }, false),
        ] {
            let copied = copied(&bytes, bounds).map_err(|error| error.kind());
            assert_eq!(copied.is_ok(), fits, "{bounds:?}");
            assert!(fits || copied.unwrap_err() == io::ErrorKind::FileTooLarge);
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let mut header = Header::new_gnu();
        header.set_size(0);
        header.as_gnu_mut().unwrap().name[..9].copy_from_slice(b"lib/../..");
        header.set_cksum();
        let mut archive = Builder::new(Vec::new());
        archive.append(&header, io::empty()).unwrap();
        assert!(copied(&archive.into_inner().unwrap(), BOUNDS).is_err());
    }
}
