//! Sandboxes made ahead of demand: built, empty, nobody's yet, and used once.
//!
//! Behind the same walls as any other, because they are made by the same plan. What may differ between two callers is not
//! in the plan: owner, id, environment and lifetime belong to the server's side, and a network is given to a sandbox that
//! stands. Whatever is in it is the key, and so is what was begun in them.

use sandbox::engine::spares::{self, Spares};
use sandbox::{Limits, Persistence, Role, SandboxSpec};

use crate::ahead::Ahead;
use crate::base::Base;
use crate::layout::Prepared;
use crate::live::Live;
use crate::skeleton::RootLayout;

pub type Pool = Spares<Kind, Live>;

/// All that tells two plans apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    root: RootLayout,
    /// Two images can have the same layers and say something else of themselves.
    base: Base,
    limits: Limits,
    role: Role,
    /// What is begun in it.
    ahead: Option<Ahead>,
}

impl spares::Kind for Kind {
    fn is_heavy(&self) -> bool {
        self.ahead.as_ref().is_some_and(Ahead::has_modules)
    }
}

impl Kind {
    /// `None` for a sandbox that cannot be somebody else's spare: its name is its host name, and a persistent one is
    /// recorded before it is made; builders are too few to be made ahead.
    pub fn of(spec: &SandboxSpec, root: &Prepared, ahead: Option<Ahead>) -> Option<Self> {
        let plain = spec.persistence == Persistence::Ephemeral && spec.name.is_none() && root.role.is_guest();
        let (layout, base) = (root.layout.clone(), root.base.clone());
        plain.then_some(Self { root: layout, base, limits: spec.limits, role: root.role, ahead })
    }
    /// The same with nothing begun in it.
    pub fn empty(&self) -> Self {
        Self { ahead: None, ..self.clone() }
    }

    pub fn ahead(&self) -> Option<&Ahead> {
        self.ahead.as_ref()
    }
}
