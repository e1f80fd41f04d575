//! Another process 1 for the same sandbox, on files as they were at some moment.
//!
//! The writable layer of a sandbox cannot be frozen under it: an overlay does not let go of the layer that it writes to. So
//! the sandbox is built once more, over that layer instead of into it, with the same ids, groups, name and limits; and when
//! it stands, the old process 1 is ended. Until then nothing is lost: a restart that fails leaves the sandbox as it was.
//!
//! ```text
//! freeze ─▶ build successor ─▶ record both ─▶ successor stays ─▶ end the old ─▶ record the new
//!    └──────────┴── fails: thaw ──┘
//! ```
//!
//! Of a persistent sandbox one of the two is found by the next process, wherever this one dies: the successor ends with its
//! maker until it was told to stay, and from the moment when it may be told it is in the record beside the old one.

use std::sync::Arc;

use sandbox::{Error, Persistence, Result, SandboxId, SandboxSpec};

use crate::cgroup::Meter;
use crate::client::Launcher;
use crate::create::{unavailable, usable};
use crate::door::grant;
use crate::engine::Shared;
use crate::history::History;
use crate::launcher::Wanted;
use crate::live::{Description, Live};
use crate::pack::blocking;
use crate::plan::{self, Held, Inheritance, Request};
use crate::running::{self, Program};
use crate::wire::{FromInit, ToInit};
use crate::{crash, files, image, record};

/// The steps of the server, in order, beside those of the launcher.
pub const STEPS: &[&str] = &["record-both", "let-stay", "end-old", "record-new"];

/// A sandbox that takes no work. Thawed when this is dropped, unless a successor has taken its place.
pub(crate) struct Frozen<'a> {
    pub live: &'a Arc<Live>,
    /// What its writable layer holds.
    pub held: Held,
    /// Nothing was made in it.
    pub untouched: bool,
    deadline_milliseconds: Option<u64>,
    armed: bool,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if self.armed {
            // One that is gone needs no thawing.
            let _ = self.live.channel.try_send(&ToInit::Thaw);
        }
    }
}

/// Must fail when something runs in it, and say what.
pub(crate) async fn freeze_at_rest(live: &Arc<Live>) -> Result<Frozen<'_>> {
    freeze(live).await?.ok_or_else(|| busy(&running::programs(live.process())))
}

/// `None` when something runs in it.
pub(crate) async fn freeze(live: &Arc<Live>) -> Result<Option<Frozen<'_>>> {
    match live.ask(&ToInit::Freeze).await? {
        FromInit::Frozen { bytes, inodes, untouched, deadline_milliseconds } => {
            let held = Held { bytes, inodes };
            Ok(Some(Frozen { live, held, untouched, deadline_milliseconds, armed: true }))
        }
        FromInit::Busy => Ok(None),
        FromInit::Ready
        | FromInit::DeadlineSet
        | FromInit::Measured { .. }
        | FromInit::Staying
        | FromInit::Network(_) => Err(Error::internal("the sandbox gave an answer to another question")),
    }
}

fn busy(programs: &[Program]) -> Error {
    if programs.is_empty() {
        return Error::wrong_state("a command runs in the sandbox").with_hint("wait for it, or stop it");
    }
    let named: Vec<String> = programs.iter().map(|one| format!("{} {}", one.number, one.words)).collect();
    let numbers: Vec<String> = programs.iter().map(|one| one.number.to_string()).collect();
    let hint = format!("wait for it, stop its job, or end it by a command of its own: kill -9 {}", numbers.join(" "));
    Error::wrong_state(format!("something still runs in the sandbox: {}", named.join(", "))).with_hint(hint)
}

