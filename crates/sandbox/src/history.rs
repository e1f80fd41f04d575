//! What was done in a sandbox through the service, so that it can be done again elsewhere.
//!
//! It is bounded, the oldest goes first, and it says so. What programs did to files is not in it: engines that can tell have
//! [`Checkpoints::changes`].
//!
//! [`Checkpoints::changes`]: crate::Checkpoints::changes

use std::collections::BTreeSet;

use crate::exec::ExecStatus;
use crate::image::Image;
use crate::path::GuestPath;
use crate::spec::Environment;
use crate::tree::Attachment;

/// A sandbox from its start to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// What it started from. A fork started where the sandbox did that it was forked from.
    pub image: Image,
    pub attachments: Vec<Attachment>,
    pub environment: KnownEnvironment,
    pub work_directory: GuestPath,
    /// In the order in which they began. What a restore has undone is not among them.
    pub entries: Vec<HistoryEntry>,
    /// Entries before these that are no longer kept.
    pub dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// In nanoseconds since 1970, by the clock that also says when files changed, which may be some milliseconds behind.
    pub started_ns: i128,
    /// `None` while it goes on, and when nobody saw its end.
    pub ended_ns: Option<i128>,
    pub deed: Deed,
}

/// One thing that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Command {
        argv: Vec<String>,
        /// What it was given beyond the sandbox's own.
        environment: KnownEnvironment,
        work_directory: GuestPath,
        /// `None` as with `ended_ns`.
        status: Option<ExecStatus>,
    },
    /// The commands that a language needs to run it are not listed besides.
    Code {
        language: String,
        /// `None` when it was too long to be kept.
        code: Option<Vec<u8>>,
        arguments: Vec<String>,
        environment: KnownEnvironment,
        work_directory: GuestPath,
        status: Option<ExecStatus>,
    },
    FileWritten {
        path: GuestPath,
        mode: u32,
        bytes: u64,
    },
    /// Files that came as an archive, below `path`.
    Unpacked {
        path: GuestPath,
        bytes: u64,
    },
    DirectoryMade {
        path: GuestPath,
    },
    Removed {
        path: GuestPath,
    },
    Renamed {
        from: GuestPath,
        to: GuestPath,
    },
}

/// Variables as far as they may be told: of those that the operator passes through, names alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownEnvironment {
    pub values: Environment,
    pub withheld: BTreeSet<String>,
}

impl KnownEnvironment {
    pub fn new(environment: &Environment, withheld: &BTreeSet<String>) -> Self {
        let mut known = Self::default();
        for (name, value) in environment.iter() {
            // The whole was within bounds, so a part of it is.
            if withheld.contains(name) || known.values.insert(name, value).is_err() {
                known.withheld.insert(name.to_owned());
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_has_a_name_and_no_value() {
        let mut environment = Environment::default();
        environment.insert("LANG", "C").unwrap();
        environment.insert("TOKEN", "hush").unwrap();
        let known = KnownEnvironment::new(&environment, &["TOKEN".to_owned(), "OTHER".to_owned()].into());
        assert_eq!(known.values.iter().collect::<Vec<_>>(), [("LANG", "C")]);
        assert_eq!(known.withheld, ["TOKEN".to_owned()].into());
        assert!(!format!("{known:?}").contains("hush"));
    }
}
