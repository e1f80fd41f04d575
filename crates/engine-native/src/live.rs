//! One live sandbox as the server holds it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egress::{Account, Door};
use rustix::process::Signal;
use sandbox::{
    Environment, Error, ExecRequest, GuestPath, HostRule, Layer, Limits, Network, Owner, Persistence, Result, Role,
    SandboxId, SandboxName, SandboxSpec, SecretName,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, RwLock, watch};

use crate::ahead::Waiting;
use crate::base::Base;
use crate::cgroup::Meter;
use crate::channel::{Channel, has_news};
use crate::client::Fate;
use crate::history::History;
use crate::ports::Sockets;
use crate::skeleton::RootLayout;
use crate::syscall;
use crate::wire::{FromInit, ToInit};

/// What is needed to use a sandbox; for a persistent one it is also on disk, for the next process.
#[derive(Clone, Debug)]
pub struct Description {
    pub id: SandboxId,
    pub owner: Owner,
    pub name: Option<SandboxName>,
    pub persistence: Persistence,
    /// The one that is in force. A builder is never recorded.
    pub role: Role,
    pub limits: Limits,
    pub walls: BTreeSet<Layer>,
    /// Every exec starts from these.
    pub environment: Environment,
    pub work_directory: GuestPath,
    pub groups: Vec<PathBuf>,
    pub socket: Option<PathBuf>,
    pub network: Network,
    pub secrets: BTreeSet<SecretName>,
    /// What has some ends with the process that made it.
    pub private_hosts: Vec<HostRule>,
    /// `None` in records of versions that did not know.
    pub base: Option<Base>,
    /// What the gateway of the next process needs.
    pub keepsake: Option<String>,
    /// For how long a persistent one may be unused.
    pub idle: Duration,
    /// How many descriptors keep its image and what is attached.
    pub holds: usize,
    /// What it was built from, so that it can be built again. `None` in records of versions that did not know.
    pub root: Option<RootLayout>,
    /// At the moment when it was made or found; [`Live::history`] knows better.
    pub history: History,
}

#[derive(Debug)]
pub struct Live {
    pub description: Description,
    pub meter: Meter,
    pub channel: Channel,
    /// Stands for process 1, and becomes readable when it has ended and everything inside with it.
    process: AsyncFd<OwnedFd>,
    /// Tells when our launcher has cleared everything away; `None` for one that another process made.
    fate: Option<watch::Receiver<Fate>>,
    /// Questions whose answers come on the common channel, one at a time.
    asking: tokio::sync::Mutex<()>,
    /// Its way out, while this process serves it. Empty for one without a network, and for one that another process
    /// made and that nobody here has used yet.
    pub door: OnceCell<Door>,
    /// Of the sandbox in whose place it is.
    pub account: Option<Account>,
    history: Mutex<History>,
    /// Connections to what programs listen on.
    pub sockets: Sockets,
    /// What was begun in it ahead, as long as nothing else has happened in it.
    waiting: Mutex<Option<Waiting>>,
    /// Held by whoever starts something in it, and alone by whoever puts another process 1 in the place of this one. The
    /// successor has the same.
    pub entrance: Arc<RwLock<()>>,
    /// Held by whoever ends it or replaces its process 1.
    pub changing: Arc<tokio::sync::Mutex<()>>,
}

impl Live {
    pub fn new(
        description: Description,
        meter: Meter,
        channel: Channel,
        process: OwnedFd,
        fate: Option<watch::Receiver<Fate>>,
    ) -> io::Result<Self> {
        let process = syscall::watch_readable(process)?;
        let history = Mutex::new(description.history.clone());
        Ok(Self {
            description,
            meter,
            channel,
            process,
            fate,
            asking: tokio::sync::Mutex::new(()),
            door: OnceCell::new(),
            account: None,
            history,
            sockets: Sockets::default(),
            waiting: Mutex::default(),
            entrance: Arc::default(),
            changing: Arc::default(),
        })
    }

    /// Put it in the place of another: whoever waits for that one goes on here.
    pub fn in_place_of(mut self, other: &Self) -> Self {
        self.entrance = other.entrance.clone();
        self.changing = other.changing.clone();
        self.account = other.account();
        self
    }

    /// What was used of the network, if anything ever could be.
    pub fn account(&self) -> Option<Account> {
        self.door.get().map(Door::account).or_else(|| self.account.clone())
    }

    pub fn history(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_history(&self, history: History) {
        *self.history.lock().unwrap_or_else(PoisonError::into_inner) = history;
    }

    /// A spare becomes somebody's.
    pub fn for_owner(mut self, id: &SandboxId, spec: &SandboxSpec, environment: Environment) -> Self {
        self.description.id = id.clone();
        self.description.owner = spec.owner.clone();
        self.description.environment = environment;
        self.description.network = spec.network.clone();
        self.description.secrets = spec.secrets.clone();
        self
    }

    /// Stands for process 1.
    pub fn process(&self) -> BorrowedFd<'_> {
        self.process.get_ref().as_fd()
    }

    pub fn id(&self) -> &SandboxId {
        &self.description.id
    }

    /// Where a command starts.
    pub fn work_directory<'a>(&'a self, request: &'a ExecRequest) -> &'a GuestPath {
        request.work_directory.as_ref().unwrap_or(&self.description.work_directory)
    }

    /// Wait until nothing of it runs any more.
    pub async fn ended(&self) {
        // The only error is a runtime that shuts down.
        let _ = self.process.readable().await;
    }

    /// Wait until its launcher has cleared its groups away; `false` when that is for us to do.
    pub async fn cleared_by_launcher(&self) -> bool {
        let Some(fate) = &self.fate else { return false };
        let settled = fate.clone().wait_for(|fate| *fate != Fate::Alive).await.map(|fate| fate.clone());
        matches!(settled, Ok(Fate::Gone | Fate::NotCreated(_)))
    }

    pub fn has_ended(&self) -> bool {
        has_news(self.process.get_ref())
    }

    /// Whether a spare is of no use: it has ended, or what was begun in it has.
    pub fn is_spent(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_ended() || waiting.as_ref().is_some_and(Waiting::has_ended)
    }

    pub fn take_waiting(&self) -> Option<Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn set_waiting(&self, waiting: Waiting) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiting);
    }

    pub fn kill(&self) {
        // It may have ended.
        let _ = rustix::process::pidfd_send_signal(self.process.as_fd(), Signal::KILL);
    }

    pub async fn ask(&self, question: &ToInit) -> Result<FromInit> {
        let _turn = self.asking.lock().await;
        let gone = |cause: io::Error| not_found(self.id()).with_cause(cause);
        self.channel.send(question, &[]).await.map_err(gone)?;
        match self.channel.receive().await.map_err(gone)? {
            Some((answer, _)) => Ok(answer),
            None => Err(not_found(self.id())),
        }
    }
}

pub fn not_found(id: &SandboxId) -> Error {
    Error::not_found(format!("there is no sandbox {id}"))
        .with_hint("it may have been stopped or have expired; create another")
}
