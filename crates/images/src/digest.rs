//! SHA-256 as a name: what a tree was made from decides where it lies.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// The form in manifests and references: `sha256:` and 64 lower-case digits. Other algorithms are not known, and a
    /// text that merely looks like a path is none.
    pub fn parse_qualified(text: &str) -> Option<Self> {
        Self::parse(&format!("sha256-{}", text.strip_prefix("sha256:")?))
    }

    pub fn qualified(self) -> String {
        self.to_string().replacen('-', ":", 1)
    }

    /// Without the name of the algorithm.
    pub fn digits(self) -> String {
        self.to_string()["sha256-".len()..].to_owned()
    }

    /// The digits that are enough to tell a few images apart.
    pub fn short(self) -> String {
        self.digits()[..12].to_owned()
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.qualified())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse_qualified(&text).ok_or_else(|| de::Error::custom("a digest that is not sha256: and 64 digits"))
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

/// Digests what is given to it bit by bit.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

/// Digests whatever is read through it.
pub struct Hashing<R> {
    inner: R,
    state: Hasher,
}

impl<R: Read> Hashing<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, state: Hasher::default() }
    }

    pub fn finish(self) -> Digest {
        self.state.finish()
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

    #[test]
    fn a_digest_in_a_manifest_names_one_algorithm_and_no_path() {
        let digest = Digest::of(b"abc");
        assert_eq!(Digest::parse_qualified(&digest.qualified()), Some(digest));
        let digits = &digest.to_string()[7..];
        for wrong in [
            digits.to_owned(),
            digest.to_string(),
            format!("sha512:{digits}"),
            format!("sha256:{}", &digits[..63]),
            format!("sha256:../{}", &digits[3..]),
            "sha256:../../../../../../../../../../../../../../../../../../etc/passwd".to_owned(),
        ] {
            assert_eq!(Digest::parse_qualified(&wrong), None, "{wrong}");
        }
    }
}
