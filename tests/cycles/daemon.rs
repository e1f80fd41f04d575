//! On a daemon, where what stays behind may be the daemon's.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_docker::{DockerConfig, DockerEngine};
use sandbox::{Engine, Owner, SandboxId, SandboxSpec};
use sandpen_tests::census::Scope;
use sandpen_tests::daemon::Given;
use sandpen_tests::random::unique;
use sandpen_tests::{Result, number_from};

use crate::view::View;
use crate::{AT_ONCE, Counted, Like, cycle, round};

/// A daemon takes a hundred times as long for one as the embedded engine does.
const COUNT: u64 = 100;
/// Until spares are there, and connections and the daemon's own caches as many as they will be.
const WARM_UP: u64 = 20;
/// For what a daemon clears away after it has answered.
const SETTLES: Duration = Duration::from_secs(60);

/// An engine of ours, and whose traces to look for.
struct Lab<'a> {
    daemon: &'a Given,
    engine: Arc<DockerEngine>,
    scope: Scope,
}

impl<'a> Lab<'a> {
    async fn start(daemon: &'a Given, state: &Path, spares: usize) -> Result<Self> {
        let config = DockerConfig { spares, ..daemon.config(state)? };
        let scope = Scope::new(state, [config.instance.to_string()]);
        Ok(Self { daemon, engine: Arc::new(DockerEngine::start(config).await?), scope })
    }

    fn view(&self) -> Result<View> {
        View::take(self.daemon, &self.scope)
    }

    /// As a server ends.
    async fn end(self) -> Scope {
        self.engine.close().await;
        self.scope
    }
}

pub(crate) async fn cycles(daemon: &Given, spares: usize, like: &Like) -> Result<Counted> {
    let cycles = number_from("SANDPEN_TEST_CYCLES", COUNT);
    let state = tempfile::Builder::new().prefix("sandpen-test-").tempdir()?;
    let empty = emptied(daemon, state.path()).await?;
    let lab = Lab::start(daemon, state.path(), spares).await?;
    for _ in 0..WARM_UP / AT_ONCE {
        round(&*lab.engine, like).await?;
    }
    let before = with_spares(&lab, empty.containers() + spares).await?;
    let started = Instant::now();
    for _ in 0..cycles.div_ceil(AT_ONCE) {
        round(&*lab.engine, like).await?;
    }
    let took = started.elapsed();
    let (after, mut leaks) = before.differences_within(daemon, &lab.scope, SETTLES).await?;
    let scope = lab.end().await;
    let (_, left) = empty.differences_within(daemon, &scope, SETTLES).await?;
    leaks.extend(left.into_iter().map(|leak| format!("after the engine's end: {leak}")));
    let grown_kib = after.memory_kib().saturating_sub(before.memory_kib());
    Ok(Counted { cycles, took, leaks, grown_kib, classes: before.classes() })
}

/// What there is when an engine has come and gone: it brings the daemon its process 1, which stays.
async fn emptied(daemon: &Given, state: &Path) -> Result<View> {
    let lab = Lab::start(daemon, state, 0).await?;
    cycle(&*lab.engine, &Like::PLAIN).await?;
    let scope = lab.end().await;
    settled(daemon, &scope).await
}

/// One that is the same twice.
async fn settled(daemon: &Given, scope: &Scope) -> Result<View> {
    let started = Instant::now();
    loop {
        let view = View::take(daemon, scope)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let differences = view.differences(&View::take(daemon, scope)?);
        if differences.is_empty() {
            return Ok(view);
        }
        if started.elapsed() > SETTLES {
            return Err(format!("the daemon does not come to rest: {}", differences.join("; ")).into());
        }
    }
}

async fn with_spares(lab: &Lab<'_>, containers: usize) -> Result<View> {
    let started = Instant::now();
    loop {
        let view = settled(lab.daemon, &lab.scope).await?;
        if view.containers() == containers {
            return Ok(view);
        }
        if started.elapsed() > SETTLES {
            return Err(format!("there are {} containers instead of {containers}", view.containers()).into());
        }
    }
}

/// The negative control of the view: one thing of each kind is left on purpose, and must be seen.
pub(crate) async fn control(daemon: &Given) -> Result<()> {
    let state = tempfile::Builder::new().prefix("sandpen-test-").tempdir()?;
    emptied(daemon, state.path()).await?;
    let lab = Lab::start(daemon, state.path(), 0).await?;
    cycle(&*lab.engine, &Like::PLAIN).await?;
    let before = settled(daemon, &lab.scope).await?;
    let id = SandboxId::random()?;
    lab.engine.create(&id, &SandboxSpec::new(Owner::local())).await?;
    let seen = before.differences(&lab.view()?);
    lab.engine.destroy(&id).await?;
    for class in ["containers: ", "processes of the daemon: ", "groups of the daemon: ", "mounts of the daemon: "] {
        expect(class, &seen)?;
    }
    let (_, again) = before.differences_within(daemon, &lab.scope, SETTLES).await?;
    if !again.is_empty() {
        return Err(format!("the same is not seen twice: {}", again.join("; ")).into());
    }
    let left = unique("left");
    for (class, made, removed) in [
        (
            "containers: ",
            &["create", "--network", "none", "--name", &left, &daemon.image, "true"][..],
            &["rm", &left] as &[&str],
        ),
        ("volumes: ", &["volume", "create", &left], &["volume", "rm", &left]),
        ("images: ", &["tag", &daemon.image, &left], &["rmi", &left]),
    ] {
        daemon.docker(made)?;
        let seen = before.differences(&lab.view()?);
        daemon.docker(removed)?;
        expect(class, &seen)?;
    }
    // To make one would be to make a device on the host.
    expect("networks: ", &before.differences(&lab.view()?.with_network(&left)))?;
    lab.end().await;
    Ok(())
}

fn expect(class: &str, seen: &[String]) -> Result<()> {
    if seen.iter().any(|line| line.starts_with(class)) {
        return Ok(());
    }
    Err(format!("what was left of {class:?} was not seen, but {seen:?}").into())
}
