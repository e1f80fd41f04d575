//! Packages for code to import: installed once, in a sandbox that reaches the package index and nothing else, and from then
//! on part of every sandbox that asks for the same, read-only, without any network.
//!
//! ```text
//! request ──▶ record ──▶ kept tree ──▶ attachment          known: no builder, no network
//!    └──▶ builder: resolve ──▶ lock ──▶ install ──▶ keep   once for all who ask meanwhile
//! ```
//!
//! # Who can spoil what for whom
//!
//! A builder runs what the image has and, where a package has to be built, what that package brings. Neither is to be
//! believed by others than those who asked for the very same. So a tree's name says which image it was made with and what
//! was locked while nothing foreign had run yet; where that cannot be, it says what was asked for as well. And a builder
//! belongs to nobody who could reach into it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

pub use self::prepared::{Prepared, ResolvedPackage};
pub(super) use self::record::digest;
use self::record::{Record, Records};
use super::SandboxService;
use super::core::Core;
use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId};
use crate::image::Image;
use crate::network::{HostRule, Network};
use crate::package::{PackageLanguage, Packages};
use crate::secret::SecretName;
use crate::spec::{ByteSize, Limits};
use crate::tree::{KeptTrees, TreeName};

mod builder;
mod failure;
mod javascript;
mod make;
mod prepared;
mod python;
mod python_settings;
mod record;
mod said;
mod words;

/// Installations of one owner that have not begun.
const MOST_WAITING: usize = 4;

const RECORDS: &str = "packages";

/// How packages are installed. Decided once by a process that allows it.
#[derive(Clone)]
pub struct PackageSettings {
    pub host: Arc<dyn PackageHost>,
    /// Of a builder.
    pub limits: Limits,
    /// Builders at the same time, over all owners.
    pub at_once: usize,
    /// For one installation, with everything that it takes.
    pub patience: Duration,
    /// The directory of the state that says what is kept. Trees of one engine are nothing to another.
    pub records: &'static str,
}

impl PackageSettings {
    pub fn new(host: Arc<dyn PackageHost>) -> Self {
        let limits = Limits {
            cpu_millis: 2000,
            // What is fetched and what is installed are files, and files are memory.
            memory: ByteSize::mebibytes(4 * 1024),
            processes: 512,
            disk: ByteSize::mebibytes(3 * 1024),
            inodes: 1_000_000,
            open_files: 4096,
        };
        Self { host, limits, at_once: 2, patience: Duration::from_secs(20 * 60), records: RECORDS }
    }
}

impl fmt::Debug for PackageSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackageSettings").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What the machine and its operator know of packages and images. Asked at each request, so it must be quick.
#[async_trait]
pub trait PackageHost: Send + Sync + 'static {
    /// Where packages of a language come from, as the host's own clients are set up.
    fn index(&self, language: PackageLanguage) -> Result<PackageIndex>;

    /// What tells one state of an image from every other: it changes whenever the programs may have changed.
    async fn identity(&self, owner: &Owner, image: &Image) -> Result<String>;
}

/// Where packages come from, and what a builder needs to get there. No credentials: those are secrets, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageIndex {
    /// The usual one first. Without user and password.
    pub urls: Vec<String>,
    /// Registries for packages of a scope, `@scope` first.
    pub scopes: Vec<(String, String)>,
    /// All that a builder may reach.
    pub hosts: Vec<HostRule>,
    /// Those of them that may be on private addresses.
    pub private_hosts: Vec<HostRule>,
    /// Hosts whose certificates are not checked, or that have none, because the host's own client was told so.
    pub trusted_hosts: Vec<String>,
    pub secrets: BTreeSet<SecretName>,
    /// Authorities to trust besides the image's own, in PEM.
    pub certificates: Option<Vec<u8>>,
}

/// How far an installation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackageStep {
    /// Others are before it.
    Waiting,
    Resolving,
    /// So many packages.
    Installing(usize),
    Keeping,
    /// What the package manager says it does, one line.
    Said(String),
}

impl fmt::Display for PackageStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting => f.write_str("waiting for other installations"),
            Self::Resolving => f.write_str("resolving"),
            Self::Installing(1) => f.write_str("installing 1 package"),
            Self::Installing(count) => write!(f, "installing {count} packages"),
            Self::Keeping => f.write_str("keeping what was installed"),
            Self::Said(line) => f.write_str(line),
        }
    }
}

/// Packages that are kept, for whoever looks after the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageSet {
    pub tree: TreeName,
    pub language: PackageLanguage,
    /// The image that they were made with, as it was called then.
    pub image: String,
    /// Every request that they answer.
    pub requests: Vec<Vec<String>>,
    pub resolved: Vec<ResolvedPackage>,
    /// `None` when the tree itself is gone.
    pub bytes: Option<u64>,
    pub last_used: SystemTime,
}

