//! ZIP archives that are written in one go, to where nothing can be changed afterwards.
//!
//! Sizes follow their contents, as the format allows, and the directory comes last. The common library would do as well, but
//! completes an archive when it is dropped in the middle: half of a tree must not look like the whole.

use std::io::{self, Read, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use crate::time;

/// What archives are listed by is kept until the end; names are chosen by the code in the sandbox.
const MOST_DIRECTORY_BYTES: usize = 32 << 20;

/// From here on, sizes may need more than four bytes.
const LARGE: u64 = 0xF000_0000;

const LOCAL: u32 = 0x0403_4b50;
const DESCRIPTOR: u32 = 0x0807_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const LARGE_END: u32 = 0x0606_4b50;
const LARGE_END_PLACE: u32 = 0x0706_4b50;

/// Names are UTF-8.
const UTF_8: u16 = 1 << 11;
/// Sizes follow.
const SIZES_FOLLOW: u16 = 1 << 3;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// Of an entry besides its contents.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Permission bits.
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: u64,
}

#[derive(Debug)]
pub struct ZipWriter<W> {
    output: Counted<W>,
    directory: Vec<u8>,
    entries: u64,
}

#[derive(Debug)]
struct Counted<W> {
    output: W,
    count: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.output.write(bytes)?;
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// One line of the directory.
struct Entry<'a> {
    name: &'a str,
    kind: u32,
    facts: Facts,
    flags: u16,
    method: u16,
    is_large: bool,
    start: u64,
    crc: u32,
    packed: u64,
    bytes: u64,
}

impl<W: Write> ZipWriter<W> {
    pub fn new(output: W) -> Self {
        Self { output: Counted { output, count: 0 }, directory: Vec::new(), entries: 0 }
    }

    pub fn directory(&mut self, name: &str, facts: Facts) -> io::Result<()> {
        self.stored(&format!("{}/", name.trim_end_matches('/')), DIRECTORY, facts, &[])
    }

    pub fn link(&mut self, name: &str, facts: Facts, target: &[u8]) -> io::Result<()> {
        self.stored(name, LINK, facts, target)
    }

    fn stored(&mut self, name: &str, kind: u32, facts: Facts, contents: &[u8]) -> io::Result<()> {
        let mut crc = Crc::new();
        crc.update(contents);
        let bytes = contents.len() as u64;
        let (flags, method, start) = (UTF_8, STORED, self.output.count);
        let entry =
            Entry { name, kind, facts, flags, method, is_large: false, start, crc: crc.sum(), packed: bytes, bytes };
        self.local(&entry)?;
        self.output.write_all(contents)?;
        self.list(&entry)
    }

    /// Of about `length` bytes, which is told beforehand.
    pub fn file(&mut self, name: &str, facts: Facts, length: u64, mut contents: impl Read) -> io::Result<()> {
        let mut entry = Entry {
            name,
            kind: FILE,
            facts,
            flags: UTF_8 | SIZES_FOLLOW,
            method: DEFLATED,
            is_large: length >= LARGE,
            start: self.output.count,
            crc: 0,
            packed: 0,
            bytes: 0,
        };
        self.local(&entry)?;
        let before = self.output.count;
        let mut crc = Crc::new();
        let mut packer = DeflateEncoder::new(&mut self.output, Compression::fast());
        let mut piece = vec![0; 64 << 10];
        loop {
            let count = match contents.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            crc.update(&piece[..count]);
            entry.bytes += count as u64;
            packer.write_all(&piece[..count])?;
        }
        packer.finish()?;
        (entry.crc, entry.packed) = (crc.sum(), self.output.count - before);
        let mut descriptor = Bytes::default().four(DESCRIPTOR).four(entry.crc);
        descriptor = if entry.is_large {
            descriptor.eight(entry.packed).eight(entry.bytes)
        } else {
            descriptor.four(short(entry.packed)?).four(short(entry.bytes)?)
        };
        self.output.write_all(&descriptor.0)?;
        self.list(&entry)
    }

    fn local(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let follows = entry.flags & SIZES_FOLLOW != 0;
        let size = |size: u64| if follows { Ok(0) } else { short(size) };
        let (clock, date) = moment(entry.facts.modified);
        let mut extra = Bytes::default();
        if entry.is_large {
            extra = extra.two(1).two(16).eight(0).eight(0);
        }
        let head = Bytes::default()
            .four(LOCAL)
            .two(if entry.is_large { 45 } else { 20 })
            .two(entry.flags)
            .two(entry.method)
            .two(clock)
            .two(date)
            .four(if follows { 0 } else { entry.crc })
            .four(if entry.is_large { u32::MAX } else { size(entry.packed)? })
            .four(if entry.is_large { u32::MAX } else { size(entry.bytes)? })
            .two(name_length(entry.name)?)
            .two(extra.0.len() as u16);
        self.output.write_all(&head.0)?;
        self.output.write_all(entry.name.as_bytes())?;
        self.output.write_all(&extra.0)
    }

