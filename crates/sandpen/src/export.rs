//! A sandbox as a Dockerfile with its build context, built and compared with the sandbox.
//!
//! ```text
//! history, changes ─▶ recipe ──▶ steps ──▶ render ─▶ Dockerfile ─┐
//! saved layers ─────▶ base, tree ┴──────▶ context ─▶ files ──────┴─▶ verify: build, compare
//!                        ▲                                                     │
//!                        └─────────── attempts: another way, if files differ ──┘
//! ```
//!
//! What was written where is known from the kernel's own clock for files, not from what programs say. All files come out of
//! the layers that a save makes: the host never goes through a sandbox's tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use images::Store;
use images::difference::Kind;
use sandbox::{
    Changes, Deed, ErrorKind, GuestPath, History, HistoryEntry, Image, Owner, Result, SandboxInfo, SandboxService,
};
use tokio_util::sync::CancellationToken;
use tools::export::{Export, ExportRequest, Exporter, Report};
use tools::{Policy, Progress};

use self::attempts::{Attempts, Kept};
use self::base::Base;
use self::packages::Installed;
use self::recipe::{Step, Survival, Survivor};
use self::verify::Verifier;
use crate::commands::image;
use crate::config::Config;
use crate::packages::Images;

mod attempts;
mod base;
mod context;
mod daemon;
mod dockerfile;
mod packages;
mod passing;
mod paths;
mod programs;
mod recipe;
mod render;
mod scratch;
mod verify;

/// More changes than a person would want in a Dockerfile; beyond them files are copied without a look at what made them.
const MOST_CHANGES: usize = 200_000;

/// Writes Dockerfiles for whoever asks.
pub struct Exports {
    service: SandboxService,
    store: Arc<Store>,
    /// Where what is being written lies.
    directory: PathBuf,
    verifier: Verifier,
    bases: KnownBases,
    fetching: Fetching,
    images: Images,
}

/// Whether a base that is not here is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetching {
    Missing,
    Nothing,
}

/// What exports of a process may do.
#[derive(Clone, Debug)]
pub struct Terms {
    pub fetching: Fetching,
    /// For one command that is done again.
    pub timeout: Duration,
    pub bases: KnownBases,
    /// Where the images of the engine are.
    pub images: Images,
}

/// Images of the store that whoever exports may know of, besides the one that the sandbox was made from.
#[derive(Clone, Debug)]
pub enum KnownBases {
    All,
    /// Those that sandboxes may start from.
    OfPolicy(Arc<Policy>),
}

impl KnownBases {
    fn admits(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::OfPolicy(policy) => matches!(policy.image(Some(name)), Ok(Image::Named(_))),
        }
    }
}

/// A context on disk, until it is dropped.
#[derive(Debug)]
pub struct Written {
    pub dockerfile: String,
    pub context: scratch::Scratch,
    pub report: Report,
}

impl Exports {
    pub fn new(service: &SandboxService, config: &Config, terms: Terms) -> Result<Self> {
        let store = match &terms.images {
            Images::Here(_) => image::open_store(config)?,
            Images::Daemon(_) => daemon::open_store(config)?,
        };
        let registries = match terms.fetching {
            Fetching::Missing => Some(image::settings(config)?),
            Fetching::Nothing => None,
        };
        let timeout = terms.timeout.min(config.quota.exec_timeout);
        let verifier = Verifier { service: service.clone(), store: Arc::clone(&store), registries, timeout };
        let directory = config.state_dir()?.join("exports");
        let Terms { bases, fetching, images, .. } = terms;
        Ok(Self { service: service.clone(), store, directory, verifier, bases, fetching, images })
    }

    pub async fn write(
        &self,
        owner: &Owner,
        request: &ExportRequest,
        progress: &Arc<dyn Progress>,
        cancel: &CancellationToken,
    ) -> Result<Written> {
        let sandbox = self.service.find(owner, request.sandbox.as_str()).await?;
        let (store, directory) = (Arc::clone(&self.store), self.directory.clone());
        base::blocking(move || passing::sweep(&store, &directory, SystemTime::now())).await?;
        let history = self.service.history(owner, &sandbox.id).await?;
        let changes = self.changes(owner, &sandbox).await?;
        let asked = request.base.as_ref();
        let base = Arc::new(match &self.images {
            Images::Here(_) => Base::find(self, owner, &sandbox, &history, asked).await?,
            Images::Daemon(engine) => daemon::find(self, engine, owner, &sandbox, &history, asked).await?,
        });
        let files = self.service.files(owner, &sandbox.id)?;
        let programs = Arc::new(programs::present(&*files, &history, self.service.runners()).await);
        let (packages, unknown) = self.packages(&history).await?;
        let attempts = Attempts {
            exports: self,
            owner,
            sandbox: &sandbox,
            check: &request.check,
            survivors: survivors(&base, &changes),
            base: Arc::clone(&base),
            history: Arc::new(history),
            programs,
            packages,
            progress,
            cancel,
        };
        let kept = attempts.best().await?;
        finish(&base, &attempts.history, kept, &unknown)
    }

