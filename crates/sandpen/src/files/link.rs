//! Addresses that are good for one file, one way and a short time, for whoever has them.
//!
//! All that an address grants is in it and signed. What cannot be told by the signature, that the sandbox is still there and
//! still its owner's, is looked up when it is used.

use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use sandbox::private::Stamp;
use sandbox::{Error, GuestPath, Owner, PrivateFile, Result, SandboxId};
use serde::Deserialize;
use sha2::Sha256;

use crate::random;

/// An address that got into the wrong hands is of no use soon.
pub const LONGEST: Duration = Duration::from_secs(15 * 60);

/// What is signed begins with this, so that no signature means anything elsewhere.
const PURPOSE: &[u8] = b"sandpen file link 1\n";

/// What an address is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum LinkMethod {
    /// And HEAD.
    #[serde(rename = "GET")]
    Get,
    #[serde(rename = "PUT")]
    Put,
}

impl LinkMethod {
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
        }
    }

    pub fn allows(self, method: &Method) -> bool {
        match self {
            Self::Get => *method == Method::GET || *method == Method::HEAD,
            Self::Put => *method == Method::PUT,
        }
    }
}

impl FromStr for LinkMethod {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "GET" => Ok(Self::Get),
            "PUT" => Ok(Self::Put),
            _ => Err(Error::invalid_input("a link is for GET or PUT")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub method: LinkMethod,
    pub owner: Owner,
    pub sandbox: SandboxId,
    pub path: GuestPath,
    /// Seconds since 1970; not good any more from then on.
    pub expires: u64,
}

impl Grant {
    /// Nothing but the path can hold the end of a line, and the path comes last.
    fn written(&self, key: &KeyId) -> Vec<u8> {
        let Self { method, owner, sandbox, path, expires } = self;
        let mut text = format!("{}\n{}\n{owner}\n{sandbox}\n{expires}\n", key.0, method.as_str()).into_bytes();
        text.extend_from_slice(path.as_bytes());
        text
    }

    fn read(bytes: &[u8]) -> Option<(KeyId, Self)> {
        let mut parts = bytes.splitn(6, |byte| *byte == b'\n');
        let mut text = || std::str::from_utf8(parts.next()?).ok();
        let key = KeyId(text()?.to_owned());
        let (method, owner, sandbox) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?.parse().ok()?);
        let expires = text()?.parse().ok()?;
        let path = parts.next().filter(|path| path.starts_with(b"/"))?;
        let path = GuestPath::resolve(&GuestPath::root(), path).ok()?;
        Some((key, Self { method, owner, sandbox, path, expires }))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyId(String);

#[derive(Clone)]
struct Key {
    id: KeyId,
    secret: [u8; Key::BYTES],
}

impl Key {
    const BYTES: usize = 32;

    fn new() -> Result<Self> {
        let id = random::digits()?;
        Ok(Self { id: KeyId(id[..8].to_owned()), secret: random::bytes()? })
    }

    fn mac(&self, claims: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("keys of any length are taken");
        mac.chain_update(PURPOSE).chain_update(claims)
    }

    fn written(&self) -> String {
        format!("id = \"{}\"\nkey = \"{}\"\n", self.id.0, BASE64_URL_SAFE_NO_PAD.encode(self.secret))
    }

    fn read(text: &str) -> Option<Self> {
        let row: Row = toml::from_str(text).ok()?;
        let secret = BASE64_URL_SAFE_NO_PAD.decode(row.key).ok()?.try_into().ok()?;
        let is_plain = !row.id.is_empty() && row.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_plain.then_some(Self { id: KeyId(row.id), secret })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    key: String,
}

/// Where the key is kept. One that is removed is made anew, and what the one before has signed is good for nothing.
#[derive(Clone, Debug)]
pub struct KeyFile(PrivateFile);

impl KeyFile {
    pub fn of_state_directory(directory: &Path) -> Self {
        Self(PrivateFile::new(directory.join("links.key")))
    }

    /// Another key, from now on. What the one before has signed is good for nothing.
    pub fn rotate(&self) -> Result<()> {
        let key = Key::new()?;
        self.0.change(|_| Ok((key.written(), ())))
    }

    fn read_or_make(&self) -> Result<Key> {
        let wrong = || {
            Error::invalid_input(format!("{} is not a key of links", self.0.path().display()))
                .with_hint("make another with `sandpen links revoke`")
        };
        if let Some(text) = self.0.read_if_there()? {
            return Key::read(&text).ok_or_else(wrong);
        }
        self.0.change(|text| match text {
            // Another process was faster.
            Some(text) => Key::read(&text).map(|key| (text, key)).ok_or_else(wrong),
            None => Key::new().map(|key| (key.written(), key)),
        })
    }
}

/// Signs and reads addresses by the key of the file, as it is at this moment.
pub struct Signer {
    file: KeyFile,
    read: Mutex<Option<(Stamp, Key)>>,
}

impl Signer {
    pub fn new(file: KeyFile) -> Self {
        Self { file, read: Mutex::new(None) }
    }