impl Shared {
    /// Put a successor in the place of a frozen sandbox.
    pub(crate) async fn restart(
        &self,
        mut frozen: Frozen<'_>,
        inheritance: Inheritance,
        history: History,
    ) -> Result<Arc<Live>> {
        let old = frozen.live;
        let (successor, undo) = self.successor(old, inheritance, &history).await?;
        if let Some(milliseconds) = frozen.deadline_milliseconds {
            successor.ask(&ToInit::SetDeadline { milliseconds: Some(milliseconds) }).await?;
        }
        if history.layers.is_empty() {
            self.place_again(&successor).await?;
        }
        let persistent = successor.description.persistence == Persistence::Persistent;
        if persistent {
            crash::here("record-both");
            let both = Description { history: old.history(), ..old.description.clone() };
            record::write_both(&self.places.records, &both, &successor.description).map_err(not_recorded)?;
            crash::here("let-stay");
            successor.ask(&ToInit::Stay).await?;
        }
        undo.disarm();
        frozen.armed = false;
        let successor = Arc::new(successor);
        self.keep(successor.clone());
        crash::here("end-old");
        old.kill();
        old.ended().await;
        if let Some(socket) = &old.description.socket {
            let _ = std::fs::remove_file(socket);
        }
        if persistent {
            crash::here("record-new");
            record::write(&self.places.records, &successor.description).map_err(not_recorded)?;
        }
        Ok(successor)
    }

    async fn successor(&self, old: &Live, inheritance: Inheritance, history: &History) -> Result<(Live, Undo)> {
        let before = &old.description;
        let Some(root) = &before.root else {
            return Err(Error::unsupported("the sandbox was made by a version that did not write down from what")
                .with_hint("create another and copy what is needed to it"));
        };
        if let Some(own) = root.belongings.clone() {
            let (lowers, user) = (root.lowers.clone(), root.user);
            blocking(move || image::restore_belongings(&own, &lowers, user)).await?;
        }
        let spec = spec_of(before);
        // A name of its own for the launcher, which still has the old one.
        let id = SandboxId::random()?;
        let socket = self.places.sockets.join(id.as_str());
        let plan = plan::plan(&Request {
            id: &id,
            spec: &spec,
            instance: self.config.instance.as_str(),
            root,
            places: &usable(&self.host.places, &before.walls),
            walls: &before.walls,
            single_id: self.host.pool.is_none(),
            shifts_owners: self.host.root,
            socket: socket.clone(),
            inheritance: Some(inheritance),
            held: history.held(),
            groups: Some(&before.groups),
        });
        let description = Description {
            socket: before.socket.is_some().then_some(socket),
            history: history.clone(),
            ..before.clone()
        };
        let launcher = self.launcher()?;
        let undo = Undo { launcher: launcher.clone(), id: Some(id) };
        let asked = launcher.create(plan, Wanted::Sandbox, &[old.process()]).await.map_err(unavailable)?;
        let meter = Meter::from_groups(&self.host.places, &before.groups);
        let (live, _) = self.build(asked, description, meter).await?;
        Ok((live.in_place_of(old), undo))
    }

    /// What the gateway put into a sandbox when it was made, into one that begins anew.
    async fn place_again(&self, live: &Live) -> Result<()> {
        let description = &live.description;
        if description.network.is_none() {
            return Ok(());
        }
        let pass = self.config.gateway.prepare(grant(description), description.keepsake.as_deref())?;
        files::place(live, &pass.files).await
    }
}

/// What a sandbox was asked to be, as far as a plan needs it.
fn spec_of(description: &Description) -> SandboxSpec {
    let mut spec = SandboxSpec::new(description.owner.clone());
    spec.limits = description.limits;
    spec.lifetime.idle = description.idle;
    spec.persistence = description.persistence;
    spec.name.clone_from(&description.name);
    spec.work_directory = Some(description.work_directory.clone());
    spec.role = description.role;
    spec
}

pub(crate) fn not_recorded(cause: std::io::Error) -> Error {
    Error::internal("the sandbox could not be recorded").with_cause(cause)
}

/// Takes a successor back that is not to be.
struct Undo {
    launcher: Arc<Launcher>,
    id: Option<SandboxId>,
}

impl Undo {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.launcher.destroy(id.as_str());
        }
    }
}
