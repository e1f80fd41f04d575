//! One sandbox of the fake, and the way to it.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Shared;
use super::network::Tried;
use super::tree::{Node, Tree, Writer};
use crate::engine::Made;
use crate::error::{Error, Result};
use crate::exec::ExecLog;
use crate::id::SandboxId;
use crate::spec::{Persistence, Role, SandboxSpec};
use crate::tree::Checkpoint;

#[derive(Debug)]
pub(super) struct FakeSandbox {
    pub spec: SandboxSpec,
    pub made: Made,
    pub engine: u64,
    pub tree: Mutex<Tree>,
    /// All that its image has.
    pub image: Node,
    /// All that it had in its first moment.
    pub start: Node,
    pub checkpoints: Mutex<Vec<(Checkpoint, Node)>>,
    pub gone: watch::Sender<bool>,
    pub deadline: watch::Sender<Option<Instant>>,
    pub processes: AtomicU64,
    pub last_ended: Mutex<Option<Instant>>,
    pub logs: Mutex<Vec<ExecLog>>,
    pub tried: Mutex<Tried>,
    /// Who listens on which port.
    pub listeners: Mutex<HashMap<u16, mpsc::UnboundedSender<DuplexStream>>>,
}

impl FakeSandbox {
    pub fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Whom programs are unless a command says otherwise.
    pub fn user(&self) -> u32 {
        match self.spec.role {
            Role::Guest => 1000,
            // None of its images names anybody.
            Role::ImageUser(_) | Role::Builder => 0,
        }
    }

    /// The tree, to be changed by this user.
    pub fn tree_of(&self, user: u32) -> MutexGuard<'_, Tree> {
        let mut tree = self.tree.lock().unwrap();
        tree.writer = if user == 0 { Writer::Root } else { Writer::User };
        tree
    }
}

/// A way to one sandbox, which may be gone at any moment.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub shared: Arc<Shared>,
    pub engine: u64,
    pub id: SandboxId,
}

impl Reach {
    pub fn sandbox(&self) -> Result<Arc<FakeSandbox>> {
        let sandboxes = self.shared.sandboxes.lock().unwrap();
        match sandboxes.get(&self.id) {
            Some(sandbox) if sandbox.engine == self.engine || sandbox.spec.persistence == Persistence::Persistent => {
                Ok(Arc::clone(sandbox))
            }
            _ => Err(gone()),
        }
    }
}

pub(super) fn gone() -> Error {
    Error::not_found("there is no such sandbox")
}
