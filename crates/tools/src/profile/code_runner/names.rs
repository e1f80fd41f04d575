//! What conversations and their files are called: on the host, in addresses, and in paths of requests.

use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sandbox::{Error, Result};
use sha2::{Digest, Sha256};

/// All but what never means anything else in an address.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The name of a conversation's directory, which is all that protects its files from others: nobody guesses it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Directory(String);

impl Directory {
    const WHOLE: usize = 64;
    /// As the older server's last version had them.
    const SHORT: usize = 16;

    /// As the older server made it, so that its files and links stay good.
    pub fn of(conversation: &[u8], secret: &[u8]) -> Self {
        let digest = Sha256::new().chain_update(conversation).chain_update(secret).finalize();
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    #[must_use]
    pub fn shortened(&self) -> Self {
        Self(self.0[..Self::SHORT].to_owned())
    }

    pub fn is_short(&self) -> bool {
        self.0.len() == Self::SHORT
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Directory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if !matches!(text.len(), Self::WHOLE | Self::SHORT) || !text.bytes().all(is_digit) {
            return Err(Error::invalid_input("a directory has 64 or 16 hexadecimal digits for a name"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// One plain name: it leads nowhere but to what has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileName(Vec<u8>);

impl FileName {
    pub const MAX_BYTES: usize = 255;

    pub fn new(name: impl Into<Vec<u8>>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(Error::invalid_input("a file has a plain name, without directories"));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::invalid_input(format!("a name can have {} bytes at most", Self::MAX_BYTES)));
        }
        Ok(Self(name))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As far as it is text.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// How files are found by those who were given their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// By downloads below this, which has no slash at its end.
    Http(String),
    /// As resources of the same server.
    Resources,
}

impl Links {
    pub const SCHEME: &'static str = "files://";

    pub fn directory(&self, directory: &Directory) -> String {
        match self {
            Self::Http(base) => format!("{base}/files/{}", directory.as_str()),
            Self::Resources => format!("{}{}", Self::SCHEME, directory.as_str()),
        }
    }

    pub fn file(&self, directory: &Directory, name: &FileName) -> String {
        format!("{}/{}", self.directory(directory), percent_encode(name.as_bytes(), ESCAPED))
    }
}

/// A name as a header of HTTP can have it.
pub fn attachment_name(name: &[u8]) -> String {
    percent_encode(name, ESCAPED).to_string()
}

/// A file as a request names it: a directory, and what is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub directory: Directory,
    /// Never empty.
    pub path: Vec<FileName>,
}

/// Why a request names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    Malformed,
    /// It would lead out of its directory.
    Outside,
}

/// What `DIRECTORY/NAME` means, escaped as in an address. It is decoded once, and before anything is decided.
pub fn locate(path: &str) -> Result<Located, Misplaced> {
    let decoded: Vec<u8> = percent_decode_str(path).collect();
    let mut parts = decoded.split(|byte| *byte == b'/');
    if parts.clone().any(|part| part == b"..") {
        return Err(Misplaced::Outside);
    }
    let directory = parts.next().and_then(|part| std::str::from_utf8(part).ok()).unwrap_or_default();
    let directory = directory.parse().map_err(|_| Misplaced::Malformed)?;
    let path: Vec<FileName> =
        parts.map(|part| FileName::new(part).map_err(|_| Misplaced::Malformed)).collect::<Result<_, _>>()?;
    if path.is_empty() {
        return Err(Misplaced::Malformed);
    }
    Ok(Located { directory, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> FileName {
        FileName::new(text).unwrap()
    }

    /// `printf conv-1s3cret | sha256sum`
    #[test]
    fn a_directory_is_called_as_the_older_server_called_it() {
        let directory = Directory::of(b"conv-1", b"s3cret");
        assert_eq!(directory.as_str(), "82b943e721e023a0c405f393be49be02aea9f611c49007ef3448cb77d7d1fb88");
        assert_eq!(directory.shortened().as_str(), &directory.as_str()[..16]);
        assert!(directory.shortened().is_short() && !directory.is_short());
        assert_eq!(Directory::of(b"conv-1s", b"3cret"), directory, "there is nothing between the two");
    }

    #[test]
    fn a_name_is_one_plain_name() {
        for text in ["a", "a b.txt", "..a", "a..", "...", "ä", "a\\b", "-", "index.html"] {
            assert!(FileName::new(text).is_ok(), "{text:?}");
        }
        for text in ["", ".", "..", "a/b", "/a", "../a", "a/..", "a\0b", &"x".repeat(256)] {
            assert!(FileName::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_address_leads_back_to_its_file() {
        let directory = Directory::of(b"a", b"b");
        for text in ["plot.png", "a b#c?.txt", "100%.csv", "ä&<>.txt", "%2e%2e", "a\\b", "\n"] {
            let link = Links::Resources.file(&directory, &name(text));
            assert!(link.bytes().all(|byte| byte.is_ascii_graphic()), "{link}");
            let located = locate(link.strip_prefix(Links::SCHEME).unwrap()).unwrap();
            assert_eq!(located, Located { directory: directory.clone(), path: vec![name(text)] });
        }
        let link = Links::Http("https://x.example".to_owned()).file(&directory, &name("a b"));
        assert_eq!(link, format!("https://x.example/files/{}/a%20b", directory.as_str()));
    }

    #[test]
    fn no_path_leads_out_of_its_directory() {
        let long = "a".repeat(64);
        for (path, expected) in [
            ("{}/..", Misplaced::Outside),
            ("{}/../x", Misplaced::Outside),
            ("{}/%2e%2e/x", Misplaced::Outside),
            ("{}/%2e%2E%2fx", Misplaced::Outside),
            ("{}%2f..%2fx", Misplaced::Outside),
            ("../{}/x", Misplaced::Outside),
            ("{}", Misplaced::Malformed),
            ("{}/", Misplaced::Malformed),
            ("{}//x", Misplaced::Malformed),
            ("{}/./x", Misplaced::Malformed),
            ("{}/a%00b", Misplaced::Malformed),
            ("{}0/x", Misplaced::Malformed),
            ("short/x", Misplaced::Malformed),
            ("", Misplaced::Malformed),
        ] {
            assert_eq!(locate(&path.replace("{}", &long)), Err(expected), "{path}");
        }
        assert_eq!(locate(&format!("{long}/%252e%252e")).unwrap().path, [name("%2e%2e")], "it is decoded once");
        assert_eq!(locate(&format!("{long}/a/b")).unwrap().path, [name("a"), name("b")]);
        assert!(locate(&format!("{}/x", long.to_uppercase())).is_err());
    }
}
