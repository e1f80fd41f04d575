//! Making a sandbox, and finding one again that another process made.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egress::Pass;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::PidfdFlags;
use sandbox::{
    Environment, Error, ErrorKind, Insistence, Made, Owner, Persistence, Result, Role, SandboxId, SandboxSpec,
};

use crate::ahead::Ahead;
use crate::cgroup::{self, Meter};
use crate::channel::Channel;
use crate::client::{Asked, AskedSockets, Fate, Launcher};
use crate::engine::Shared;
use crate::history::History;
use crate::jail::Failure;
use crate::launcher::Wanted;
use crate::layout::Prepared;
use crate::live::{Description, Live};
use crate::plan::{self, Inheritance, Request};
use crate::pool::Kind;
use crate::skeleton::RootLayout;
use crate::wire::{FromInit, ToInit};
use crate::{places, record, role};

/// Whoever just got a sandbox is about to start something in it, and goes first: most of what is short has ended by then.
const FILL_AFTER: Duration = Duration::from_millis(12);

/// Files of another sandbox that a new one begins with.
pub(crate) struct Legacy<'a> {
    pub from: &'a Live,
    pub inheritance: Inheritance,
    pub history: History,
}

impl Shared {
    /// What must hold before anything of a sandbox is made.
    pub(crate) fn check_new(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.walls()?;
        spec.limits.check()?;
        self.check_role(spec)?;
        let exists = || Error::new(ErrorKind::AlreadyExists, format!("there is a sandbox {id} already"));
        let recorded = record::read(&self.places.records, id).map_err(not_recorded)?.is_some();
        if self.knows(id) || recorded {
            return Err(exists());
        }
        Ok(())
    }

    pub(crate) async fn create(self: &Arc<Self>, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        self.check_new(id, spec)?;
        let root = self.layout(spec).await?;
        let is_wish = spec.role == Role::ImageUser(Insistence::IfPossible) && root.role != Role::Guest;
        match self.create_made(id, spec, root).await {
            // A file system may hold the image that cannot let its files have other owners.
            Err(error) if is_wish && error.kind() == ErrorKind::Unsupported => {
                tracing::debug!(?error, "programs cannot be root of a sandbox on this image");
                let spec = SandboxSpec { role: Role::Guest, ..spec.clone() };
                let root = self.layout(&spec).await?;
                self.create_made(id, &spec, root).await
            }
            made => made,
        }
    }

    async fn create_made(self: &Arc<Self>, id: &SandboxId, spec: &SandboxSpec, root: Prepared) -> Result<Made> {
        let made = Made { work_directory: root.layout.work_directory.path.clone(), program: root.program.clone() };
        self.create_on(id, spec, root).await?;
        Ok(made)
    }

    /// On a root that was prepared.
    pub(crate) async fn create_on(self: &Arc<Self>, id: &SandboxId, spec: &SandboxSpec, root: Prepared) -> Result<()> {
        let spec = &SandboxSpec { role: root.role, ..spec.clone() };
        let pass = self.pass(id, spec, &root.layout)?;
        let ahead = match &spec.expected {
            Some(expected) => {
                let environment = environment(&root.layout, spec, None)?;
                Some(Ahead::new(expected, &root.layout.work_directory.path, environment)?)
            }
            None => None,
        };
        let kind = Kind::of(spec, &root, ahead);
        let live = match kind.as_ref().and_then(|kind| self.take_spare(kind, &spec.owner)) {
            Some(spare) => {
                let environment = environment(&root.layout, spec, pass.as_ref())?;
                self.assign(spare, id, spec, environment, pass.as_ref()).await?
            }
            None => self.make(id, spec, &root, pass.as_ref(), None).await?,
        };
        self.keep(Arc::new(live));
        if let Some(kind) = kind {
            // Those that make room end by being dropped.
            let (wanted, _) = self.pool.wants(&kind);
            if wanted {
                self.fill_pool(kind, spec, root);
            }
        }
        Ok(())
    }

    /// One in which the expected was begun, or an empty one.
    fn take_spare(&self, kind: &Kind, owner: &Owner) -> Option<Live> {
        let empty = kind.ahead().map(|_| kind.empty());
        self.pool.take_one_of(std::iter::once(kind).chain(&empty), owner, Live::is_spent)
    }

    /// Make a spare somebody's. Dropped on the way, it ends, as spares do.
    async fn assign(
        &self,
        spare: Live,
        id: &SandboxId,
        spec: &SandboxSpec,
        environment: Environment,
        pass: Option<&Pass>,
    ) -> Result<Live> {
        let live = spare.for_owner(id, spec, environment);
        if let Some(pass) = pass {
            let sockets = self.ask_for_sockets(&live).await?;
            self.let_out(&live, pass, sockets).await?;
        }
        Ok(live)
    }

