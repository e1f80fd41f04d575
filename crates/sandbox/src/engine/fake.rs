//! An engine in memory that keeps the contract: for tests of everything above the engine.
//!
//! Sandboxes have a real tree of files and links, and a handful of programs that act on it, a small shell among them. What
//! needs a kernel (memory, process trees, terminals) it does not pretend to have. It is no recording of calls: the shared
//! suite runs on it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::{Capabilities, Engine, EngineSandbox, Files, Made, Process, Usage};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{ExecLog, ExecRequest, OutputTarget};
use crate::file::WriteOptions;
use crate::id::{Owner, SandboxId};
use crate::image::{Image, ImageProgram};
use crate::isolation::{IsolationReport, Layer, LayerReport, LayerState};
use crate::path::GuestPath;
use crate::spec::{Persistence, SandboxSpec};
use crate::tree::{Powers, SavedName, TreeName};
use crate::user::UserIds;

mod archive;
mod difference;
mod files;
mod network;
mod ports;
mod powers;
mod process;
mod program;
mod sandbox;
mod shell;
mod tree;

use powers::{Kept, Saved};
use sandbox::{FakeSandbox, Reach};
use tree::{Node, Tree};

/// A host on which engines of several processes live. Copies mean the same host.
#[derive(Clone, Debug, Default)]
pub struct FakeHost {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    realm: Option<String>,
    sandboxes: Mutex<HashMap<SandboxId, Arc<FakeSandbox>>>,
    saved: Mutex<BTreeMap<(Owner, SavedName), Saved>>,
    kept: Mutex<BTreeMap<TreeName, Kept>>,
    faults: Mutex<HashMap<Operation, Fault>>,
    calls: Mutex<HashMap<Operation, u64>>,
    next_engine: AtomicU64,
}

/// Engine methods that can be made slow or made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Create,
    Destroy,
    List,
    Start,
    Usage,
    SetDeadline,
    Reach,
    Save,
    Saved,
    Forget,
    Fork,
    Checkpoint,
    Changes,
    Restore,
}

#[derive(Clone, Copy, Debug, Default)]
struct Fault {
    delay: Duration,
    failures: usize,
    kind: Option<ErrorKind>,
}

impl FakeHost {
    /// An image that says nothing of itself.
    pub const IMAGE: &str = "fake:1";

    /// One that works in `/app`, which its user may not write to, and runs `echo` with `hello` there.
    pub const APP_IMAGE: &str = "fake:app";

    /// Files, directories and links that its images may hold.
    pub const MOST_IMAGE_ENTRIES: usize = 1000;

    /// Moments that a sandbox can go back to.
    pub const MOST_CHECKPOINTS: usize = 64;

    pub fn new() -> Self {
        Self::default()
    }

    /// One of several hosts that processes with the same state directory may use.
    pub fn of_realm(realm: &str) -> Self {
        Self { shared: Arc::new(Shared { realm: Some(realm.to_owned()), ..Shared::default() }) }
    }

    /// The engine of one process. It reaches its own sandboxes and the persistent ones of the whole host.
    pub fn engine(&self) -> Arc<FakeEngine> {
        let number = self.shared.next_engine.fetch_add(1, Ordering::Relaxed);
        Arc::new(FakeEngine { shared: Arc::clone(&self.shared), number })
    }

    /// Every later call of `operation` takes this long before it does anything.
    pub fn delay(&self, operation: Operation, delay: Duration) {
        self.shared.faults.lock().unwrap().entry(operation).or_default().delay = delay;
    }

    /// The next `count` calls of `operation` fail and change nothing.
    pub fn fail(&self, operation: Operation, count: usize, kind: ErrorKind) {
        let mut faults = self.shared.faults.lock().unwrap();
        let fault = faults.entry(operation).or_default();
        fault.failures = count;
        fault.kind = Some(kind);
    }

    pub fn calls(&self, operation: Operation) -> u64 {
        self.shared.calls.lock().unwrap().get(&operation).copied().unwrap_or(0)
    }

    /// Everything that exists on the host, whoever made it.
    pub fn existing(&self) -> Vec<SandboxId> {
        let mut ids: Vec<_> = self.shared.sandboxes.lock().unwrap().keys().cloned().collect();
        ids.sort();
        ids
    }

    /// As its engine was asked for it.
    pub fn spec(&self, id: &SandboxId) -> Option<SandboxSpec> {
        self.shared.sandboxes.lock().unwrap().get(id).map(|sandbox| sandbox.spec.clone())
    }

    /// A sandbox that dies of itself, as when its first process is killed from outside.
    pub fn kill(&self, id: &SandboxId) {
        self.shared.remove(id);
    }
}

