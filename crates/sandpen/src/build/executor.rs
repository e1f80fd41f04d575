//! The build itself: stage by stage, step by step.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use images::dockerfile::{Dockerfile, Instruction, Scope, Step, Transfer};
use images::layer::{LayerWriter, WrittenLayer};
use images::{Platform, Store, Work, Writing};
use sandbox::{Error, Result, TreeName};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::accounts::Accounts;
use super::cache::{self, Kept, Key, OwnSteps};
use super::copy::{self, Archives, Copying};
use super::plan::{Base, Plan, source_of};
use super::source::Source;
use super::stage::StageImage;
use super::{BuildRequest, BuiltImage, Cache, Made, News, StepReport, Watcher, Workshop, at_line, image_error};
use crate::time;

pub struct Executor<'a> {
    pub(super) workshop: &'a Workshop,
    pub(super) request: &'a BuildRequest,
    pub(super) watcher: &'a dyn Watcher,
    pub(super) cancel: CancellationToken,
    /// Work on other threads ends when the build does, however it does.
    _given_up: DropGuard,
    /// Nothing is collected meanwhile, so what has no name yet is safe.
    pub(super) writing: Arc<Writing>,
    dockerfile: Dockerfile,
    scope: Scope,
    plan: Plan,
    stages: HashMap<usize, StageImage>,
    images: HashMap<String, StageImage>,
    context: Option<Arc<Source>>,
    steps: Vec<StepReport>,
    /// Where steps are kept if not for others.
    own_steps: Option<OwnSteps>,
}

/// What a step came to.
pub(super) enum Outcome {
    Layer(Box<Kept>, Made),
    NoChange,
    Metadata,
}

impl<'a> Executor<'a> {
    pub async fn begin(
        workshop: &'a Workshop,
        request: &'a BuildRequest,
        watcher: &'a dyn Watcher,
        cancel: &CancellationToken,
    ) -> Result<Self> {
        let dockerfile = Dockerfile::parse(&request.dockerfile).map_err(image_error)?;
        let scope = Scope::new(&dockerfile, request.arguments.clone()).map_err(image_error)?;
        let plan = Plan::new(&dockerfile, &scope, request.target.as_deref())?;
        for name in scope.unknown(&dockerfile) {
            watcher.news(News::Warning(&format!("no ARG of the Dockerfile asks for the argument {name}")));
        }
        let store = Arc::clone(&workshop.store);
        let own_steps = match request.cache {
            Cache::Used | Cache::Ignored => None,
            Cache::Apart => Some(OwnSteps::new(&store)?),
        };
        let cancel = cancel.child_token();
        let given_up = cancel.clone().drop_guard();
        let beginning = move || {
            cache::forget_unfinished(&store)?;
            Writing::begin(&store)
        };
        let writing = tokio::task::spawn_blocking(beginning).await;
        let writing = writing.map_err(ended)?.map_err(image_error)?;
        Ok(Self {
            workshop,
            request,
            watcher,
            cancel,
            _given_up: given_up,
            writing: Arc::new(writing),
            dockerfile,
            scope,
            plan,
            stages: HashMap::new(),
            images: HashMap::new(),
            context: None,
            steps: Vec::new(),
            own_steps,
        })
    }

    pub async fn build(mut self) -> Result<BuiltImage> {
        for number in 0..self.dockerfile.stages.len() {
            let Some(base) = self.plan.bases[number].clone() else { continue };
            let line = self.dockerfile.stages[number].line;
            let image = self.base(&base).await.map_err(|error| at_line(line, error))?;
            let image = self.stage(number, image.continued()).await?;
            self.stages.insert(number, image);
        }
        let image = self.stages.remove(&self.plan.target).ok_or_else(|| Error::internal("the target was not built"))?;
        self.finish(image).await
    }