    /// Make spares in the background. The task holds us weakly: it must not keep an engine alive that nobody uses.
    fn fill_pool(self: &Arc<Self>, kind: Kind, spec: &SandboxSpec, root: Prepared) {
        let (shared, mut spec) = (Arc::downgrade(self), SandboxSpec::clone(spec));
        // Given to a spare when it becomes somebody's.
        (spec.network, spec.secrets) = Default::default();
        tokio::spawn(async move {
            tokio::time::sleep(FILL_AFTER).await;
            while let Some(shared) = shared.upgrade() {
                let made = shared.make_spare(&spec, &root, &kind).await;
                match made {
                    Ok(live) => match shared.pool.put(&kind, live) {
                        Ok(true) => {}
                        Ok(false) | Err(_) => return,
                    },
                    Err(error) => {
                        tracing::debug!(?error, "no spare sandbox could be made");
                        return shared.pool.give_up(&kind);
                    }
                }
            }
        });
    }

    /// It can be used although nothing could be begun in it: the program may not be there.
    async fn make_spare(&self, spec: &SandboxSpec, root: &Prepared, kind: &Kind) -> Result<Live> {
        let live = self.make(&SandboxId::random()?, spec, root, None, None).await?;
        if let Some(ahead) = kind.ahead() {
            match ahead.begin(&live).await {
                Ok(waiting) => live.set_waiting(waiting),
                Err(error) => tracing::debug!(?error, "nothing could be begun in a spare sandbox"),
            }
        }
        Ok(live)
    }

    pub(crate) async fn make(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
        root: &Prepared,
        pass: Option<&Pass>,
        legacy: Option<&Legacy<'_>>,
    ) -> Result<Live> {
        let walls = self.walls()?.clone();
        let socket = self.places.sockets.join(id.as_str());
        let instance = self.config.instance.as_str();
        let places = usable(&self.host.places, &walls);
        let plan = plan::plan(&Request {
            id,
            spec,
            instance,
            root: &root.layout,
            places: &places,
            walls: &walls,
            single_id: self.host.pool.is_none(),
            shifts_owners: self.host.root,
            socket: socket.clone(),
            inheritance: legacy.map(|legacy| legacy.inheritance),
            held: legacy.map(|legacy| legacy.history.held()).unwrap_or_default(),
            groups: None,
        });
        let persistent = spec.persistence == Persistence::Persistent;
        let description = Description {
            id: id.clone(),
            owner: spec.owner.clone(),
            name: spec.name.clone(),
            persistence: spec.persistence,
            role: spec.role,
            limits: plan::enforced_limits(&spec.limits),
            walls,
            environment: environment(&root.layout, spec, pass)?,
            work_directory: root.layout.work_directory.path.clone(),
            groups: plan.cgroups.iter().map(|leaf| leaf.directory.clone()).collect(),
            socket: persistent.then_some(socket),
            network: spec.network.clone(),
            secrets: spec.secrets.clone(),
            private_hosts: spec.private_hosts.clone(),
            base: Some(root.base.clone()),
            keepsake: pass.and_then(|pass| pass.keepsake.clone()),
            idle: spec.lifetime.idle,
            holds: legacy.map_or(root.holds.len(), |legacy| legacy.inheritance.holds),
            root: Some(root.layout.clone()),
            history: legacy.map(|legacy| legacy.history.clone()).unwrap_or_default(),
        };
        if persistent {
            record::write(&self.places.records, &description).map_err(not_recorded)?;
        }
        let launcher = self.launcher()?;
        let mut undo = Undo { shared: self, launcher: &launcher, id, armed: true, persistent };
        let meter = Meter::new(&places, instance, id.as_str());
        let wanted = if pass.is_some() { Wanted::SandboxAndSockets } else { Wanted::Sandbox };
        let given: Vec<_> = match legacy {
            Some(legacy) => vec![legacy.from.process()],
            None => root.holds.iter().map(|held| held.hold()).collect(),
        };
        let asked = launcher.create(plan, wanted, &given).await.map_err(unavailable)?;
        let (live, sockets) = self.build(asked, description, meter).await?;
        if let (Some(pass), Some(sockets)) = (pass, sockets) {
            self.let_out(&live, pass, sockets).await?;
        }
        undo.armed = false;
        Ok(live)
    }

