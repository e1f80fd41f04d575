//! Which image a name means: one small file each, replaced as a whole.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::Store;
use crate::confined::Name;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::Descriptor;
use crate::platform::Platform;
use crate::reference::Reference;
use crate::trees::constant;

const UNFINISHED: &str = ".new-";

/// A name and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub reference: Reference,
    pub manifest: Descriptor,
    /// The list of several platforms from which this one was chosen.
    pub index: Option<Digest>,
    pub platform: Platform,
    /// Seconds since 1970.
    pub added: u64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    reference: String,
    manifest: Descriptor,
    index: Option<Digest>,
    platform: Platform,
    added: u64,
}

impl Store {
    /// All names, in their order.
    pub fn names(&self) -> Result<Vec<Named>> {
        let files = self.names.names().map_err(Error::io("listing names"))?;
        let mut found: Vec<Named> =
            files.iter().filter(|file| file.ends_with(b".json")).filter_map(|file| self.read_name(file)).collect();
        found.sort_by(|one, other| one.reference.cmp(&other.reference));
        Ok(found)
    }

    /// What a name means here. One with a digest means that image under whichever tag of the repository it came.
    pub fn find(&self, reference: &Reference) -> Result<Option<Named>> {
        if let Some(named) = self.read_name(file_name(reference).as_bytes()) {
            return Ok(Some(named));
        }
        let Some(digest) = reference.digest() else { return Ok(None) };
        Ok(self.names()?.into_iter().find(|named| {
            named.reference.registry() == reference.registry()
                && named.reference.repository() == reference.repository()
                && (named.manifest.digest == digest || named.index == Some(digest))
        }))
    }

    /// By a name, or by the first twelve or more digits of a digest.
    pub fn look_up(&self, text: &str) -> Result<Named> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() >= 12 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            let is_meant = |named: &Named| named.manifest.digest.digits().starts_with(digits);
            if let Some(named) = self.names()?.into_iter().find(is_meant) {
                return Ok(named);
            }
        }
        let reference: Reference = text.parse()?;
        self.find(&reference)?
            .ok_or_else(|| Error::NotFound(format!("there is no image {:?} here", reference.familiar())))
    }

    pub(super) fn write_name(&self, named: &Named) -> Result<()> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let record = Record {
            reference: named.reference.to_string(),
            manifest: named.manifest.clone(),
            index: named.index,
            platform: named.platform.clone(),
            added: named.added,
        };
        let bytes = serde_json::to_vec(&record).expect("a record holds nothing that JSON lacks");
        let doing = || Error::io(format!("naming {}", named.reference));
        let temporary = format!("{UNFINISHED}{}-{}", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
        self.names.remove_tree(constant(&temporary)).map_err(doing())?;
        let mut file = self.names.create_file(constant(&temporary), 0o600).map_err(doing())?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(doing())?;
        rustix::fs::renameat(&self.names, &*temporary, &self.names, file_name(&named.reference))
            .and_then(|()| rustix::fs::fsync(&self.names))
            .map_err(|error| doing()(error.into()))
    }

    /// Removes names that were not finished. Nobody may be adding to the store.
    pub(super) fn sweep_names(&self) -> Result<()> {
        for bytes in self.names.names().map_err(Error::io("listing names"))? {
            if let Some(name) = Name::new(&bytes).filter(|_| bytes.starts_with(UNFINISHED.as_bytes())) {
                self.names.remove_tree(name).map_err(Error::io("removing an unfinished name"))?;
            }
        }
        Ok(())
    }

    /// Whether it was there. The image itself goes when it is collected.
    pub fn remove_name(&self, reference: &Reference) -> Result<bool> {
        match self.names.remove_file(constant(&file_name(reference))) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io(format!("removing the name {reference}"))(error)),
        }
    }

    /// A record that cannot be read is none: what it named is collected, and a pull writes it anew.
    fn read_name(&self, file: &[u8]) -> Option<Named> {
        let mut text = Vec::new();
        self.names.open_file(Name::new(file)?).ok()?.take(1 << 16).read_to_end(&mut text).ok()?;
        let Record { reference, manifest, index, platform, added } = serde_json::from_slice(&text).ok()?;
        Some(Named { reference: reference.parse().ok()?, manifest, index, platform, added })
    }
}

fn file_name(reference: &Reference) -> String {
    format!("{}.json", Digest::of(reference.to_string().as_bytes()))
}
