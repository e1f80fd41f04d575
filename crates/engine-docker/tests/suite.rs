//! The shared suite on a daemon: once with sandboxes that are made when they are asked for, and once with spares.

mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use engine_docker::{DockerConfig, DockerEngine};
use libtest_mimic::{Arguments, Completion, Trial};
use sandbox::engine::testsuite::{self, Case, Needs};
use sandbox::{Engine, Owner, Powers, SandboxId, SandboxSpec};
use support::Place;

fn main() -> ExitCode {
    let Some(place) = Place::of_environment() else { return support::skipped("suite") };
    let state = tempfile::tempdir().expect("a temporary directory");
    let trials = [("", 0), ("spare::", 2)].into_iter().flat_map(|(prefix, spares)| {
        let host = TestHost { place: place.clone(), state_dir: state.path().join("state"), spares };
        testsuite::cases().into_iter().map(move |case| {
            let host = host.clone();
            let run = move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                Ok(runtime.block_on(run(case, &host)))
            };
            Trial::ignorable_test(format!("{prefix}{}", case.name), run)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

#[derive(Clone)]
struct TestHost {
    place: Place,
    state_dir: PathBuf,
    spares: usize,
}

impl TestHost {
    async fn engine(&self) -> Arc<DockerEngine> {
        let config = DockerConfig { spares: self.spares, ..self.place.config(&self.state_dir) };
        let engine = Arc::new(DockerEngine::start(config).await.expect("the engine starts"));
        if self.spares > 0 {
            have_spares(&engine).await;
        }
        engine
    }
}

async fn run(case: Case, host: &TestHost) -> Completion {
    let engine = host.engine().await;
    let powers = Powers { snapshots: Some(engine.clone()), checkpoints: None, trees: None };
    if let Some(lacking) = case.lacks(&powers) {
        return Completion::ignored_with(lacking);
    }
    if case.needs == Needs::Network {
        return Completion::ignored_with("sandboxes of this engine have no network");
    }
    case.run_with_powers(engine, &powers).await;
    Completion::Completed
}

/// The first sandbox of a kind asks for spares of it; they are there some moments later.
async fn have_spares(engine: &DockerEngine) {
    let id = SandboxId::random().expect("random numbers");
    engine.create(&id, &SandboxSpec::new(Owner::local())).await.expect("a sandbox");
    engine.destroy(&id).await.expect("its end");
    tokio::time::sleep(Duration::from_millis(1500)).await;
}