    pub(crate) async fn build(
        &self,
        Asked { started, mut fate, sockets }: Asked,
        description: Description,
        meter: Meter,
    ) -> Result<(Live, Option<AskedSockets>)> {
        let started = tokio::select! {
            biased;
            Ok(started) = started => started,
            ended = fate.wait_for(|fate| *fate != Fate::Alive) => {
                return Err(not_created(ended.map_or(Fate::LauncherGone, |fate| fate.clone())));
            }
        };
        let channel = match (started.channel, &description.socket) {
            (Some(channel), _) => channel,
            (None, Some(socket)) => connect(socket).map_err(unavailable)?,
            (None, None) => return Err(Error::internal("the launcher gave no channel")),
        };
        let channel = Channel::new(channel).map_err(unavailable)?;
        let ready = tokio::select! {
            biased;
            ready = channel.receive::<FromInit>() => matches!(ready, Ok(Some((FromInit::Ready, _)))),
            _ = fate.wait_for(|fate| *fate != Fate::Alive) => false,
        };
        if !ready {
            // The channel closed because the child failed; the launcher tells why when it has cleared up.
            let ended = fate.wait_for(|fate| *fate != Fate::Alive).await;
            return Err(not_created(ended.map_or(Fate::LauncherGone, |fate| fate.clone())));
        }
        let live = Live::new(description, meter, channel, started.process, Some(fate)).map_err(unavailable)?;
        Ok((live, sockets))
    }

    /// Connect to a persistent sandbox by its record. One whose process 1 is gone is cleared away.
    pub(crate) async fn reconnect(&self, id: &SandboxId) -> Result<Option<Live>> {
        let unreadable = |cause: std::io::Error| {
            Error::internal(format!("the record of sandbox {id} cannot be read")).with_cause(cause)
        };
        let read = || record::read_both(&self.places.records, id).map_err(unreadable);
        loop {
            let Some((description, successor)) = read()? else { return Ok(None) };
            let listening = sockets(&description, successor.as_ref());
            // Before it is tried: one that comes while it is tried is of somebody who is being made.
            let was_there = description.socket.as_deref().is_some_and(Path::exists);
            if let Some(successor) = successor
                && let Some(live) = self.find(&successor).await
                && matches!(live.ask(&ToInit::Stay).await, Ok(FromInit::Staying))
            {
                // Whoever made it has ended before it could end the other, or is about to do just this.
                let socket = description.socket.unwrap_or_default();
                if let Ok(old) = connect(&socket).and_then(|channel| peer(&channel)) {
                    let _ = rustix::process::pidfd_send_signal(&old, rustix::process::Signal::KILL);
                }
                let _ = std::fs::remove_file(&socket);
                record::write(&self.places.records, &successor).map_err(unreadable)?;
                return Ok(Some(live));
            }
            if let Some(live) = self.find(&description).await {
                return Ok(Some(live));
            }
            // Somebody may have put another in its place while we waited for it.
            if read()?.is_some_and(|(found, successor)| sockets(&found, successor.as_ref()) != listening) {
                continue;
            }
            let socket = description.socket.clone().unwrap_or_default();
            // Another process may be about to make it: its launcher binds the socket after the record is written.
            if was_there || !recently_written(&self.places.records, id) {
                places::clear_groups(&description.groups);
                let _ = std::fs::remove_file(&socket);
                let _ = record::remove(&self.places.records, id);
            }
            return Ok(None);
        }
    }

    /// One that listens where its record says.
    async fn find(&self, description: &Description) -> Option<Live> {
        let channel = connect(description.socket.as_deref()?).ok()?;
        let process = peer(&channel).ok()?;
        let channel = Channel::new(channel).ok()?;
        match channel.receive::<FromInit>().await {
            Ok(Some((FromInit::Ready, _))) => {
                let meter = Meter::from_groups(&self.host.places, &description.groups);
                Live::new(description.clone(), meter, channel, process, None).ok()
            }
            _ => None,
        }
    }
}

/// Where a sandbox is reached, and where its successor is.
fn sockets(description: &Description, successor: Option<&Description>) -> [Option<PathBuf>; 2] {
    [description.socket.clone(), successor.and_then(|successor| successor.socket.clone())]
}

pub(crate) fn unavailable(cause: std::io::Error) -> Error {
    Error::unavailable("the engine's launcher does not answer").with_cause(cause)
}

fn not_recorded(cause: std::io::Error) -> Error {
    Error::internal("the sandbox could not be recorded").with_cause(cause)
}

/// A creation takes milliseconds; one that has not come to a socket after this is dead.
fn recently_written(records: &Path, id: &SandboxId) -> bool {
    let written = std::fs::metadata(records.join(format!("{id}.json"))).and_then(|found| found.modified());
    written.is_ok_and(|time| time.elapsed().is_ok_and(|age| age.as_secs() < 10))
}

