//! SHA-256 as a name: what a tree was made from decides where it lies.

use std::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Of everything that is left in a reader.
    pub fn of_reader(mut reader: impl Read) -> io::Result<Self> {
        let mut hashing = Hashing::new(&mut reader);
        io::copy(&mut hashing, &mut io::sink())?;
        Ok(hashing.finish())
    }

    /// The form in file names: `sha256-` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256-").filter(|digits| digits.len() == 64 && digits.is_ascii())?;
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Self(bytes)).filter(|digest| digest.to_string() == text)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256-")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Digests whatever is read through it.
pub struct Hashing<R> {
    inner: R,
    state: Sha256,
}

impl<R: Read> Hashing<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, state: Sha256::new() }
    }

    pub fn finish(self) -> Digest {
        Digest(self.state.finalize().into())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.state.update(&buffer[..count]);
        Ok(count)
    }
}

impl<R> fmt::Debug for Hashing<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashing").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_only_as_it_is_written() {
        let digest = Digest::of(b"abc");
        let text = digest.to_string();
        assert_eq!(text, "sha256-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::parse(&text), Some(digest));
        assert_eq!(Digest::of_reader(&b"abc"[..]).unwrap(), digest);
        for wrong in [text.to_uppercase(), text.replace('b', "B"), text[..70].to_owned(), text + "0"] {
            assert_eq!(Digest::parse(&wrong), None, "{wrong}");
        }
    }
}