    async fn stage(&mut self, number: usize, mut image: StageImage) -> Result<StageImage> {
        let mut scope = self.scope.enter(&image.settings.config.env);
        let steps = self.dockerfile.stages[number].steps.clone();
        for step in &steps {
            let (number_shown, of) = (self.steps.len() + 1, self.plan.steps);
            self.watcher.news(News::Step { number: number_shown, of, line: step.line, text: &step.text });
            let instruction = scope.resolve(step).map_err(image_error)?;
            let made = self.step(number, step, &instruction, &scope, &mut image).await;
            let made = made.map_err(|error| at_line(step.line, error))?;
            self.watcher.news(News::Done(made));
            self.steps.push(StepReport { line: step.line, text: step.text.clone(), made });
        }
        Ok(image)
    }

    async fn step(
        &mut self,
        stage: usize,
        step: &Step,
        instruction: &Instruction,
        scope: &Scope,
        image: &mut StageImage,
    ) -> Result<Made> {
        if self.cancel.is_cancelled() {
            return Err(Error::unavailable("the build was given up"));
        }
        image.settings.apply(instruction)?;
        let outcome = match instruction {
            Instruction::Run(command) => self.run(image, command, scope).await?,
            Instruction::Copy(transfer) => self.copy(stage, image, transfer, Archives::Copied).await?,
            Instruction::Add(transfer) => self.copy(stage, image, transfer, Archives::Unpacked).await?,
            Instruction::Workdir(_) => self.make_work_directory(image).await?,
            Instruction::Arg(_)
            | Instruction::Env(_)
            | Instruction::User(_)
            | Instruction::Label(_)
            | Instruction::Entrypoint(_)
            | Instruction::Cmd(_)
            | Instruction::Expose(_)
            | Instruction::Volume(_)
            | Instruction::Shell(_)
            | Instruction::StopSignal(_)
            | Instruction::Healthcheck(_)
            | Instruction::Maintainer(_) => Outcome::Metadata,
        };
        Ok(match outcome {
            Outcome::Layer(kept, made) => {
                image.add_layer(kept.layer, &step.text, &self.timestamp(kept.since));
                made
            }
            Outcome::NoChange => {
                image.add_word(&step.text);
                Made::NoChange
            }
            Outcome::Metadata => {
                image.add_word(&step.text);
                Made::Metadata
            }
        })
    }

    async fn copy(
        &mut self,
        stage: usize,
        image: &StageImage,
        transfer: &Transfer,
        archives: Archives,
    ) -> Result<Outcome> {
        let from = source_of(&self.dockerfile, &Instruction::Copy(transfer.clone()), stage);
        let other = match &from {
            Some(base) => Some(self.base(base).await?.layers),
            None => None,
        };
        let context = if from.is_none() { Some(self.context()?) } else { None };
        let copying = Copying {
            transfer: transfer.clone(),
            archives,
            work_directory: image.settings.work_directory().to_owned(),
            now: self.now(),
            cancel: self.cancel.clone(),
        };
        let (writing, layers) = (Arc::clone(&self.writing), image.layers.clone());
        let written = self.blocking(move || {
            let limits = Work::default().limits;
            let base = writing.tree(&layers, &limits, &copying.cancel)?;
            let mut writer = LayerWriter::new(&writing, &base)?;
            match (other, context) {
                (Some(other), _) => {
                    let source = Source::image(writing.tree(&other, &limits, &copying.cancel)?);
                    copy::copy(&mut writer, &base, &source, &copying)?;
                }
                (None, Some(context)) => copy::copy(&mut writer, &base, &context, &copying)?,
                (None, None) => {}
            }
            writer.finish()
        });
        let written = written.await?;
        self.keep(written).await
    }

    /// It is made when it is not there, and belongs to whom programs run as from here on.
    async fn make_work_directory(&self, image: &StageImage) -> Result<Outcome> {
        let (writing, layers) = (Arc::clone(&self.writing), image.layers.clone());
        let config = image.settings.config.clone();
        let (now, cancel) = (self.now(), self.cancel.clone());
        let written = self.blocking(move || {
            let base = writing.tree(&layers, &Work::default().limits, &cancel)?;
            let owner = if config.user.is_empty() { (0, 0) } else { Accounts::of(&base)?.owner(&config.user)? };
            let mut writer = LayerWriter::new(&writing, &base)?;
            copy::make_directory(&mut writer, &config.working_dir, owner, now)?;
            writer.finish()
        });
        let written = written.await?;
        self.keep(written).await
    }