    fn list(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let is_large = entry.is_large || entry.start >= LARGE;
        let of = |number: u64| if is_large { Ok(u32::MAX) } else { short(number) };
        let mut extra = Bytes::default();
        if is_large {
            extra = extra.two(1).two(24).eight(entry.bytes).eight(entry.packed).eight(entry.start);
        }
        let (clock, date) = moment(entry.facts.modified);
        let line = Bytes::default()
            .four(CENTRAL)
            // Made on Unix, so that permissions and links mean something.
            .two(3 << 8 | 45)
            .two(if is_large { 45 } else { 20 })
            .two(entry.flags)
            .two(entry.method)
            .two(clock)
            .two(date)
            .four(entry.crc)
            .four(of(entry.packed)?)
            .four(of(entry.bytes)?)
            .two(name_length(entry.name)?)
            .two(extra.0.len() as u16)
            .two(0)
            .two(0)
            .two(0)
            .four((entry.kind | entry.facts.mode & 0o777) << 16)
            .four(of(entry.start)?);
        if self.directory.len() + line.0.len() + entry.name.len() + extra.0.len() > MOST_DIRECTORY_BYTES {
            return Err(io::Error::other("there are more names than an archive of this form is made of here"));
        }
        self.directory.extend(line.0);
        self.directory.extend(entry.name.as_bytes());
        self.directory.extend(extra.0);
        self.entries += 1;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<()> {
        let start = self.output.count;
        let length = self.directory.len() as u64;
        self.output.write_all(&self.directory)?;
        let is_large = start + length >= LARGE || self.entries >= u64::from(u16::MAX);
        if is_large {
            let end = Bytes::default()
                .four(LARGE_END)
                .eight(44)
                .two(3 << 8 | 45)
                .two(45)
                .four(0)
                .four(0)
                .eight(self.entries)
                .eight(self.entries)
                .eight(length)
                .eight(start)
                .four(LARGE_END_PLACE)
                .four(0)
                .eight(start + length)
                .four(1);
            self.output.write_all(&end.0)?;
        }
        let entries = if is_large { u16::MAX } else { self.entries as u16 };
        let of = |number: u64| if is_large { Ok(u32::MAX) } else { short(number) };
        let end = Bytes::default()
            .four(END)
            .two(0)
            .two(0)
            .two(entries)
            .two(entries)
            .four(of(length)?)
            .four(of(start)?)
            .two(0);
        self.output.write_all(&end.0)?;
        self.output.flush()
    }
}

/// The numbers of the format, the least byte first.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn two(mut self, number: u16) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn four(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn eight(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }
}

/// A file that grew beyond what was told of it.
fn short(number: u64) -> io::Result<u32> {
    u32::try_from(number).map_err(|_| io::Error::other("a file is larger than it was"))
}

fn name_length(name: &str) -> io::Result<u16> {
    u16::try_from(name.len()).map_err(|_| io::Error::other("a name is too long"))
}

/// Time and date as this format has them: two seconds exact, from 1980 to 2107.
fn moment(seconds: u64) -> (u16, u16) {
    let (year, month, day) = time::civil(seconds / 86400);
    if !(1980..2108).contains(&year) {
        return (0, 1 << 5 | 1);
    }
    let (hour, minute, second) = (seconds % 86400 / 3600, seconds % 3600 / 60, seconds % 60);
    ((hour << 11 | minute << 5 | (second / 2)) as u16, ((year - 1980) << 9 | month << 5 | day) as u16)
}

/// A name as every reader understands it. What is not UTF-8, and what some take for a separator, is written out behind a mark
/// that no other name has, so that two names stay two.
pub fn plain_name(name: &[u8]) -> String {
    const MARK: char = char::REPLACEMENT_CHARACTER;
    let mut plain = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' || character == MARK || character.is_control() {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    plain += &format!("{MARK}{byte:02X}");
                }
            } else {
                plain.push(character);
            }
        }
        for byte in chunk.invalid() {
            plain += &format!("{MARK}{byte:02X}");
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts { mode: 0o644, modified: 1_794_787_199 };

    #[test]
    fn two_names_stay_two() {
        let names: [&[u8]; 6] =
            [b"a\\b", b"a\xff", "a\u{fffd}5Cb".as_bytes(), "a\u{fffd}".as_bytes(), b"a\nb", b"plain"];
        let plain: std::collections::BTreeSet<_> = names.iter().map(|name| plain_name(name)).collect();
        assert_eq!(plain.len(), names.len());
        assert!(plain.iter().all(|name| !name.contains('\\')) && plain.contains("plain"));
    }

    #[test]
    fn moments_have_a_bound() {
        assert_eq!(moment(0), (0, 33));
        assert_eq!(moment(1_794_787_199), (23 << 11 | 59 << 5 | 29, 46 << 9 | 11 << 5 | 15));
    }

    /// What is left of an archive that was given up is none.
    #[test]
    fn an_archive_that_was_given_up_has_no_directory() {
        struct Breaks;
        impl Read for Breaks {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("gone"))
            }
        }
        let mut output = Vec::new();
        let mut zip = ZipWriter::new(&mut output);
        zip.file("a", FACTS, 3, &b"abc"[..]).unwrap();
        assert!(zip.file("b", FACTS, 3, Breaks).is_err());
        drop(zip);
        assert!(!output.windows(4).any(|bytes| bytes == END.to_le_bytes()));
    }

    #[test]
    fn names_are_bounded_in_sum() {
        let mut zip = ZipWriter::new(io::sink());
        let name = "x".repeat(4000);
        let most = MOST_DIRECTORY_BYTES / name.len() + 1;
        assert!((0..most).any(|_| zip.directory(&name, FACTS).is_err()));
    }
}
