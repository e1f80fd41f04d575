//! The shared suite on a daemon, which is named by `SANDPEN_TEST_ENGINE` (`docker` or `podman`), `SANDPEN_TEST_DAEMON` (its
//! address) and `SANDPEN_TEST_IMAGE` (an image with a POSIX shell and its tools). Once with sandboxes that are made when they
//! are asked for, and once with spares.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use engine_docker::{DockerConfig, DockerEngine, Flavour, Wish};
use libtest_mimic::{Arguments, Completion, Trial};
use sandbox::engine::testsuite::{self, Case, Needs};
use sandbox::{Engine, InstanceId, Owner, Powers, SandboxId, SandboxSpec};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(place) = Place::of_environment() else {
        println!("skipped: SANDPEN_TEST_ENGINE, SANDPEN_TEST_DAEMON and SANDPEN_TEST_IMAGE name no daemon");
        let skipped = Trial::ignorable_test("suite", || Ok(Completion::ignored_with("there is no daemon")));
        return libtest_mimic::run(&arguments, vec![skipped.with_ignored_flag(true)]).exit_code();
    };
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
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

#[derive(Clone)]
struct Place {
    flavour: Flavour,
    address: String,
    image: String,
}

impl Place {
    fn of_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let flavour = match variable("SANDPEN_TEST_ENGINE")?.as_str() {
            "docker" => Flavour::Docker,
            "podman" => Flavour::Podman,
            other => panic!("SANDPEN_TEST_ENGINE is {other:?}, which is no engine of this crate"),
        };
        Some(Self { flavour, address: variable("SANDPEN_TEST_DAEMON")?, image: variable("SANDPEN_TEST_IMAGE")? })
    }
}

#[derive(Clone)]
struct TestHost {
    place: Place,
    state_dir: PathBuf,
    spares: usize,
}

impl TestHost {
    async fn engine(&self) -> Arc<DockerEngine> {
        let instance = InstanceId::random().expect("random numbers");
        let config = DockerConfig {
            wish: Wish { host: Some(self.place.address.clone()), context: None },
            default_image: Some(self.place.image.clone()),
            spares: self.spares,
            ..DockerConfig::new(self.place.flavour, self.state_dir.clone(), instance)
        };
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
