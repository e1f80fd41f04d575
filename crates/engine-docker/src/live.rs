//! A sandbox that runs, and our stream to it.

use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use agent::{Connection, Hosted};
use egress::Account;
use sandbox::{Error, ExecRequest, Result, SandboxId};
use tokio::sync::{OnceCell, RwLock};
use tokio::task::{JoinError, JoinHandle};

use crate::Flavour;
use crate::client::Daemon;
use crate::disk::Overflow;
use crate::names::Held;
use crate::network::Outlet;
use crate::record::{self, Description};
use crate::translate::AGENT_PROGRAM;

/// For what a container had said when it ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Live {
    pub description: Description,
    /// As the daemon knows it. A spare keeps the name that it was made under.
    pub container: String,
    pub connection: Connection,
    /// Open while somebody may use its network.
    pub outlet: OnceCell<Outlet>,
    /// What it has used of its network before its stream was lost.
    pub account: Option<Account>,
    /// Held by whoever begins something inside; alone by whoever must see that nothing begins.
    pub turn: RwLock<()>,
    /// Why it was ended by us, if it was for its own doing.
    overflow: OnceLock<Overflow>,
    /// It answers before the daemon has written down that it was started, and must not be taken for one that never was.
    _held: Held,
}

impl Live {
    /// Reach process 1 of a container that runs, and whose own streams are somebody else's or gone.
    pub async fn reach(daemon: &Daemon, container: String, description: Description) -> Result<Self> {
        let bridge: Vec<&str> = [AGENT_PROGRAM].into_iter().chain(Hosted::bridge_arguments()).collect();
        let (reader, writer) = daemon.exec(&container, &bridge).await?;
        let opening = async {
            tokio::select! {
                opened = Connection::open(reader, writer, &description.token) => opened,
                () = daemon.end_of(&container) => Err(ended_early()),
            }
        };
        let connection = daemon.unless_hanging(opening).await?;
        Ok(Self::met(daemon, container, description, connection, None))
    }

    /// Start a container and meet its process 1 over the container's own streams. Process 1 answers before the daemon has
    /// written down that it runs, and is not kept waiting for that.
    pub async fn start(daemon: &Daemon, container: String, description: Description) -> Result<Self> {
        let (reader, writer) = daemon.attach(&container).await?;
        let (starter, name) = (daemon.clone(), container.clone());
        let mut starting = tokio::spawn(async move { starter.start(&name).await });
        let token = description.token.clone();
        let mut opening = pin!(Connection::open(reader, writer, &token));
        let (connection, starting) = tokio::select! {
            opened = &mut opening => match opened {
                Ok(connection) => (connection, Some(starting)),
                // A container that could not be started says nothing, and the daemon says why.
                Err(silent) => return Err(starting.await.map_err(ended)?.err().unwrap_or(silent)),
            },
            started = &mut starting => {
                started.map_err(ended)??;
                let opening = async {
                    tokio::select! {
                        opened = opening => opened,
                        () = daemon.end_of(&container) => Err(ended_early()),
                    }
                };
                (daemon.unless_hanging(opening).await?, None)
            }
        };
        Ok(Self::met(daemon, container, description, connection, starting))
    }

    fn met(
        daemon: &Daemon,
        container: String,
        description: Description,
        connection: Connection,
        starting: Option<JoinHandle<Result<()>>>,
    ) -> Self {
        watch(daemon, &container, &connection, starting);
        let (outlet, account, turn, overflow) = (OnceCell::new(), None, RwLock::default(), OnceLock::new());
        let held = daemon.names().hold(&record::container_name(&description.id));
        Self { description, container, connection, outlet, account, turn, overflow, _held: held }
    }

    pub fn id(&self) -> &SandboxId {
        &self.description.id
    }

    /// It is about to be ended for this.
    pub fn end_for(&self, overflow: Overflow) {
        self.overflow.get_or_init(|| overflow);
    }

    pub fn overflow(&self) -> Option<Overflow> {
        self.overflow.get().copied()
    }

    /// What is told to whoever wants something of it when it is gone.
    pub fn gone(&self) -> Error {
        self.overflow().map_or_else(|| not_found(self.id()), |overflow| overflow.error(self))
    }

    /// A spare becomes somebody's. Its labels stay nobody's, which is no matter: it ends with us.
    pub fn for_owner(mut self, description: &Description) -> Self {
        self.description = Description { runtime: self.description.runtime, ..description.clone() };
        self
    }

    /// What it has used of its network so far.
    pub fn account(&self) -> Option<Account> {
        self.outlet.get().map(|outlet| outlet.door.account()).or_else(|| self.account.clone())
    }

    /// The request with what the sandbox adds to every command.
    pub fn completed(&self, request: &ExecRequest) -> Result<ExecRequest> {
        let environment = self.description.environment.clone().ok_or_else(|| {
            Error::unavailable("what programs of the sandbox are given is lost")
                .with_hint("save its files and create another")
        })?;
        let mut request = request.clone();
        request.environment = environment.overlaid_by(&request.environment);
        request.work_directory.get_or_insert_with(|| self.description.work_directory.clone());
        Ok(request)
    }
}

/// Docker may not close the stream into a container that has ended, where it hears of the two ends in another order. Podman
/// closes it, and to wait there is to ask four times a second.
fn watch(daemon: &Daemon, container: &str, connection: &Connection, starting: Option<JoinHandle<Result<()>>>) {
    match daemon.flavour() {
        Flavour::Docker => {}
        Flavour::Podman => return,
    }
    let (daemon, container, watcher) = (daemon.clone(), container.to_owned(), connection.watcher());
    tokio::spawn(async move {
        if let Some(starting) = starting {
            // Until then it does not run in the daemon's eyes, and would count as one that has ended.
            let _ = starting.await;
        }
        tokio::select! {
            () = watcher.closed() => {}
            () = daemon.end_of(&container) => {
                // What it said before it ended may still be on its way.
                tokio::time::sleep(LAST_WORDS).await;
                watcher.close();
            }
        }
    });
}

fn ended_early() -> Error {
    Error::unavailable("the sandbox ended before it took work").with_hint("try again")
}

fn ended(cause: JoinError) -> Error {
    Error::internal("the start of a sandbox ended unexpectedly").with_cause(cause)
}

pub fn not_found(id: &SandboxId) -> Error {
    Error::not_found(format!("there is no sandbox {id}"))
        .with_hint("it may have been stopped or have expired; create another")
}
