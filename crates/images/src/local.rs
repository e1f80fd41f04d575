//! Names of images that were made here and are in no registry: hosts that never are anywhere (RFC 6761, 6.4), one for each
//! use.

use crate::digest::Digest;
use crate::error::Result;
use crate::reference::Reference;

/// What an image that was made here is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Saved by somebody, who alone can ask for it.
    Saved,
    /// A tree that was made once for many: packages, or the layer of a build step.
    Tree,
    /// On its way from one sandbox to another.
    Fork,
    /// Built to be compared.
    Export,
}

impl Local {
    pub const ALL: [Self; 4] = [Self::Saved, Self::Tree, Self::Fork, Self::Export];

    /// The use that a name tells. Of a name that only looks like one of ours, with a port for example, it is none.
    pub fn of(reference: &Reference) -> Option<Self> {
        Self::ALL.into_iter().find(|local| local.host() == reference.registry())
    }

    /// The image of this use and of this name.
    pub fn reference(self, name: &str) -> Result<Reference> {
        format!("{}/{name}:latest", self.host()).parse()
    }

    /// What an image of this use is called.
    pub fn name(self, reference: &Reference) -> Option<&str> {
        (Self::of(reference) == Some(self)).then(|| reference.repository())
    }

    fn host(self) -> &'static str {
        match self {
            Self::Saved => "saved.sandpen.invalid",
            Self::Tree => "trees.sandpen.invalid",
            Self::Fork => "forks.sandpen.invalid",
            Self::Export => "exports.sandpen.invalid",
        }
    }
}

/// What an owner has saved under a name.
pub fn saved(owner: &str, name: &str) -> Result<Reference> {
    Local::Saved.reference(&format!("{}/{name}", space_of(owner)))
}

/// The name under which this owner has saved it.
pub fn saved_by<'a>(owner: &str, reference: &'a Reference) -> Option<&'a str> {
    Local::Saved.name(reference)?.strip_prefix(&*space_of(owner))?.strip_prefix('/')
}

/// The name under which somebody has saved it.
pub fn saved_by_anybody(reference: &Reference) -> Option<&str> {
    Local::Saved.name(reference)?.split_once('/').map(|(_, name)| name)
}

/// An owner's name may have any characters, and may be told to nobody.
fn space_of(owner: &str) -> String {
    Digest::of(owner.as_bytes()).digits()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_found_by_who_saved_it() {
        let own = saved("somebody", "lab").unwrap();
        assert_eq!(
            own.to_string(),
            format!("saved.sandpen.invalid/{}/lab:latest", &Digest::of(b"somebody").digits()[..32])
        );
        assert_eq!((saved_by("somebody", &own), saved_by_anybody(&own)), (Some("lab"), Some("lab")));
        assert_eq!(saved_by("somebody else", &own), None);
        let elsewhere = own.to_string().replace("saved.sandpen", "saved.example");
        assert_eq!(saved_by("somebody", &elsewhere.parse().unwrap()), None);
    }

    #[test]
    fn every_use_has_a_place_that_no_registry_has() {
        for local in Local::ALL {
            let reference = local.reference("a/b").unwrap();
            assert!(reference.is_local());
            assert_eq!((Local::of(&reference), local.name(&reference)), (Some(local), Some("a/b")));
        }
        for other in ["debian", "saved.sandpen.invalid:80/a/b", "sandpen.invalid/a"] {
            assert_eq!(Local::of(&other.parse().unwrap()), None, "{other}");
        }
    }
}
