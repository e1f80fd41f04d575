//! Reads zstd: frame after frame, those that are to be skipped too.
//!
//! The decoder is written in Rust. The other one is faster, and C that reads what strangers send.

use std::fmt;
use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// How far back a frame may refer, which is held in memory: as much as every decoder takes without being told.
const LARGEST_WINDOW: u64 = 128 << 20;

pub struct Decoder<R> {
    source: R,
    frames: FrameDecoder,
    inside: bool,
}

impl<R: BufRead> Decoder<R> {
    pub fn new(source: R) -> Self {
        let mut frames = FrameDecoder::new();
        frames.set_max_window_size(LARGEST_WINDOW);
        Self { source, frames, inside: false }
    }

    /// Goes to the next frame; false at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.frames.reset(&mut self.source) {
                Ok(()) => {
                    self.inside = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(damaged(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.inside && !self.next_frame()? {
                return Ok(0);
            }
            while self.frames.can_collect() == 0 && !self.frames.is_finished() {
                let some = BlockDecodingStrategy::UptoBytes(buffer.len());
                self.frames.decode_blocks(&mut self.source, some).map_err(damaged)?;
            }
            let count = self.frames.read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
            self.inside = false;
        }
    }
}

impl<R> fmt::Debug for Decoder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

fn damaged(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    #[test]
    fn frames_follow_each_other_and_some_are_skipped() {
        let text = "all work and no play ".repeat(50_000);
        let mut bytes = compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
        bytes.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        bytes.extend(compress_to_vec(&b"the end"[..], CompressionLevel::Fastest));
        let mut read = String::new();
        Decoder::new(&bytes[..]).read_to_string(&mut read).unwrap();
        assert_eq!(read, text + "the end");
        for length in [1, bytes.len() / 2, bytes.len() - 1] {
            assert!(Decoder::new(&bytes[..length]).read_to_end(&mut Vec::new()).is_err(), "cut at {length}");
        }
    }
}