    async fn packages(&self, history: &History) -> Result<(Vec<Installed>, Vec<GuestPath>)> {
        let sets = if history.attachments.is_empty() { Vec::new() } else { self.service.package_sets().await? };
        Ok(Installed::of(&history.attachments, &sets))
    }

    async fn changes(&self, owner: &Owner, sandbox: &SandboxInfo) -> Result<Changes> {
        match self.service.changes(owner, &sandbox.id, None, MOST_CHANGES).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Changes::default()),
            changes => changes,
        }
    }
}

#[async_trait]
impl Exporter for Exports {
    async fn export(&self, owner: &Owner, request: ExportRequest, progress: &Arc<dyn Progress>) -> Result<Export> {
        let cancel = CancellationToken::new();
        let _given_up = cancel.clone().drop_guard();
        let written = self.write(owner, &request, progress, &cancel).await?;
        let context = scratch::archive(written.context).await?;
        Ok(Export { dockerfile: written.dockerfile, context, report: written.report })
    }
}

/// What is different from the base, with the moment in which it became so.
fn survivors(base: &Base, changes: &Changes) -> Vec<Survivor> {
    let moments: BTreeMap<&GuestPath, i128> =
        changes.entries.iter().map(|change| (&change.path, change.changed_ns)).collect();
    let mut found = BTreeMap::new();
    let mut note = |path: &[u8], state: Survival| {
        let Ok(path) = GuestPath::root().join(path) else { return };
        if !paths::is_left_out(&path, &base.home()) {
            let changed_ns = moments.get(&path).copied().unwrap_or(0);
            found.insert(path.clone(), Survivor { path, state, changed_ns });
        }
    };
    for (path, facts, _) in base.tree.entries() {
        match facts.kind {
            Kind::Directory => note(path, Survival::Directory),
            Kind::File(_) | Kind::Link(_) => note(path, Survival::File),
            Kind::Special => {}
        }
    }
    for path in base.tree.removed() {
        note(path, Survival::Removed);
    }
    found.into_values().collect()
}

fn finish(base: &Base, history: &History, kept: Kept, unknown: &[GuestPath]) -> Result<Written> {
    let Kept { rendered, context, outcome, builds, notes: reasons, .. } = kept;
    let missing = unknown.iter().map(|at| format!("which packages are at {at} is not known any more"));
    let mut notes = Vec::new();
    for note in rendered.notes.into_iter().chain(missing).chain(reasons) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let is_command = |entry: &HistoryEntry| matches!(entry.deed, Deed::Command { .. } | Deed::Code { .. });
    if base.daemon.is_some() && history.entries.iter().any(is_command) {
        notes.push("commands are not done again; what they left is copied".to_owned());
    }
    if base.daemon.is_some() && base.user.0 == 0 {
        // Process 1 does not say more, and what it does not say is not compared either.
        notes.push("what is copied is root's, whoever it belonged to, and has no set-id bits".to_owned());
    }
    if history.dropped > 0 {
        notes.push(format!("{} older steps were not recorded any more; what they left is copied", history.dropped));
    }
    let mut dockerfile = rendered.dockerfile;
    dockerfile.close(&outcome, &notes);
    context.leave_out(packages::DIRECTORY);
    context.write_dockerfile(dockerfile.text())?;
    let report = Report { base: base.from.clone(), base_digest: base.digest.clone(), outcome, builds, notes };
    Ok(Written { dockerfile: dockerfile.text().to_owned(), context, report })
}

/// The files of steps that have some, by the number of the step.
fn files_of(steps: &[Step]) -> BTreeMap<usize, BTreeSet<GuestPath>> {
    let numbered = steps.iter().enumerate().filter_map(|(index, step)| match step {
        Step::Files(paths) => Some((index + 1, paths.clone())),
        Step::Remove(_) | Step::Run(_) => None,
    });
    numbered.collect()
}

impl std::fmt::Debug for Exports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exports").field("directory", &self.directory).finish_non_exhaustive()
    }
}
