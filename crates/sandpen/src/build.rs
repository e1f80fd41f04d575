//! Images from Dockerfiles: files are copied into layers here, commands run in sandboxes, and each finished step is kept for
//! the next build.
//!
//! ```text
//! FROM, COPY --from ──▶ bases: the store, a registry, an earlier stage
//! COPY, ADD, WORKDIR ─▶ copy: a layer written over the tree of the image so far
//! RUN ────────────────▶ run: a sandbox of the image so far, whose changes are the layer
//! everything else ────▶ metadata
//! ```
//!
//! No path of an image or of the context is followed by the host's kernel: `images::overlaid` does that, name by name.

pub use self::plan::check_platform;

mod accounts;
mod bases;
pub mod cache;
mod copy;
mod executor;
mod metadata;
mod output;
mod plan;
mod run;
mod source;
mod stage;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use images::registry::Settings;
use images::work::Silent;
use images::{Descriptor, Digest, Error as ImageError, ImageConfig, Named, Platform, Reference, Store};
use sandbox::{ByteSize, Error, KeptTrees, Limits, Network, Owner, Result, SandboxService, SecretName};
use tokio_util::sync::CancellationToken;

/// What a build works with.
#[derive(Clone)]
pub struct Workshop {
    pub store: Arc<Store>,
    /// Where `RUN` happens. Without one, Dockerfiles that have no `RUN` can be built.
    pub sandboxes: Option<Sandboxes>,
    /// How images are fetched that are not here; `None` fetches none.
    pub registries: Option<Settings>,
}

#[derive(Clone)]
pub struct Sandboxes {
    pub service: SandboxService,
    pub trees: Arc<dyn KeptTrees>,
    /// Nobody who asks for something: commands run there as root of the sandbox, and are the build's alone.
    pub owner: Owner,
}

impl Sandboxes {
    /// `None` if the engine cannot keep what a command changed, or if its sandboxes could not change anything: those of a
    /// user who has no ids for the owners of an image's files may not touch them.
    pub fn new(service: &SandboxService, asker: &Owner) -> Option<Self> {
        if !engine_native::can_build() {
            return None;
        }
        let trees = service.powers().trees.clone()?;
        Some(Self { service: service.clone(), trees, owner: service.builds_of(asker) })
    }
}

/// What is to be built.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// The text of the Dockerfile.
    pub dockerfile: String,
    /// The directory that files are copied from.
    pub context: PathBuf,
    /// The text of `.dockerignore`.
    pub ignore: String,
    /// A stage, by name or number; the last one if none is named.
    pub target: Option<String>,
    pub arguments: BTreeMap<String, String>,
    /// What the image is called when it is done. Without a name it is collected with the next chance.
    pub names: Vec<Reference>,
    pub cache: Cache,
    pub bases: Bases,
    pub run: RunSettings,
    /// Seconds since 1970 that stand for now, for images that are the same whenever they are built.
    pub source_date: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    Used,
    /// Every step is done again, and kept in the place of what was kept before.
    Ignored,
    /// Every step is done again and is gone with the build: no other build ever sees what whoever asked for this one made.
    Apart,
}

/// When images are fetched that a Dockerfile starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bases {
    Missing,
    /// Also when they are here.
    Always,
}

/// What a `RUN` gets.
#[derive(Clone, Debug)]
pub struct RunSettings {
    pub network: Network,
    pub secrets: Vec<SecretName>,
    pub limits: Limits,
    pub timeout: Duration,
}

impl Default for RunSettings {
    /// More than other sandboxes: compilers and package managers are what runs here, at the wish of whoever built.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            network: Network::None,
            secrets: Vec::new(),
            limits: Limits {
                cpu_millis: u32::try_from(processors).unwrap_or(1).saturating_mul(1000),
                memory: ByteSize::mebibytes(4096),
                processes: 1024,
                disk: ByteSize::mebibytes(4096),
                inodes: 1_000_000,
                open_files: 4096,
            },
            timeout: Duration::from_secs(30 * 60),
        }
    }
}

impl BuildRequest {
    pub fn new(dockerfile: impl Into<String>, context: impl Into<PathBuf>) -> Self {
        Self {
            dockerfile: dockerfile.into(),
            context: context.into(),
            ignore: String::new(),
            target: None,
            arguments: BTreeMap::new(),
            names: Vec::new(),
            cache: Cache::Used,
            bases: Bases::Missing,
            run: RunSettings::default(),
            source_date: None,
        }
    }
}

/// An image whose parts are in the store.
#[derive(Clone, Debug)]
pub struct BuiltImage {
    pub manifest: Descriptor,
    pub config: ImageConfig,
    /// The lowest first, with its digest when it is not compressed.
    pub layers: Vec<(Digest, Descriptor)>,
    pub named: Vec<Named>,
    pub platform: Platform,
    pub steps: Vec<StepReport>,
}

/// What became of one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepReport {
    pub line: usize,
    pub text: String,
    pub made: Made,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// A layer, by doing it.
    Layer,
    /// A layer that an earlier build made.
    FromCache,
    /// Files are as they were, so there is no layer.
    NoChange,
    /// A word in the image's configuration.
    Metadata,
}

/// What happens while a build goes on.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    Pulling(&'a Reference),
    Pulled(&'a Reference),
    Step { number: usize, of: usize, line: usize, text: &'a str },
    Output(&'a [u8]),
    Done(Made),
    Warning(&'a str),
}

/// Whoever wants to know. Called from the task that builds.
pub trait Watcher: Send + Sync {
    fn news(&self, news: News<'_>);

    /// How far a pull is.
    fn pull_progress(&self) -> Arc<dyn images::Progress> {
        Arc::new(Silent)
    }
}

/// Tells nobody.
impl Watcher for Silent {
    fn news(&self, _: News<'_>) {}
}

/// Builds an image. Names appear only when all of it is done; steps that were finished are kept whatever happens. When the
/// future is dropped or `cancel` is used, what is under way is given up.
pub async fn build(
    workshop: &Workshop,
    request: &BuildRequest,
    watcher: &dyn Watcher,
    cancel: &CancellationToken,
) -> Result<BuiltImage> {
    self::executor::Executor::begin(workshop, request, watcher, cancel).await?.build().await
}

/// What went wrong with a file, a layer or the Dockerfile.
pub fn image_error(error: ImageError) -> Error {
    match error {
        ImageError::Refused(what) | ImageError::Invalid(what) => Error::invalid_input(what),
        ImageError::LimitExceeded(what) => Error::limit_exceeded(what),
        ImageError::Unsupported(what) => Error::unsupported(what),
        ImageError::NotFound(what) => Error::not_found(what),
        ImageError::Denied(what) => Error::denied(what),
        ImageError::Unavailable(what) => Error::unavailable(what),
        ImageError::Cancelled => Error::unavailable("the build was given up"),
        ImageError::Io { doing, source } => {
            Error::unavailable(format!("{} while {doing}", crate::output::reason(&source))).with_cause(source)
        }
    }
}

/// The same error, with the line that it is about.
fn at_line(line: usize, error: Error) -> Error {
    let located = Error::new(error.kind(), format!("line {line} of the Dockerfile: {}", error.message()));
    let located = match error.hint() {
        Some(hint) => located.with_hint(hint),
        None => located,
    };
    match error.cause() {
        Some(cause) => located.with_cause(cause.to_string()),
        None => located,
    }
}

impl fmt::Debug for Workshop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workshop").field("store", &self.store.directory()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandboxes").field("owner", &self.owner).finish_non_exhaustive()
    }
}
