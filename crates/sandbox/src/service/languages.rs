//! Which languages sandboxes can run, found out by asking their programs inside of one.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::core::Core;
use super::{SandboxInfo, SandboxService};
use crate::error::{ErrorKind, Result};
use crate::event::StopReason;
use crate::exec::{ExecRequest, ExecStatus};
use crate::id::Owner;
use crate::image::{Image, ImageName};
use crate::output::OutputCaps;
use crate::runner::{ImageRunner, ImageRunners, Runner, Runners};
use crate::spec::SandboxSpec;

/// A compiler that was never started needs its time to say its version.
const PATIENCE: Duration = Duration::from_secs(20);

/// Programs that are asked at the same time: more would only wait for each other.
const AT_ONCE: usize = 4;

/// A language, and the program for it that an image has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Language {
    pub name: String,
    pub title: String,
    /// What the program says of itself; `None` when there is none.
    pub version: Option<String>,
    /// How to get it where it is missing.
    pub remedy: Option<String>,
}

impl SandboxService {
    /// The image for code in a language, when this one was asked for. Only where the host's own is none of the engine's it
    /// is another: an image that says that it runs the language, or else the one that is published for it.
    pub async fn image_for(&self, language: &str, asked: Image) -> Result<Image> {
        let Some(source) = self.core.settings.image_runners.as_ref().filter(|_| asked == Image::Host) else {
            return Ok(asked);
        };
        let found = source.list().await?;
        let runners = self.core.settings.runners.clone().joined_by(&found);
        image_among(&found, runners.find(language)?)
    }

    /// A language by name or alias. One that came with an image since the start is known too.
    pub async fn runner(&self, language: &str) -> Result<Runner> {
        self.core.runner(language).await
    }

    /// All languages that code can be in at this moment.
    pub async fn current_runners(&self) -> Result<Runners> {
        self.core.current_runners().await
    }

    /// Whether languages can come and go while the service runs.
    pub fn has_changing_runners(&self) -> bool {
        self.core.settings.image_runners.is_some()
    }

    /// Images that say that they are runners and are none, each as a sentence with the reason.
    pub async fn refused_runners(&self) -> Result<Vec<String>> {
        match &self.core.settings.image_runners {
            Some(source) => source.refused().await,
            None => Ok(Vec::new()),
        }
    }

    /// The languages of an image, in the order of the runners. Asked once, and again when the image may be another.
    pub async fn languages(&self, owner: &Owner, image: &Image) -> Result<Vec<Language>> {
        let core = &self.core;
        if let Some(source) = core.settings.image_runners.as_ref().filter(|_| *image == Image::Host) {
            return self.languages_by_image(&**source).await;
        }
        let asked_at = core.clock.now();
        if let Some(known) = core.languages.get(owner, image, &(), asked_at) {
            return Ok(known);
        }
        let spec = SandboxSpec { image: image.clone(), ..SandboxSpec::new(owner.clone()) };
        let sandbox = self.create(owner, spec).await?;
        let found = survey(core, &sandbox).await;
        core.end(&sandbox.id, StopReason::Asked).await?;
        let found = found?;
        core.languages.put(owner, image, (), found.clone(), asked_at);
        Ok(found)
    }

    /// Where each language is on an image of its own, that image is what can be told of it without fetching it: a run of code
    /// would have it.
    async fn languages_by_image(&self, source: &dyn ImageRunners) -> Result<Vec<Language>> {
        let found = source.list().await?;
        let mut languages = Vec::new();
        for runner in self.core.settings.runners.clone().joined_by(&found).iter() {
            let version = match image_among(&found, runner)? {
                Image::Host => None,
                Image::Named(name) if !source.can_be_had(&name).await? => None,
                image => Some(format!("on the image {}", image.shown())),
            };
            let remedy = version.is_none().then(|| "ask for an image that has it".to_owned());
            languages.push(Language { name: runner.name.clone(), title: runner.title.clone(), version, remedy });
        }
        Ok(languages)
    }
}