    /// One that was kept before is used although its files have other times: those are no part of what people mean.
    async fn keep(&self, written: WrittenLayer) -> Result<Outcome> {
        if written.entries == 0 {
            return Ok(Outcome::NoChange);
        }
        let name = self.step_name(Key::of("copy 1").with(written.key.qualified()))?;
        if let Some(kept) = self.cached(&name)? {
            return Ok(Outcome::Layer(Box::new(kept), Made::FromCache));
        }
        let (writing, cancel) = (Arc::clone(&self.writing), self.cancel.clone());
        let kept = self.blocking(move || {
            let blob = written.store(&writing, &cancel)?;
            cache::keep(&writing, &name, &blob)
        });
        Ok(Outcome::Layer(Box::new(kept.await?), Made::Layer))
    }

    async fn base(&mut self, base: &Base) -> Result<StageImage> {
        match base {
            Base::Scratch => Ok(StageImage::scratch()),
            Base::Stage(number) => {
                let stage = self.stages.get(number).cloned();
                stage.ok_or_else(|| Error::internal("a stage is used before it is built"))
            }
            Base::Image(name) => {
                if let Some(image) = self.images.get(name) {
                    return Ok(image.clone());
                }
                let image = self.image(name).await?;
                self.images.insert(name.clone(), image.clone());
                Ok(image)
            }
        }
    }

    fn context(&mut self) -> Result<Arc<Source>> {
        if let Some(context) = &self.context {
            return Ok(Arc::clone(context));
        }
        let context = Source::context(&self.request.context, &self.request.ignore).map_err(image_error)?;
        let context = Arc::new(context);
        self.context = Some(Arc::clone(&context));
        Ok(context)
    }

    async fn finish(self, image: StageImage) -> Result<BuiltImage> {
        let (writing, names, cancel) = (Arc::clone(&self.writing), self.request.names.clone(), self.cancel.clone());
        let layers = image.layers.clone();
        let (built, named) = self
            .blocking(move || {
                let limits = Work::default().limits;
                let built = writing.assemble(image.config(), image.blobs(), &limits)?;
                writing.unpack_all(&built, &limits, &cancel)?;
                let named = names.iter().map(|name| writing.name(name, &built)).collect::<images::Result<Vec<_>>>()?;
                Ok((built, named))
            })
            .await?;
        Ok(BuiltImage {
            manifest: built.descriptor,
            config: built.config,
            layers,
            named,
            platform: Platform::host(),
            steps: self.steps,
        })
    }

    /// What is kept of a step, if that is wanted.
    pub(super) fn cached(&self, name: &TreeName) -> Result<Option<Kept>> {
        match self.request.cache {
            Cache::Used => cache::look_up(self.store(), name),
            Cache::Ignored | Cache::Apart => Ok(None),
        }
    }

    pub(super) fn step_name(&self, key: Key) -> Result<TreeName> {
        key.name(self.own_steps.as_ref().map_or(cache::PREFIX, OwnSteps::prefix))
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.workshop.store
    }

    /// Seconds since 1970.
    pub(super) fn now(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.request.source_date.unwrap_or_else(now)
    }

    fn timestamp(&self, since: u64) -> String {
        time::rfc3339(UNIX_EPOCH + Duration::from_secs(self.request.source_date.unwrap_or(since)))
    }

    /// Work that blocks, on a thread of its own.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> images::Result<T> + Send + 'static,
    ) -> Result<T> {
        tokio::task::spawn_blocking(work).await.map_err(ended)?.map_err(image_error)
    }
}

pub(super) fn ended(cause: tokio::task::JoinError) -> Error {
    Error::internal("a build ended unexpectedly").with_cause(cause)
}
