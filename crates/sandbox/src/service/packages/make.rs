//! One installation, from a turn to a record.

use std::sync::Arc;

use tokio::sync::watch;

use super::builder::Builder;
use super::record::{self, Record};
use super::{PackageSettings, PackageStep, Request, ResolvedPackage, javascript, python};
use crate::error::{Error, ErrorKind, Result};
use crate::package::PackageLanguage;
use crate::service::core::Core;
use crate::tree::{KeptTrees, TreeName};

/// What an installation works with.
pub(super) struct Work<'a> {
    pub request: &'a Request,
    pub builder: &'a Builder,
    pub trees: &'a dyn KeptTrees,
    pub step: &'a watch::Sender<PackageStep>,
}

/// What was decided on before it is installed.
#[derive(Debug)]
pub(super) struct Lock {
    pub resolved: Vec<ResolvedPackage>,
    /// All that decides what will be installed.
    pub text: String,
    pub trust: Trust,
}

/// Whether something of a package had run before the lock was read: then it may say anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    NothingForeignRan,
    OnlyForTheSameRequest,
}

/// What the image's own interpreter says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interpreter {
    /// Version, ABI, platform and C library: what packages are made for.
    pub kind: String,
    pub path: String,
    pub python_path: String,
}

impl Work<'_> {
    pub fn report(&self, step: PackageStep) {
        self.step.send_replace(step);
    }

    /// What the tree of a lock is called: see the top of the service's part.
    pub fn tree(&self, interpreter: &Interpreter, lock: &Lock) -> Result<TreeName> {
        let language = self.request.packages.language().as_str();
        let scope = match lock.trust {
            Trust::NothingForeignRan => "",
            Trust::OnlyForTheSameRequest => self.request.key.as_str(),
        };
        let parts = [language, &self.request.identity, &interpreter.kind, scope, &lock.text];
        format!("{language}/{}", record::digest(parts)).parse()
    }

    /// Keep what lies in a directory of the builder.
    pub async fn keep(&self, directory: &str, tree: &TreeName) -> Result<()> {
        self.report(PackageStep::Keeping);
        self.trees.keep(&self.builder.id, &self.builder.path(directory)?, tree).await.map(drop)
    }

    pub fn record(&self, interpreter: Interpreter, lock: Lock, tree: TreeName) -> Record {
        let packages = &self.request.packages;
        Record {
            language: packages.language(),
            image: self.request.image.shown(),
            requirements: packages.requirements().iter().map(|one| one.as_str().to_owned()).collect(),
            tree,
            resolved: lock.resolved,
            path: bounded(interpreter.path),
            python_path: bounded(interpreter.python_path),
        }
    }
}

/// A variable of an image that is longer than this is left alone: it would not fit beside ours.
fn bounded(text: String) -> String {
    const LONGEST: usize = 4096;
    if text.len() > LONGEST { String::new() } else { text }
}

impl Core {
    pub(super) async fn make_packages(
        self: &Arc<Self>,
        request: Request,
        settings: &PackageSettings,
        trees: Arc<dyn KeptTrees>,
        step: &watch::Sender<PackageStep>,
    ) -> Result<Record> {
        let _turn = self.packages.records.turn(&request.key).await?;
        if let Some(record) = self.known(&request.key, &*trees).await? {
            return Ok(record);
        }
        step.send_replace(PackageStep::Resolving);
        let builder = Builder::start(self, &request, settings).await?;
        let work = Work { request: &request, builder: &builder, trees: &*trees, step };
        let making = async {
            match request.packages.language() {
                PackageLanguage::Python => python::make(&work).await,
                PackageLanguage::JavaScript => javascript::make(&work).await,
            }
        };
        let made = tokio::time::timeout(settings.patience, making).await;
        builder.end().await;
        let record = made.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::TimedOut, format!("installing {} took too long", request.packages))
                .with_hint("ask for fewer packages, or for versions that need not be built"))
        })?;
        self.packages.records.write(&request.key, &record)?;
        Ok(record)
    }
}