impl Shared {
    fn remove(&self, id: &SandboxId) {
        let removed = self.sandboxes.lock().unwrap().remove(id);
        if let Some(sandbox) = removed {
            sandbox.gone.send_replace(true);
        }
    }

    async fn enter(&self, operation: Operation) -> Result<()> {
        *self.calls.lock().unwrap().entry(operation).or_default() += 1;
        let delay = self.faults.lock().unwrap().get(&operation).map_or(Duration::ZERO, |fault| fault.delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut faults = self.faults.lock().unwrap();
        match faults.get_mut(&operation) {
            Some(fault) if fault.failures > 0 => {
                fault.failures -= 1;
                Err(Error::new(fault.kind.unwrap_or(ErrorKind::Internal), format!("{operation:?} was made to fail")))
            }
            _ => Ok(()),
        }
    }
}

/// The engine of one process on a [`FakeHost`]. Dropping it is the death of that process.
#[derive(Debug)]
pub struct FakeEngine {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        let mut sandboxes = self.shared.sandboxes.lock().unwrap();
        sandboxes.retain(|_, sandbox| {
            let stays = sandbox.engine != self.number || sandbox.spec.persistence == Persistence::Persistent;
            if !stays {
                sandbox.gone.send_replace(true);
            }
            stays
        });
    }
}

impl FakeEngine {
    /// All that it can do besides.
    pub fn powers(self: &Arc<Self>) -> Powers {
        Powers {
            snapshots: Some(self.clone()),
            checkpoints: Some(self.clone()),
            trees: Some(self.clone()),
            connections: Some(self.clone()),
        }
    }

    fn reach(&self, id: &SandboxId) -> Reach {
        Reach { shared: Arc::clone(&self.shared), engine: self.number, id: id.clone() }
    }

    /// Its files, and what it says of itself.
    fn image(&self, spec: &SandboxSpec) -> Result<(Node, Made)> {
        let saved = |name: &SavedName| {
            let saved = self.shared.saved.lock().unwrap();
            saved.get(&(spec.image_owner().clone(), name.clone())).map(|saved| (saved.root.clone(), saved.made.clone()))
        };
        let plain =
            || (Tree::image(), Made { work_directory: GuestPath::workspace(), program: ImageProgram::default() });
        let found = match &spec.image {
            Image::Host => Some(plain()),
            Image::Directory(path) | Image::Archive(path) => path.exists().then(plain),
            Image::Named(name) => match name.as_str() {
                FakeHost::IMAGE => Some(plain()),
                FakeHost::APP_IMAGE => {
                    let program = ImageProgram::new(vec!["echo".to_owned()], vec!["hello".to_owned()]);
                    Some((Tree::app_image(), Made { work_directory: "/app".parse()?, program }))
                }
                _ => None,
            },
            Image::Saved(name) => saved(name),
        };
        found.ok_or_else(|| Error::not_found("there is no such image"))
    }

