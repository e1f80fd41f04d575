//! One stream of a job on disk: what [`CappedOutput`] keeps of it, in a file that never grows beyond that.
//!
//! ```text
//! total, ends of lines, size of the head │ head │ ring
//! ```
//!
//! The ring is larger than the tail by what is written at once. So a process that is killed in the middle of a write has
//! spoiled nothing that the numbers in front speak of, and these are written last.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::output::{CappedOutput, OutputCaps};
use crate::system::{private_file, read_exact_at, write_all_at};

const NUMBERS: usize = 3;
const FRONT: u64 = 8 * NUMBERS as u64;
/// What is written at once.
const PIECE: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct StreamFile {
    file: File,
    caps: OutputCaps,
    total: u64,
    line_ends: u64,
}

impl StreamFile {
    /// With what was kept so far.
    pub fn make(path: &Path, so_far: &CappedOutput) -> io::Result<Self> {
        let file = private_file().read(true).write(true).create_new(true).open(path)?;
        let caps = so_far.caps();
        let mut stream = Self { file, caps, total: 0, line_ends: 0 };
        stream.push(so_far.head())?;
        // What is missing between head and tail is missing here too.
        stream.total += so_far.dropped();
        stream.push(&so_far.tail())?;
        stream.line_ends = so_far.line_ends();
        stream.write_front()?;
        Ok(stream)
    }

    /// One that was left, to be read and perhaps to be gone on with. It may have been written by nobody of ours.
    pub fn open(path: &Path, caps: OutputCaps) -> io::Result<Self> {
        let file = private_file().read(true).write(true).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut front = [0; FRONT as usize];
        read_exact_at(&file, &mut front, 0)?;
        let number = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&front[index * 8..][..8]);
            u64::from_le_bytes(bytes)
        };
        let head = usize::try_from(number(2)).ok().filter(|head| *head <= caps.head).ok_or(ErrorKind::InvalidData)?;
        let caps = OutputCaps { head, ..caps };
        Ok(Self { file, caps, total: number(0), line_ends: number(1) })
    }

    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(PIECE) {
            let room = (self.caps.head as u64).saturating_sub(self.total) as usize;
            let (to_head, to_ring) = piece.split_at(room.min(piece.len()));
            write_all_at(&self.file, to_head, FRONT + self.total)?;
            let at = self.total + to_head.len() as u64 - self.caps.head as u64 * u64::from(!to_ring.is_empty());
            self.write_ring(to_ring, at)?;
            self.total += piece.len() as u64;
            self.line_ends += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.write_front()?;
        }
        Ok(())
    }

    fn write_front(&self) -> io::Result<()> {
        let numbers: [u64; NUMBERS] = [self.total, self.line_ends, self.caps.head as u64];
        write_all_at(&self.file, &numbers.map(u64::to_le_bytes).concat(), 0)
    }

    fn ring_bytes(&self) -> u64 {
        (self.caps.tail + PIECE) as u64
    }

    /// `at`: how many bytes came between the head and these.
    fn write_ring(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let (place, ring) = (at % self.ring_bytes(), FRONT + self.caps.head as u64);
        let (first, rest) = bytes.split_at(bytes.len().min((self.ring_bytes() - place) as usize));
        write_all_at(&self.file, first, ring + place)?;
        write_all_at(&self.file, rest, ring)
    }

    /// All that is kept.
    pub fn read(&self) -> io::Result<CappedOutput> {
        let head_bytes = self.total.min(self.caps.head as u64);
        let mut head = vec![0; head_bytes as usize];
        read_exact_at(&self.file, &mut head, FRONT)?;
        let behind = self.total - head_bytes;
        let mut tail = vec![0; behind.min(self.caps.tail as u64) as usize];
        let (place, ring) = ((behind - tail.len() as u64) % self.ring_bytes(), FRONT + self.caps.head as u64);
        let middle = tail.len().min((self.ring_bytes() - place) as usize);
        let (first, rest) = tail.split_at_mut(middle);
        read_exact_at(&self.file, first, ring + place)?;
        read_exact_at(&self.file, rest, ring)?;
        Ok(CappedOutput::restored(self.caps, head, tail, self.total, self.line_ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(caps: OutputCaps, pieces: &[&[u8]]) -> CappedOutput {
        let mut output = CappedOutput::with_lines(caps);
        pieces.iter().for_each(|piece| output.push(piece));
        output
    }

    #[test]
    fn a_file_gives_back_what_memory_has_kept_wherever_it_began() {
        let directory = tempfile::tempdir().unwrap();
        let text: Vec<u8> = (0..400_000_u32).map(|byte| if byte % 7 == 0 { b'\n' } else { byte as u8 }).collect();
        let many = [(0, 0), (10, 7), (0, 7), (7, 0), (1000, 100_000), (100_000, 1000), (500_000, 500_000)];
        for (index, (head, tail)) in many.into_iter().enumerate() {
            let caps = OutputCaps { head, tail };
            for begins_at in [0, 5, 900, 150_000, text.len()] {
                for size in [997, 70_001, 400_000] {
                    let path = directory.path().join(format!("{index}-{begins_at}-{size}"));
                    let mut file = StreamFile::make(&path, &kept(caps, &[&text[..begins_at]])).unwrap();
                    for piece in text[begins_at..].chunks(size) {
                        file.push(piece).unwrap();
                    }
                    let again = StreamFile::open(&path, caps).unwrap().read().unwrap();
                    assert_eq!(again, kept(caps, &[&text]), "{caps:?}, begun at {begins_at}, by {size}");
                    let most = FRONT + (head + tail + PIECE) as u64;
                    assert!(file.file.metadata().unwrap().len() <= most, "{caps:?}");
                }
            }
        }
    }

    #[test]
    fn what_a_writer_had_not_finished_when_it_died_spoils_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (caps, path) = (OutputCaps { head: 10, tail: 1000 }, directory.path().join("stream"));
        let text: Vec<u8> = (0..200_000_u32).map(|byte| byte as u8).collect();
        let before = kept(caps, &[&text]);
        let file = StreamFile::make(&path, &kept(caps, &[])).and_then(|mut file| file.push(&text).map(|()| file));
        let file = file.unwrap();
        file.write_ring(&vec![b'!'; PIECE], file.total - caps.head as u64).unwrap();
        assert_eq!(StreamFile::open(&path, caps).unwrap().read().unwrap(), before);
    }

    #[test]
    fn garbage_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stream");
        for bytes in [&b""[..], b"short", &[0xff; 24], &[0xff; 4096]] {
            std::fs::write(&path, bytes).unwrap();
            let read = StreamFile::open(&path, OutputCaps { head: 10, tail: 10 }).and_then(|file| file.read());
            assert!(read.is_err(), "{bytes:?}");
        }
    }
}