    /// What stands for the grant in an address.
    pub fn sign(&self, grant: &Grant) -> Result<String> {
        let key = self.key()?;
        let claims = grant.written(&key.id);
        let mac = key.mac(&claims).finalize().into_bytes();
        Ok(format!("{}.{}", BASE64_URL_SAFE_NO_PAD.encode(&claims), BASE64_URL_SAFE_NO_PAD.encode(mac)))
    }

    /// What was granted, if it was and still is. Nothing of an address is believed, or looked at, before its signature.
    pub fn read(&self, text: &str, now: SystemTime) -> Result<Option<Grant>> {
        let key = self.key()?;
        Ok(granted(&key, text, now))
    }

    fn key(&self) -> Result<Key> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.file.0.stamp()?;
        if let (Some((known, key)), Some(stamp)) = (&*read, stamp)
            && *known == stamp
        {
            return Ok(key.clone());
        }
        let key = self.file.read_or_make()?;
        *read = self.file.0.stamp()?.map(|stamp| (stamp, key.clone()));
        Ok(key)
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("file", &self.file).finish_non_exhaustive()
    }
}

fn granted(key: &Key, text: &str, now: SystemTime) -> Option<Grant> {
    let (claims, signature) = text.split_once('.')?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
    key.mac(&claims).verify_slice(&signature).ok()?;
    let (id, grant) = Grant::read(&claims)?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    (id == key.id && now < grant.expires).then_some(grant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    fn grant() -> Grant {
        Grant {
            method: LinkMethod::Get,
            owner: "alice".parse().unwrap(),
            sandbox: "sb-7k2m9x4bqhtw3ecd".parse().unwrap(),
            path: GuestPath::workspace().join(b"a\n\xff.txt").unwrap(),
            expires: 1000,
        }
    }

    fn signer() -> (tempfile::TempDir, Signer) {
        let directory = tempfile::tempdir().unwrap();
        let signer = Signer::new(KeyFile::of_state_directory(directory.path()));
        (directory, signer)
    }

    #[test]
    fn a_grant_is_read_as_it_was_signed_until_it_expires() {
        let (_directory, signer) = signer();
        let text = signer.sign(&grant()).unwrap();
        let at = |seconds| signer.read(&text, time::moment(seconds)).unwrap();
        assert_eq!(at(0), Some(grant()));
        assert_eq!(at(999), Some(grant()));
        assert_eq!(at(1000), None);
    }

    #[test]
    fn whatever_is_changed_is_refused() {
        let (_directory, signer) = signer();
        let text = signer.sign(&grant()).unwrap();
        let now = time::moment(0);
        for at in 0..text.len() {
            for bit in 0..7 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let changed = String::from_utf8(bytes).unwrap();
                assert_eq!(signer.read(&changed, now).unwrap(), None, "bit {bit} of {at}");
            }
        }
        for changed in
            [String::new(), ".".to_owned(), text[1..].to_owned(), format!("{text}="), text.replace('.', "..")]
        {
            assert_eq!(signer.read(&changed, now).unwrap(), None, "{changed}");
        }
    }

    #[test]
    fn another_key_is_another_signature() {
        let (directory, signer) = signer();
        let file = KeyFile::of_state_directory(directory.path());
        let now = time::moment(0);
        let first = signer.sign(&grant()).unwrap();
        file.rotate().unwrap();
        assert_eq!(signer.read(&first, now).unwrap(), None);
        let second = signer.sign(&grant()).unwrap();
        std::fs::remove_file(file.0.path()).unwrap();
        assert_eq!(signer.read(&second, now).unwrap(), None);
        let third = signer.sign(&grant()).unwrap();
        assert_eq!(
            Signer::new(file.clone()).read(&third, now).unwrap(),
            Some(grant()),
            "it is kept for the next process"
        );
        std::fs::write(file.0.path(), "nonsense").unwrap();
        assert!(signer.sign(&grant()).is_err());
        assert!(signer.read(&third, now).is_err());
    }

    #[test]
    fn a_link_is_good_for_one_way() {
        assert!(LinkMethod::Get.allows(&Method::HEAD) && LinkMethod::Get.allows(&Method::GET));
        assert!(!LinkMethod::Get.allows(&Method::PUT) && !LinkMethod::Put.allows(&Method::GET));
        assert!(!LinkMethod::Put.allows(&Method::HEAD) && LinkMethod::Put.allows(&Method::PUT));
    }
}
