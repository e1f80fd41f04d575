//! `RUN`: a command in a sandbox of the image so far, as root of that sandbox or whom `USER` names. What it changed is the
//! layer.

use std::collections::BTreeMap;
use std::sync::Arc;

use images::dockerfile::{Command, Scope};
use images::{Local, Reference, Store, Work};
use sandbox::{
    Account, Environment, Error, ErrorKind, ExecRequest, ExecStatus, GuestPath, Image, Result, Role, SandboxId,
    SandboxSpec, TreeName,
};

use super::accounts::{Accounts, User};
use super::cache::{self, Kept, Key};
use super::executor::{Executor, Outcome};
use super::output::{self, Ended};
use super::stage::StageImage;
use super::{Cache, Made, Sandboxes, image_error};
use crate::{random, time};

/// What one `RUN` is.
struct Run {
    argv: Vec<String>,
    environment: BTreeMap<String, String>,
    user: User,
    work_directory: String,
}

impl Executor<'_> {
    pub async fn run(&self, image: &StageImage, command: &Command, scope: &Scope) -> Result<Outcome> {
        let (writing, layers) = (Arc::clone(&self.writing), image.layers.clone());
        let (word, cancel) = (image.settings.config.user.clone(), self.cancel.clone());
        let finding = move || Accounts::of(&writing.tree(&layers, &Work::default().limits, &cancel)?)?.user(&word);
        let user = self.blocking(finding).await?;
        let mut environment = scope.environment();
        environment.entry("HOME".to_owned()).or_insert_with(|| user.home.clone());
        let run = Run {
            argv: image.settings.argv(command),
            environment,
            user,
            work_directory: image.settings.work_directory().to_owned(),
        };
        let name = self.step_name(self.key(image, &run))?;
        let (kept, made) = match self.cached(&name)? {
            Some(kept) => (kept, Made::FromCache),
            None => (self.run_anew(image, &run, &name).await?, Made::Layer),
        };
        let (store, blob) = (Arc::clone(self.store()), kept.layer.1.digest);
        let is_empty = self.blocking(move || is_empty(&store, blob)).await?;
        Ok(if is_empty { Outcome::NoChange } else { Outcome::Layer(Box::new(kept), made) })
    }

    fn key(&self, image: &StageImage, run: &Run) -> Key {
        let settings = &self.request.run;
        let mut key = Key::of("run 1").with(format!("{} {:?}", settings.network, settings.secrets));
        for list in [&image.layers.iter().map(|(diff_id, _)| diff_id.qualified()).collect::<Vec<_>>(), &run.argv] {
            key = list.iter().fold(key.with(list.len().to_string()), |key, part| key.with(part));
        }
        for (name, value) in &run.environment {
            key = key.with(name).with(value);
        }
        key.with(format!("{}:{}", run.user.id, run.user.group)).with(&run.work_directory)
    }

    async fn run_anew(&self, image: &StageImage, run: &Run, name: &TreeName) -> Result<Kept> {
        let sandboxes = self.workshop.sandboxes.as_ref().ok_or_else(no_sandboxes)?;
        let base = self.name_unfinished(image).await?;
        let settings = &self.request.run;
        let spec = SandboxSpec {
            image: Image::Named(base.reference.to_string().parse()?),
            limits: settings.limits,
            network: settings.network.clone(),
            secrets: settings.secrets.iter().cloned().collect(),
            work_directory: Some(GuestPath::root()),
            role: Role::Builder,
            ..SandboxSpec::new(sandboxes.owner.clone())
        };
        let sandbox = sandboxes.service.create(&sandboxes.owner, spec).await?;
        let ending = Ending { sandboxes: Some(sandboxes.clone()), id: sandbox.id };
        let mut request = ExecRequest::new(run.argv.iter().cloned(), settings.timeout)?;
        request.environment = variables(&run.environment)?;
        request.work_directory = Some(GuestPath::resolve(&GuestPath::root(), run.work_directory.as_bytes())?);
        request.account = Some(Account { user: run.user.id, group: run.user.group });
        let execution = sandboxes.service.exec(&sandboxes.owner, &ending.id, request).await?;
        let ended = tokio::select! {
            ended = output::follow(execution, self.watcher) => ended?,
            () = self.cancel.cancelled() => return Err(Error::unavailable("the build was given up")),
        };
        if ended.outcome.status != ExecStatus::Exited(0) {
            return Err(self.failure(&ended));
        }
        match self.request.cache {
            Cache::Used => {}
            // A build may do the same twice.
            Cache::Ignored | Cache::Apart => {
                sandboxes.trees.drop_kept(name).await?;
            }
        }
        sandboxes.trees.keep(&ending.id, &GuestPath::root(), name).await?;
        ending.end().await?;
        cache::look_up(self.store(), name)?.ok_or_else(|| Error::internal("a step was kept and is not there"))
    }

    /// Sandboxes start from images that have a name; this one is taken away again as soon as the sandbox is there no more.
    async fn name_unfinished(&self, image: &StageImage) -> Result<Unfinished> {
        let name = format!("{}{}", cache::UNFINISHED, random::digits()?);
        let reference = Local::Tree.reference(&name).map_err(image_error)?;
        let mut config = image.config();
        // Who runs and where is said with the command.
        config.config.user.clear();
        config.config.working_dir.clear();
        let (writing, blobs, cancel) = (Arc::clone(&self.writing), image.blobs(), self.cancel.clone());
        let unfinished = Unfinished { store: Arc::clone(self.store()), reference: reference.clone() };
        self.blocking(move || {
            let limits = Work::default().limits;
            let image = writing.assemble(config, blobs, &limits)?;
            writing.unpack_all(&image, &limits, &cancel)?;
            writing.name(&reference, &image)
        })
        .await?;
        Ok(unfinished)
    }

    fn failure(&self, ended: &Ended) -> Error {
        let settings = &self.request.run;
        let last = ended.last_line().map_or_else(String::new, |line| format!(": {line}"));
        let (kind, what, mut hint) = match ended.outcome.status {
            ExecStatus::Exited(code) => (ErrorKind::InvalidInput, format!("RUN ended with code {code}"), None),
            ExecStatus::Signalled(number) => {
                (ErrorKind::InvalidInput, format!("RUN was ended by signal {number}"), None)
            }
            ExecStatus::TimedOut => {
                let limit = time::spoken(settings.timeout);
                (
                    ErrorKind::TimedOut,
                    format!("RUN was stopped after {limit}, its time limit"),
                    Some("give it more with --timeout"),
                )
            }
            ExecStatus::OutOfMemory => {
                let what = format!("RUN used up its {} of memory, which files count to", settings.limits.memory);
                (ErrorKind::LimitExceeded, what, Some("give it more with --memory"))
            }
            ExecStatus::Cancelled | ExecStatus::Killed => (ErrorKind::Unavailable, "RUN was stopped".to_owned(), None),
        };
        let refused = tools::network::refusals(&ended.outcome.network);
        if hint.is_none() && settings.network.is_none() && ended.missed_network() {
            hint = Some("it has no network: give it one with --network HOST for what it needs, or --network internet");
        }
        let error = Error::new(kind, format!("{what}{last}"));
        match (hint, refused) {
            (Some(hint), _) => error.with_hint(hint),
            (None, Some(refused)) => error.with_hint(format!("the network refused {refused}; allow it with --network")),
            (None, None) => error,
        }
    }
}

