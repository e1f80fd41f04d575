//! SU-04: what our reader and another one see in an archive is the same, or one of them refuses it.
//!
//! Readers that disagree about where an entry ends have been used to smuggle files past whoever looked first.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use images::{Digest, Directory, Limits, Links, unpack};

use crate::tools;

const ARCHIVES: u64 = 10_000;

type Listing = BTreeMap<String, (String, String)>;

#[test]
fn another_reader_sees_the_same_or_one_refuses() {
    let Some(python) = tools::find("python3", "our reading of archives is not compared with another") else { return };
    let mut generator = Generator(0x5eed);
    let archives: Vec<Vec<u8>> = (0..ARCHIVES).map(|_| generator.archive()).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/second.py");
    let mut child = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let sent = archives.clone();
    let sending = std::thread::spawn(move || {
        for archive in sent {
            input.write_all(&(archive.len() as u64).to_le_bytes()).unwrap();
            input.write_all(&archive).unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    sending.join().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<Option<Listing>> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(theirs.len(), archives.len());

    let place = tempfile::tempdir().unwrap();
    let (mut accepted, mut refused) = (0, 0);
    for (number, (archive, theirs)) in archives.iter().zip(&theirs).enumerate() {
        match (read(archive, place.path()), theirs) {
            (Some(ours), Some(theirs)) => {
                accepted += 1;
                assert_eq!(&ours, theirs, "archive {number}");
            }
            // One that either of them refuses smuggles nothing past the other.
            (Some(_) | None, _) => refused += 1,
        }
    }
    // Otherwise the archives are not what this is about.
    assert!(accepted > ARCHIVES / 5 && refused > ARCHIVES / 5, "{accepted} taken, {refused} refused");
}

fn read(archive: &[u8], place: &Path) -> Option<Listing> {
    let directory = place.join("tree");
    fs::create_dir(&directory).unwrap();
    let limits = Limits { bytes: 1 << 20, ..Limits::default() };
    let read = unpack(archive, &Directory::open(&directory).unwrap(), &limits, Links::Any);
    let mut listing = Listing::new();
    list(&directory, &directory, &mut listing);
    fs::remove_dir_all(&directory).unwrap();
    read.is_ok().then_some(listing)
}

fn list(top: &Path, directory: &Path, listing: &mut Listing) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        let name = path.strip_prefix(top).unwrap().to_string_lossy().into_owned();
        let kind = entry.file_type().unwrap();
        let what = if kind.is_dir() {
            list(top, &path, listing);
            ("directory".to_owned(), String::new())
        } else if kind.is_symlink() {
            ("link".to_owned(), fs::read_link(&path).unwrap().to_string_lossy().into_owned())
        } else {
            let contents = fs::read(&path).unwrap();
            ("file".to_owned(), Digest::of(&contents).digits())
        };
        listing.insert(name, what);
    }
}

/// Archives that are almost right. The same ones every time.
struct Generator(u64);

impl Generator {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn archive(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..=self.next(4) {
            self.entry(&mut bytes);
        }
        bytes.extend([0; 1024]);
        match self.next(8) {
            0 => {
                let length = self.next(bytes.len() as u64) as usize;
                bytes.truncate(length);
            }
            1 => {
                let at = self.next(bytes.len() as u64) as usize;
                bytes[at] = self.next(128) as u8;
                for header in bytes.chunks_exact_mut(512) {
                    if header[257..262] == *b"ustar" {
                        make_checksum(header);
                    }
                }
            }
            2 => {
                let end = bytes.len();
                self.entry(&mut bytes);
                bytes[end - 512..end].fill(0);
            }
            _ => {}
        }
        bytes
    }

    fn entry(&mut self, bytes: &mut Vec<u8>) {
        let name = self.name();
        match self.next(10) {
            0 => header(bytes, b'5', &name, "", 0),
            1 => {
                let target = self.name();
                header(bytes, b'2', &name, &target, 0);
            }
            2 => {
                let target = self.name();
                header(bytes, b'1', &name, &target, 0);
            }
            3 => {
                let long = format!("{}/{}", "long".repeat(self.next(60) as usize + 1), name);
                // The other reader goes to the NUL even if the name is said to end before it.
                let size = self.size(long.len() as u64 + 1).max(long.len() as u64 + 1);
                header(bytes, b'L', "././@LongLink", "", size);
                contents(bytes, format!("{long}\0").as_bytes());
                self.file(bytes, &name);
            }
            4 | 5 => {
                let key = ["path", "size", "linkpath", "mtime", "comment", "GNU.sparse.size"][self.next(6) as usize];
                let value = match self.next(3) {
                    0 => self.name(),
                    1 => self.next(600).to_string(),
                    _ => String::new(),
                };
                let record = self.record(key, &value);
                let kind = if self.next(4) == 0 { b'g' } else { b'x' };
                let size = self.size(record.len() as u64);
                header(bytes, kind, "pax", "", size);
                contents(bytes, record.as_bytes());
                self.file(bytes, &name);
            }
            _ => self.file(bytes, &name),
        }
    }

    fn file(&mut self, bytes: &mut Vec<u8>, name: &str) {
        let length = self.next(1500);
        let size = self.size(length);
        header(bytes, if self.next(8) == 0 { 0 } else { b'0' }, name, "", size);
        contents(bytes, &vec![b'a' + (length % 26) as u8; length as usize]);
    }

    /// Mostly the truth.
    fn size(&mut self, length: u64) -> u64 {
        match self.next(12) {
            0 => self.next(3000),
            1 => length + 1,
            2 => length.saturating_sub(1),
            _ => length,
        }
    }

    fn record(&mut self, key: &str, value: &str) -> String {
        let body = format!(" {key}={value}\n");
        let mut length = body.len() + 1;
        while format!("{length}{body}").len() != length {
            length += 1;
        }
        match self.next(6) {
            0 => format!("{}{body}", length + 1),
            1 => format!("{}{body}", length - 1),
            2 => format!("x{body}"),
            _ => format!("{length}{body}"),
        }
    }

    fn name(&mut self) -> String {
        let names = ["a", "b", "a/b", "b/c", "./a", "c/", "d//e", "f/g/h"];
        names[self.next(names.len() as u64) as usize].to_owned()
    }
}

fn header(bytes: &mut Vec<u8>, kind: u8, name: &str, link: &str, size: u64) {
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    old.linkname[..link.len()].copy_from_slice(link.as_bytes());
    old.linkflag = [kind];
    header.set_cksum();
    bytes.extend(header.as_bytes());
}

fn contents(bytes: &mut Vec<u8>, contents: &[u8]) {
    bytes.extend(contents);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
}

fn make_checksum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
