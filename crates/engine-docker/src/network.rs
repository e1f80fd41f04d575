//! A sandbox's way out.
//!
//! Process 1 catches whatever programs connect to and ask for in a network without a way out, and our stream carries it to
//! here; the gateway decides, dials and copies. Nothing of the daemon's own networks is used, so the rules are the same as
//! on every other engine, also when the daemon is in a virtual machine or far away.

use std::io;
use std::time::Duration;

use agent::Connection;
use bytes::Bytes;
use egress::{Arrival, Arrivals, Asked, Door, Grant, GuestFile, Pass};
use sandbox::{Error, Result, SandboxId, SandboxSpec, WriteOptions};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::Flavour;
use crate::engine::Shared;
use crate::live::Live;
use crate::record::{self, Description};
use crate::translate::RESOLVER_SETTINGS;

/// Connections and questions that are waited for at the same time. Whoever comes besides waits in the sandbox, as at any
/// listener, until one of these was passed on.
const AWAITED_CONNECTIONS: usize = 16;
const AWAITED_QUESTIONS: usize = 8;

/// After the sandbox had nobody for us although we were waiting, how long before we ask again.
const BREATH: Duration = Duration::from_millis(20);

/// The gateway's door, and those who carry to it. Dropped, nobody comes through any more.
#[derive(Debug)]
pub struct Outlet {
    pub door: Door,
    _carriers: JoinSet<()>,
}

impl Shared {
    /// Check what a sandbox asks for before anything of it is made. `None`: it has no network.
    pub(crate) fn pass(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Option<Pass>> {
        let grant = Grant::asked_by(id, spec)?;
        grant.map(|grant| self.config.gateway.prepare(grant, None)).transpose()
    }

    /// Let a sandbox out that nobody uses yet, once it has all its other files.
    pub(crate) async fn let_out(&self, live: &Live, pass: Option<&Pass>) -> Result<()> {
        let Some(pass) = pass else { return Ok(()) };
        place(live, &pass.files).await?;
        live.outlet.get_or_try_init(|| self.open(live, pass)).await.map(drop)
    }

    /// The way out of a sandbox that has one. For one that another process made, or whose stream was lost, it is opened by
    /// the first who needs it; what the gateway put inside is there already.
    pub(crate) async fn door<'live>(&self, live: &'live Live) -> Result<Option<&'live Door>> {
        let description = &live.description;
        if description.network.is_none() {
            return Ok(None);
        }
        let opened = live.outlet.get_or_try_init(|| async {
            let keepsake = self.places.keepsakes.read(live.id())?.and_then(|keepsake| keepsake.gateway);
            if keepsake.is_none() && !description.secrets.is_empty() {
                return Err(Error::unavailable("what the sandbox needs for its secrets is lost")
                    .with_hint("save its files and create another"));
            }
            let pass = self.config.gateway.prepare(grant(description), keepsake.as_deref())?;
            self.open(live, &pass).await
        });
        opened.await.map(|outlet| Some(&outlet.door))
    }

    /// Have programs ask process 1 for names where the daemon does not see to it.
    pub(crate) async fn settle_resolver(&self, container: &str, description: &Description) -> Result<()> {
        match self.config.flavour {
            Flavour::Podman if !description.network.is_none() => {
                let packed = |cause| Error::internal("settings of the resolver cannot be packed").with_cause(cause);
                let archive = resolver_archive().map_err(packed)?;
                self.daemon.upload(container, "/", archive).await
            }
            Flavour::Docker | Flavour::Podman => Ok(()),
        }
    }

    /// Let a sandbox out that another process made, if it was given a network.
    pub(crate) async fn reopen(&self, id: &SandboxId) {
        // One that has ended meanwhile is not there.
        let Ok(Some(found)) = self.daemon.inspect(&record::container_name(id)).await else { return };
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        if record::read(&labels).is_none_or(|description| description.network.is_none()) {
            return;
        }
        let Ok(live) = self.live(id).await else { return };
        if let Err(error) = self.door(&live).await {
            // It is there all the same; whoever starts something in it is told.
            tracing::warn!(sandbox = %id, ?error, "a sandbox that was found cannot be let out");
        }
    }

    async fn open(&self, live: &Live, pass: &Pass) -> Result<Outlet> {
        live.connection.catch().await?;
        let (connections, arriving) = mpsc::channel(AWAITED_CONNECTIONS);
        let (questions, asked) = mpsc::channel(AWAITED_QUESTIONS);
        let arrivals = Arrivals { connections: arriving, questions: asked };
        let gateway = &self.config.gateway;
        let door = match &live.account {
            Some(account) => gateway.open_far_again(pass, arrivals, account.clone())?,
            None => gateway.open_far(pass, arrivals)?,
        };
        let mut carriers = JoinSet::new();
        for _ in 0..AWAITED_CONNECTIONS {
            carriers.spawn(carry_connections(live.connection.clone(), connections.clone()));
        }
        for _ in 0..AWAITED_QUESTIONS {
            carriers.spawn(carry_questions(live.connection.clone(), questions.clone()));
        }
        Ok(Outlet { door, _carriers: carriers })
    }
}

/// What a daemon says when its kernel has no settings for addresses of the sixth version.
pub(crate) fn is_without_ipv6(error: &Error) -> bool {
    let said = error.cause().map(ToString::to_string).unwrap_or_default();
    said.contains("disable_ipv6") && said.contains("no such file")
}

/// What a sandbox that runs was given.
fn grant(description: &Description) -> Grant {
    Grant {
        id: description.id.clone(),
        owner: description.owner.clone(),
        network: description.network.clone(),
        private_hosts: description.private_hosts.clone(),
        secrets: description.secrets.clone(),
    }
}

async fn carry_connections(connection: Connection, gateway: mpsc::Sender<Arrival>) {
    while !connection.is_closed() {
        let Ok(arrival) = connection.accept().await else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let arrival = Arrival { destination: arrival.destination, stream: Box::new(arrival) };
        if gateway.send(arrival).await.is_err() {
            return;
        }
    }
}

/// Whoever has asked waits for the reply besides, so that a name which takes its time holds up no other. How many that are
/// is bounded by the gateway, which drops what is too many.
async fn carry_questions(connection: Connection, gateway: mpsc::Sender<Asked>) {
    let mut waiting = JoinSet::new();
    while !connection.is_closed() {
        while waiting.try_join_next().is_some() {}
        let Ok(question) = connection.question().await else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let (reply, replied) = oneshot::channel();
        if gateway.send(Asked { packet: question.packet.clone(), reply }).await.is_err() {
            return;
        }
        waiting.spawn(async move {
            if let Ok(packet) = replied.await {
                question.reply(packet);
            }
        });
    }
}

/// Files of the gateway's, for the sandbox's user to read.
async fn place(live: &Live, files: &[GuestFile]) -> Result<()> {
    let tree = live.connection.files();
    for GuestFile { path, contents } in files {
        let mut file = tree.write(path, WriteOptions::default()).await?;
        let lost = |cause| Error::unavailable("the sandbox did not take the gateway's files").with_cause(cause);
        file.write_all(contents).await.map_err(lost)?;
        file.shutdown().await.map_err(lost)?;
        file.commit().await?;
    }
    Ok(())
}

fn resolver_archive() -> io::Result<Bytes> {
    let settings = RESOLVER_SETTINGS.as_bytes();
    let mut header = tar::Header::new_gnu();
    header.set_size(settings.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, "etc/resolv.conf", settings)?;
    archive.into_inner().map(Bytes::from)
}