fn no_sandboxes() -> Error {
    Error::unsupported("RUN needs root, or subordinate ids that the owners of an image's files become in a sandbox")
        .with_hint(format!(
            "install newuidmap (the package uidmap or shadow-utils) and give the user at least {} ids by `usermod --add-subuids` \
             and `--add-subgids`, or build as root; a Dockerfile without RUN can be built by everybody",
            engine_native::FEWEST_IDS_TO_BUILD
        ))
}

/// Names that no variable of a program can have are of no use to it.
fn variables(pairs: &BTreeMap<String, String>) -> Result<Environment> {
    let mut environment = Environment::default();
    for (name, value) in pairs {
        if Environment::default().insert(name.clone(), "").is_ok() {
            environment.insert(name.clone(), value.clone())?;
        }
    }
    Ok(environment)
}

/// Whether a plain layer has nothing in it.
fn is_empty(store: &Store, blob: images::Digest) -> images::Result<bool> {
    let reading = || images::Error::io("reading a layer");
    let mut archive = tar::Archive::new(store.open_blob(blob)?);
    let mut entries = archive.entries().map_err(reading())?;
    Ok(entries.next().transpose().map_err(reading())?.is_none())
}

/// The name of an image that a step runs in.
struct Unfinished {
    store: Arc<Store>,
    reference: Reference,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What stays by a fault is forgotten with the steps.
        let _ = self.store.remove_name(&self.reference);
    }
}

/// A sandbox that ends with its step, also when nobody waits for the build any more.
struct Ending {
    sandboxes: Option<Sandboxes>,
    id: SandboxId,
}

impl Ending {
    async fn end(mut self) -> Result<()> {
        match self.sandboxes.take() {
            Some(Sandboxes { service, owner, .. }) => service.stop(&owner, &self.id).await,
            None => Ok(()),
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(Sandboxes { service, owner, .. }) = self.sandboxes.take() else { return };
        let id = self.id.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { service.stop(&owner, &id).await });
        }
    }
}