/// Installations under way, and what is known of finished ones.
pub(super) struct Installations {
    records: Records,
    places: Semaphore,
    under_way: Mutex<HashMap<String, Arc<Installation>>>,
}

struct Installation {
    /// Who asked first.
    owner: Owner,
    /// Whoever waits for the installation listens.
    step: watch::Sender<PackageStep>,
    end: watch::Sender<Option<Result<Record, Arc<Error>>>>,
}

impl Installations {
    pub fn new(state_dir: &std::path::Path, settings: Option<&PackageSettings>) -> Self {
        Self {
            records: Records::new(&state_dir.join(settings.map_or(RECORDS, |settings| settings.records))),
            places: Semaphore::new(settings.map_or(1, |settings| settings.at_once.max(1))),
            under_way: Mutex::default(),
        }
    }
}

impl SandboxService {
    /// See to it that these packages are there for sandboxes of an image, which must be there itself. The first request
    /// installs; `progress` hears how far it is. An installation that has begun goes on when its callers go away.
    pub async fn prepare_packages(
        &self,
        owner: &Owner,
        image: &Image,
        packages: &Packages,
        mut progress: impl FnMut(&PackageStep) + Send,
    ) -> Result<Prepared> {
        let core = &self.core;
        let (settings, trees) = core.package_powers()?;
        let request = Request::new(&settings, owner, image, packages).await?;
        if let Some(record) = core.known(&request.key, &*trees).await? {
            return Ok(record.prepared());
        }
        let (installation, mut steps) = core.install(request, settings, trees)?;
        let mut ends = installation.end.subscribe();
        steps.mark_changed();
        loop {
            tokio::select! {
                biased;
                ended = ends.wait_for(Option::is_some) => {
                    return match ended.ok().and_then(|end| end.clone()) {
                        Some(Ok(record)) => Ok(record.prepared()),
                        Some(Err(error)) => Err(error.without_cause()),
                        None => Err(Error::internal("an installation ended without an answer")),
                    };
                }
                Ok(()) = steps.changed() => {
                    let step = steps.borrow_and_update().clone();
                    progress(&step);
                }
            }
        }
    }

    /// What an installation of these packages can reach.
    pub fn package_network(&self, packages: &Packages) -> Result<Network> {
        let (settings, _) = self.core.package_powers()?;
        Network::hosts(settings.host.index(packages.language())?.hosts)
    }

    /// All that is kept, the one used last first.
    pub async fn package_sets(&self) -> Result<Vec<PackageSet>> {
        let trees = self.core.settings.powers.trees.clone().ok_or_else(cannot_keep)?;
        let mut sets: HashMap<TreeName, PackageSet> = HashMap::new();
        for (_, record, last_used) in self.core.packages.records.all()? {
            let bytes = trees.kept(&record.tree).await?.map(|tree| tree.bytes);
            let set = sets.entry(record.tree.clone()).or_insert_with(|| PackageSet {
                tree: record.tree.clone(),
                language: record.language,
                image: record.image.clone(),
                requests: Vec::new(),
                resolved: record.resolved.clone(),
                bytes,
                last_used,
            });
            set.requests.push(record.requirements);
            set.last_used = set.last_used.max(last_used);
        }
        let mut sets: Vec<PackageSet> = sets.into_values().collect();
        sets.sort_by(|a, b| b.last_used.cmp(&a.last_used).then_with(|| a.tree.cmp(&b.tree)));
        Ok(sets)
    }

    /// What a sandbox was made with, as it can be asked for again. They lie beside its files and are in no image of it.
    pub async fn packages_of(&self, owner: &Owner, id: &SandboxId) -> Result<Vec<String>> {
        let attachments = self.history(owner, id).await?.attachments;
        if attachments.is_empty() {
            return Ok(Vec::new());
        }
        let attached = |record: &Record| attachments.iter().any(|attachment| attachment.tree == record.tree);
        let records = self.core.packages.records.all()?.into_iter().map(|(_, record, _)| record).filter(attached);
        let texts = records.flat_map(|Record { language, resolved, .. }| {
            let prefix = match language {
                PackageLanguage::Python => "",
                PackageLanguage::JavaScript => language.prefix(),
            };
            resolved.into_iter().map(move |one| format!("{prefix}{}", language.pinned(&one.name, &one.version)))
        });
        // Several requests may have come to the same.
        let texts: BTreeSet<String> = texts.collect();
        Ok(texts.into_iter().collect())
    }

    /// Whether there was one. Sandboxes that use it stay as they are.
    pub async fn remove_package_set(&self, tree: &TreeName) -> Result<bool> {
        let trees = self.core.settings.powers.trees.clone().ok_or_else(cannot_keep)?;
        let mut was_there = false;
        for (key, record, _) in self.core.packages.records.all()? {
            if record.tree == *tree {
                self.core.packages.records.remove(&key)?;
                was_there = true;
            }
        }
        Ok(trees.drop_kept(tree).await? || was_there)
    }
}

