//! Does a Dockerfile make the sandbox anew? It is built, and the trees are compared.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use images::difference::{self, Sides};
use images::registry::Settings;
use images::{Digest, Local, Reference, Store};
use sandbox::{Error, ErrorKind, GuestPath, Owner, Result, SandboxInfo, SandboxService};
use tokio_util::sync::CancellationToken;
use tools::Progress;
use tools::export::{Difference, Outcome, What};

use super::base::{Base, blocking};
use super::render::Rendered;
use super::{passing, paths};
use crate::build::{self, BuildRequest, Cache, News, RunSettings, Sandboxes, Watcher, Workshop};
use crate::commands::image::image_error;
use crate::random;

/// Differences that are told; the rest is counted.
const MOST: usize = 200;

/// What builds work with.
#[derive(Clone)]
pub struct Verifier {
    pub service: SandboxService,
    pub store: Arc<Store>,
    /// How a base is fetched that is not here.
    pub registries: Option<Settings>,
    /// For one command that is done again.
    pub timeout: Duration,
}

pub enum Verified {
    Outcome(Outcome),
    /// A step of it fails, so another way may succeed.
    Failed(String),
}

/// One attempt.
pub struct Attempt<'a> {
    pub owner: &'a Owner,
    pub sandbox: &'a SandboxInfo,
    pub base: &'a Arc<Base>,
    pub rendered: &'a Rendered,
    pub context: &'a Path,
    pub progress: &'a Arc<dyn Progress>,
}

impl Verifier {
    pub async fn verify(&self, attempt: &Attempt<'_>, cancel: &CancellationToken) -> Result<Verified> {
        let Attempt { owner, sandbox, base, rendered, context, progress } = *attempt;
        if let Some(side) = &base.daemon {
            return match side.verify(&self.store, base, rendered.check.text(), context, cancel).await {
                Ok(verified) => Ok(verified),
                Err(error) => judged(error),
            };
        }
        let workshop = Workshop {
            store: Arc::clone(&self.store),
            sandboxes: Sandboxes::new(&self.service, owner),
            registries: self.registries.clone(),
        };
        let reference = Local::Export.reference(&random::digits()?).map_err(image_error)?;
        let name = passing::Name::new(&self.store, reference);
        let request = BuildRequest {
            names: vec![name.reference.clone()],
            // A step that was kept would compare equal to itself, and what is made here is whatever its owner wants.
            cache: Cache::Apart,
            // No more than the sandbox had.
            run: RunSettings {
                network: sandbox.network.clone(),
                limits: sandbox.limits,
                timeout: self.timeout,
                secrets: Vec::new(),
            },
            ..BuildRequest::new(rendered.check.text(), context)
        };
        let watcher = Telling(Arc::clone(progress));
        if let Err(error) = build::build(&workshop, &request, &watcher, cancel).await {
            return judged(error);
        }
        let (store, base, reference) = (Arc::clone(&self.store), Arc::clone(base), name.reference.clone());
        let cancel = cancel.clone();
        let compared = blocking(move || compare(&store, &base, &reference, &cancel)).await?;
        drop(name);
        Ok(Verified::Outcome(told(compared)))
    }
}

/// A comparison for those who asked for the export.
pub fn told(compared: difference::Comparison) -> Outcome {
    let tell = |one: difference::Difference| {
        let path = GuestPath::root().join(&one.path).unwrap_or_else(|_| GuestPath::root());
        Difference { path, what: word(one.what) }
    };
    Outcome::Compared {
        same: compared.same,
        differences: compared.differences.into_iter().map(tell).collect(),
        more: compared.more,
    }
}

/// What a build that came to nothing means.
fn judged(error: Error) -> Result<Verified> {
    let told = match error.hint() {
        Some(hint) => format!("{} ({hint})", error.message()),
        None => error.message().to_owned(),
    };
    match error.kind() {
        // A command that fails, takes too long or wants too much.
        ErrorKind::InvalidInput | ErrorKind::TimedOut | ErrorKind::LimitExceeded => Ok(Verified::Failed(told)),
        ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::Unavailable => {
            Ok(Verified::Outcome(Outcome::NotBuilt(told)))
        }
        ErrorKind::AlreadyExists | ErrorKind::WrongState | ErrorKind::Internal => Err(error),
    }
}

fn compare(
    store: &Store,
    base: &Base,
    built: &Reference,
    cancel: &CancellationToken,
) -> images::Result<difference::Comparison> {
    let gone = || images::Error::NotFound("an image that was built is gone".to_owned());
    let built = store.resolve(built)?.ok_or_else(gone)?;
    let from = store.resolve(&base.reference)?.ok_or_else(gone)?;
    let prefix: Vec<Digest> = from.layers.iter().map(|layer| layer.diff_id).collect();
    let own: Vec<Digest> = built.layers.iter().map(|layer| layer.diff_id).collect();
    let count = if own.starts_with(&prefix) { prefix.len() } else { 0 };
    let sides = Sides { below: &built.layers[..count], wanted: base.own_layers(), made: &built.layers[count..] };
    compare_sides(store, base, sides, cancel)
}

/// What is worth comparing of both.
pub fn compare_sides(
    store: &Store,
    base: &Base,
    sides: Sides<'_>,
    cancel: &CancellationToken,
) -> images::Result<difference::Comparison> {
    let home = base.home();
    let ignored = |path: &[u8]| {
        if path.is_empty() {
            return false;
        }
        GuestPath::root().join(path).map_or(true, |path| paths::is_left_out(&path, &home) || paths::is_passing(&path))
    };
    difference::compare(store, sides, &ignored, MOST, cancel)
}

fn word(what: difference::What) -> What {
    match what {
        difference::What::Missing => What::Missing,
        difference::What::Extra => What::Extra,
        difference::What::Kind => What::Kind,
        difference::What::Contents => What::Contents,
        difference::What::Target => What::Target,
        difference::What::Mode => What::Mode,
        difference::What::Owner => What::Owner,
    }
}

struct Telling(Arc<dyn Progress>);

impl Watcher for Telling {
    fn news(&self, news: News<'_>) {
        match news {
            News::Step { number, of, text, .. } => self.0.report(&format!("step {number} of {of}: {text}")),
            News::Pulling(reference) => self.0.report(&format!("fetching {}", reference.familiar())),
            News::Pulled(_) | News::Output(_) | News::Done(_) | News::Warning(_) => {}
        }
    }
}
