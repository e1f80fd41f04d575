//! The name of a record: whose it is and which sandbox's, so that both are asked for at once.

use crate::id::{Owner, SandboxId};
use crate::service::packages;

/// Of a digest that is only to tell owners apart: the record itself says who it is.
const DIGITS: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordName {
    pub id: SandboxId,
    owner: String,
}

impl RecordName {
    pub fn new(owner: &Owner, id: &SandboxId) -> Self {
        Self { id: id.clone(), owner: owner_digits(owner) }
    }

    pub(super) fn of_file(name: &str) -> Option<Self> {
        let (id, owner) = name.strip_suffix(".json")?.split_once('.')?;
        let is_digest = owner.len() == DIGITS && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then_some(Self { id: id.parse().ok()?, owner: owner.to_owned() })
    }

    pub(super) fn file_name(&self) -> String {
        format!("{}.{}.json", self.id, self.owner)
    }

    pub(super) fn may_be_of(&self, owner: &Owner) -> bool {
        self.owner == owner_digits(owner)
    }
}

/// Tells owners apart in names of files.
pub(crate) fn owner_digits(owner: &Owner) -> String {
    let mut digits = packages::digest([owner.as_str()]);
    digits.truncate(DIGITS);
    digits
}