/// What was asked for, with all that decides what comes of it.
struct Request {
    key: String,
    owner: Owner,
    image: Image,
    identity: String,
    packages: Packages,
    index: PackageIndex,
}

impl Request {
    async fn new(settings: &PackageSettings, owner: &Owner, image: &Image, packages: &Packages) -> Result<Self> {
        let language = packages.language();
        let index = settings.host.index(language)?;
        let identity = settings.host.identity(owner, image).await?;
        let requirements = packages.requirements().iter().map(|requirement| requirement.as_str());
        let scopes = index.scopes.iter().flat_map(|(scope, url)| [scope.as_str(), url.as_str()]);
        let parts = [language.as_str(), identity.as_str()].into_iter();
        let parts = parts.chain(index.urls.iter().map(String::as_str)).chain(["scopes"]).chain(scopes);
        let key = digest(parts.chain(["requirements"]).chain(requirements));
        Ok(Self { key, owner: owner.clone(), image: image.clone(), identity, packages: packages.clone(), index })
    }
}

impl Core {
    fn package_powers(&self) -> Result<(PackageSettings, Arc<dyn KeptTrees>)> {
        let settings = self.settings.packages.clone().ok_or_else(cannot_keep)?;
        let trees = self.settings.powers.trees.clone().ok_or_else(cannot_keep)?;
        Ok((settings, trees))
    }

    async fn known(&self, key: &str, trees: &dyn KeptTrees) -> Result<Option<Record>> {
        let Some(record) = self.packages.records.read(key)? else { return Ok(None) };
        if trees.kept(&record.tree).await?.is_none() {
            return Ok(None);
        }
        self.packages.records.used(key);
        Ok(Some(record))
    }

    /// The installation that is under way for the same request, or a new one; and how far it is.
    fn install(
        self: &Arc<Self>,
        request: Request,
        settings: PackageSettings,
        trees: Arc<dyn KeptTrees>,
    ) -> Result<(Arc<Installation>, watch::Receiver<PackageStep>)> {
        let mut under_way = self.packages.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(installation) = under_way.get(&request.key) {
            return Ok((Arc::clone(installation), installation.step.subscribe()));
        }
        let waiting = under_way.values().filter(|one| one.owner == request.owner && one.is_waiting()).count();
        if waiting >= MOST_WAITING {
            return Err(Error::limit_exceeded(format!("{waiting} installations of packages wait already"))
                .with_hint("ask again when one of them has begun, or ask for all packages at once"));
        }
        let (step, steps) = watch::channel(PackageStep::Waiting);
        let installation = Arc::new(Installation { owner: request.owner.clone(), step, end: watch::Sender::new(None) });
        under_way.insert(request.key.clone(), Arc::clone(&installation));
        let (core, ours) = (Arc::clone(self), Arc::clone(&installation));
        tokio::spawn(async move {
            let key = request.key.clone();
            let Some(_place) = core.place(&key, &ours).await else { return };
            let mut ending = Ending { core: &core, key: &key, installation: &ours, made: None };
            ending.made = Some(core.make_packages(request, &settings, trees, &ours.step).await);
        });
        Ok((installation, steps))
    }

    /// Its turn among all others, or `None` when nobody waits for it any more.
    async fn place(&self, key: &str, installation: &Installation) -> Option<SemaphorePermit<'_>> {
        let mut place = pin!(self.packages.places.acquire());
        loop {
            tokio::select! {
                biased;
                () = installation.step.closed() => {
                    let mut under_way = self.packages.under_way.lock().unwrap_or_else(PoisonError::into_inner);
                    // Others come only with the lock held.
                    if installation.step.receiver_count() == 0 {
                        under_way.remove(key);
                        return None;
                    }
                }
                Ok(place) = &mut place => return Some(place),
            }
        }
    }
}

/// Answers those who wait, however the installation ends: one that nobody ends would be waited for by all who ask later.
struct Ending<'a> {
    core: &'a Core,
    key: &'a str,
    installation: &'a Installation,
    made: Option<Result<Record>>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let made = self.made.take().unwrap_or_else(|| Err(Error::internal("the installation ended unexpectedly")));
        self.core.packages.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(self.key);
        self.installation.end.send_replace(Some(made.map_err(Arc::new)));
    }
}

impl Installation {
    fn is_waiting(&self) -> bool {
        *self.step.borrow() == PackageStep::Waiting
    }
}

fn cannot_keep() -> Error {
    Error::unsupported("packages cannot be installed with this engine").with_hint("use an image that has them")
}