impl Core {
    /// Images are asked only for a language that is not known otherwise: asking costs a question to the daemon.
    pub(super) async fn runner(&self, language: &str) -> Result<Runner> {
        match self.settings.runners.find(language) {
            Ok(runner) => Ok(runner.clone()),
            Err(_) => self.current_runners().await?.find(language).cloned(),
        }
    }

    async fn current_runners(&self) -> Result<Runners> {
        let known = self.settings.runners.clone();
        match &self.settings.image_runners {
            Some(source) => Ok(known.joined_by(&source.list().await?)),
            None => Ok(known),
        }
    }

    /// Whether this very image says that it runs this language.
    pub(super) async fn image_runner(&self, runner: &Runner, image: &ImageName) -> Result<Option<ImageRunner>> {
        let Some(source) = &self.settings.image_runners else { return Ok(None) };
        let is_it = |found: &ImageRunner| runs(found, runner) && source.is_same(&found.image, image);
        Ok(source.list().await?.into_iter().find(is_it))
    }
}

fn runs(found: &ImageRunner, runner: &Runner) -> bool {
    found.language == runner.name || runner.aliases.contains(&found.language)
}

/// Of images that say what they run, the first for this language; or else the one that is published for it, if there is one.
fn image_among(found: &[ImageRunner], runner: &Runner) -> Result<Image> {
    match found.iter().find(|found| runs(found, runner)) {
        Some(own) => Ok(Image::Named(own.image.clone())),
        None => runner.image.as_ref().map_or(Ok(Image::Host), |published| published.parse()),
    }
}

async fn survey(core: &Arc<Core>, sandbox: &SandboxInfo) -> Result<Vec<Language>> {
    let runners: Vec<Runner> = core.settings.runners.iter().cloned().collect();
    let mut versions: Vec<Option<String>> = vec![None; runners.len()];
    let mut asking = JoinSet::new();
    for (index, runner) in runners.iter().cloned().enumerate() {
        if asking.len() >= AT_ONCE {
            keep(&mut versions, asking.join_next().await)?;
        }
        let (core, sandbox) = (Arc::clone(core), sandbox.clone());
        asking.spawn(async move { version(&core, &sandbox, &runner).await.map(|version| (index, version)) });
    }
    while let Some(answer) = asking.join_next().await {
        keep(&mut versions, Some(answer))?;
    }
    let languages = runners.into_iter().zip(versions).map(|(runner, version)| Language {
        remedy: if version.is_none() && sandbox.image == Image::Host { runner.remedy() } else { None },
        name: runner.name,
        title: runner.title,
        version,
    });
    Ok(languages.collect())
}

type Answer = std::result::Result<Result<(usize, Option<String>)>, tokio::task::JoinError>;

fn keep(versions: &mut [Option<String>], answer: Option<Answer>) -> Result<()> {
    if let Some(Ok(answered)) = answer {
        let (index, version) = answered?;
        versions[index] = version;
    }
    Ok(())
}

async fn version(core: &Arc<Core>, sandbox: &SandboxInfo, runner: &Runner) -> Result<Option<String>> {
    for request in runner.probe_requests(PATIENCE)? {
        if let Some(program) = request.argv().first()
            && let Some(check) = runner.check(program)
            && !core.is_suitable(sandbox, &ExecRequest::new(check.to_vec(), PATIENCE)?).await?
        {
            continue;
        }
        match core.exec(&sandbox.owner, &sandbox.id, &request).await {
            Ok(execution) => {
                let captured = execution.capture(OutputCaps { head: 4096, tail: 0 }).await?;
                if captured.outcome.status == ExecStatus::Exited(0) {
                    // Some print their version where errors go.
                    let said = [captured.stdout, captured.stderr].map(|output| output.to_text());
                    let line = said.iter().flat_map(|text| text.lines()).find(|line| !line.trim().is_empty());
                    return Ok(Some(line.unwrap_or_default().trim().to_owned()));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                core.locate(&sandbox.owner, &sandbox.id)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