/// Takes a creation back that failed or whose caller went away.
struct Undo<'a> {
    shared: &'a Shared,
    launcher: &'a Launcher,
    id: &'a SandboxId,
    armed: bool,
    persistent: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.launcher.destroy(self.id.as_str());
            if self.persistent {
                let _ = record::remove(&self.shared.places.records, self.id);
            }
        }
    }
}

/// Controllers of layers that are to be missing are not used.
pub(crate) fn usable(
    places: &[cgroup::Place],
    walls: &std::collections::BTreeSet<sandbox::Layer>,
) -> Vec<cgroup::Place> {
    use cgroup::Controller;
    use sandbox::Layer;
    let wanted = |controller| match controller {
        Controller::Memory => walls.contains(&Layer::MemoryLimit),
        Controller::Cpu => walls.contains(&Layer::CpuLimit),
        Controller::Processes => walls.contains(&Layer::ProcessLimit),
        Controller::CpuAccounting => true,
    };
    places.iter().filter(|place| wanted(place.controller)).cloned().collect()
}

/// Ours, then the gateway's, then what was asked for: the last wins.
fn environment(root: &RootLayout, spec: &SandboxSpec, pass: Option<&Pass>) -> Result<Environment> {
    let mut environment = Environment::default();
    for (name, value) in role::variables(spec.role, &root.search_path) {
        environment.insert(name, value)?;
    }
    for (name, value) in &root.environment {
        environment.insert(name.clone(), value.clone())?;
    }
    if let Some(pass) = pass {
        environment = environment.overlaid_by(&pass.environment);
    }
    Ok(environment.overlaid_by(&spec.environment))
}

fn connect(socket: &Path) -> std::io::Result<OwnedFd> {
    let channel = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&channel, &SocketAddrUnix::new(socket)?)?;
    Ok(channel)
}

/// Process 1 on the other side of a connection.
fn peer(channel: &OwnedFd) -> std::io::Result<OwnedFd> {
    let credentials = rustix::net::sockopt::socket_peercred(channel.as_fd())?;
    Ok(rustix::process::pidfd_open(credentials.pid, PidfdFlags::empty())?)
}

fn not_created(fate: Fate) -> Error {
    match fate {
        Fate::NotCreated(failure) => from_failure(&failure),
        Fate::LauncherGone => {
            Error::unavailable("the engine's launcher has ended").with_hint("start the program again")
        }
        Fate::Alive | Fate::Gone => Error::internal("the sandbox ended before it was ready"),
    }
}

pub(crate) fn from_failure(failure: &Failure) -> Error {
    let Failure { step, errno, subject } = failure;
    let cause = format!("{subject}: {}", std::io::Error::from_raw_os_error(*errno));
    let error = match (step.as_str(), *errno) {
        ("take-ids", libc::EUSERS) => Error::limit_exceeded("there are as many sandboxes as there are ids for them"),
        ("fill-layer", libc::ENOSPC) => {
            Error::limit_exceeded("what was saved does not fit on the disk of the sandbox")
                .with_hint("ask for more disk, and for a third more memory than that")
        }
        ("clone" | "open-sources", libc::ENOSPC | libc::EUSERS) => {
            Error::limit_exceeded("the host allows no further namespaces")
                .with_hint("raise the limits by `sysctl user.max_user_namespaces` (and max_pid_, max_net_, max_mnt_namespaces), or stop sandboxes")
        }
        (_, libc::ENOSPC | libc::EUSERS | libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            Error::limit_exceeded(format!("the host has no room for another sandbox (at step {step})"))
                .with_hint("stop sandboxes that are not needed")
        }
        ("packet-filter", libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => {
            Error::unsupported("this kernel lacks nf_tables with tproxy, which a sandbox with a network needs")
                .with_hint("run `modprobe nft_tproxy` as root, or use a kernel with CONFIG_NFT_TPROXY")
        }
        ("open-sources", libc::ENOENT) => Error::not_found("a part of the image is not there any more"),
        (_, libc::ENOSYS) => {
            Error::unsupported(format!("this kernel lacks what the step {step} of building a sandbox needs"))
                .with_hint("use Linux 5.12 or newer as the kernel, and let sandpen make its system calls")
        }
        (_, libc::EPERM | libc::EACCES | libc::EINVAL | libc::EOPNOTSUPP) => {
            Error::unsupported(format!("this host does not allow the step {step} of building a sandbox"))
                .with_hint("run `sandpen doctor` to see which layer is missing and what to do")
        }
        _ => Error::internal(format!("the sandbox could not be built (at step {step})")),
    };
    error.with_cause(cause)
}
