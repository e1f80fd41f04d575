//! Containers made ahead of demand: running, empty, nobody's yet, and used once, so that a run pays neither for their making
//! nor for their start.
//!
//! Behind the same walls as any other, because they are made by the same translation. What may differ between two callers is
//! not in it: owner, id, environment and idle time belong to the server's side. Whatever is in it is the key. A spare is
//! ephemeral, so it ends with us however we end.

use sandbox::engine::spares::{self, Spares};
use sandbox::{GuestPath, Limits, Persistence, SandboxSpec};

use crate::attach::Attached;
use crate::image::Facts;
use crate::live::Live;
use crate::record::{Description, User};

pub type Pool = Spares<Kind, Live>;

/// All that tells two containers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    image: Facts,
    limits: Limits,
    user: User,
    work_directory: Option<GuestPath>,
    attachments: Vec<Attached>,
    /// Which one is the server's side too.
    has_network: bool,
}

impl spares::Kind for Kind {}

impl Kind {
    /// `None` for a sandbox that cannot be somebody else's spare: its name is its host name, a persistent one says in its
    /// labels whose it is, one with a total time says there when that is over, and one from a saved image begins with files.
    pub fn of(spec: &SandboxSpec, image: &Facts, description: &Description) -> Option<Self> {
        let is_bare =
            spec.persistence == Persistence::Ephemeral && spec.name.is_none() && spec.lifetime.total.is_none();
        (is_bare && image.trees.is_empty()).then(|| Self {
            image: image.clone(),
            limits: spec.limits,
            user: description.user,
            work_directory: spec.work_directory.clone(),
            attachments: description.attachments.clone(),
            has_network: !spec.network.is_none(),
        })
    }
}