    /// Bring a sandbox about whose files are those of `root`.
    fn insert(&self, id: &SandboxId, spec: &SandboxSpec, made: Made, image: Node, root: Node) -> Result<Made> {
        let mut spec = spec.clone();
        let work_directory = spec.work_directory.take().unwrap_or(made.work_directory);
        let made = Made { work_directory, ..made };
        // The tree is in memory, so it cannot hold more than that; an engine may enforce less than it was asked to.
        spec.limits.disk = spec.limits.disk.min(spec.limits.memory);
        let mut tree = Tree::new(root, spec.limits.disk.bytes(), image.size());
        if spec.role.is_guest() {
            tree.furnish(&made.work_directory);
        }
        for attachment in &spec.attachments {
            let kept = self.shared.kept.lock().unwrap();
            let kept = kept.get(&attachment.tree).ok_or_else(|| Error::not_found("there is no such tree"))?;
            tree.attach(&attachment.at, &kept.root)?;
        }
        let (deadline, mut deadlines) = watch::channel(None);
        let sandbox = Arc::new(FakeSandbox {
            image,
            start: tree.own(),
            tree: Mutex::new(tree),
            checkpoints: Mutex::default(),
            spec,
            made: made.clone(),
            engine: self.number,
            gone: watch::Sender::new(false),
            deadline,
            processes: AtomicU64::new(0),
            last_ended: Mutex::default(),
            logs: Mutex::default(),
            tried: Mutex::default(),
            listeners: Mutex::default(),
        });
        {
            let mut sandboxes = self.shared.sandboxes.lock().unwrap();
            if sandboxes.contains_key(id) {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a sandbox {id}")));
            }
            sandboxes.insert(id.clone(), sandbox);
        }
        let (shared, id) = (Arc::downgrade(&self.shared), id.clone());
        tokio::spawn(async move {
            loop {
                let until = *deadlines.borrow_and_update();
                let changed = match until {
                    None => deadlines.changed().await,
                    Some(until) => tokio::select! {
                        changed = deadlines.changed() => changed,
                        () = tokio::time::sleep_until(until) => break,
                    },
                };
                if changed.is_err() {
                    return;
                }
            }
            if let Some(shared) = shared.upgrade() {
                shared.remove(&id);
            }
        });
        Ok(made)
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn capabilities(&self) -> Result<Capabilities> {
        let realm = self.shared.realm.clone();
        Ok(Capabilities { name: "fake", realm, persistence: true, terminal: false, usage: true, network: true })
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        self.shared.enter(Operation::Create).await?;
        let (image, made) = self.image(spec)?;
        self.insert(id, spec, made, image.clone(), image)
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.shared.enter(Operation::Destroy).await?;
        if self.reach(id).sandbox().is_ok() {
            self.shared.remove(id);
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<EngineSandbox>> {
        self.shared.enter(Operation::List).await?;
        let sandboxes = self.shared.sandboxes.lock().unwrap();
        let reachable = sandboxes.iter().filter(|(_, sandbox)| {
            sandbox.engine == self.number || sandbox.spec.persistence == Persistence::Persistent
        });
        Ok(reachable
            .map(|(id, sandbox)| EngineSandbox {
                id: id.clone(),
                owner: sandbox.spec.owner.clone(),
                name: sandbox.spec.name.clone(),
                persistence: sandbox.spec.persistence,
                rest: None,
            })
            .collect())
    }

    async fn start(&self, id: &SandboxId, request: &ExecRequest) -> Result<Process> {
        self.shared.enter(Operation::Start).await?;
        let sandbox = self.reach(id).sandbox()?;
        if let Some(script) = &request.script {
            let files = files::FakeFiles { reach: self.reach(id) };
            let mut file =
                files.write(script.path(), WriteOptions { parents: false, ..WriteOptions::default() }).await?;
            // A failed write is told by the commit.
            let _ = file.write_all(script.contents()).await;
            file.commit().await?;
        }
        match request.output {
            OutputTarget::Streams | OutputTarget::Joined => process::start(sandbox, request),
            OutputTarget::Log => process::start_logged(sandbox, request),
        }
    }

    async fn logs(&self, id: &SandboxId) -> Result<Vec<ExecLog>> {
        Ok(self.reach(id).sandbox()?.logs.lock().unwrap().clone())
    }

    fn files(&self, id: &SandboxId) -> Box<dyn Files> {
        Box::new(files::FakeFiles { reach: self.reach(id) })
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage> {
        self.shared.enter(Operation::Usage).await?;
        let sandbox = self.reach(id).sandbox()?;
        let disk = sandbox.tree.lock().unwrap().disk_used();
        let processes = sandbox.processes.load(Ordering::Relaxed);
        let last_ended = sandbox.last_ended.lock().unwrap().filter(|_| processes == 0);
        Ok(Usage {
            cpu: Some(Duration::ZERO),
            memory: Some(0),
            peak_memory: Some(0),
            processes: Some(processes),
            disk: Some(disk),
            network: (!sandbox.spec.network.is_none()).then(|| sandbox.tried.lock().unwrap().usage()),
            quiet: last_ended.map(|ended| ended.elapsed()),
        })
    }

    async fn isolation(&self, id: &SandboxId) -> Result<IsolationReport> {
        let sandbox = self.reach(id).sandbox()?;
        let report = |&layer: &Layer| LayerReport { layer, state: LayerState::Off, detail: "in memory".to_owned() };
        Ok(IsolationReport {
            tier: "none",
            runtime: None,
            layers: Layer::ALL.iter().map(report).collect(),
            limits: sandbox.spec.limits,
            user: UserIds { id: sandbox.user(), group: sandbox.user() },
        })
    }

    async fn set_deadline(&self, id: &SandboxId, from_now: Option<Duration>) -> Result<()> {
        self.shared.enter(Operation::SetDeadline).await?;
        let sandbox = self.reach(id).sandbox()?;
        sandbox.deadline.send_replace(from_now.map(|from_now| Instant::now() + from_now));
        Ok(())
    }

    async fn reach(&self, _id: &SandboxId) -> Result<Option<crate::engine::Reach>> {
        self.shared.enter(Operation::Reach).await?;
        Ok(None)
    }
}
