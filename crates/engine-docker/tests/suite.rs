//! The shared suite on a daemon: once with sandboxes that are made when they are asked for, and once with spares.

mod support;

use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use egress::{Gateway, GatewaySettings, Secret, SecretSource, SecretValue, Vault};
use engine_docker::{DockerConfig, DockerEngine};
use libtest_mimic::{Arguments, Completion, Trial};
use sandbox::engine::testsuite::{self, Case, Needs, Outside};
use sandbox::{Engine, HostRule, Network, Owner, Powers, SandboxId, SandboxSpec, SecretName};
use support::Place;

/// Cases that a kernel which is not Linux cannot pass, each with its reason. They are said aloud.
const DIFFERENT_IN_GVISOR: &[(&str, &str)] = &[
    ("kernel::it_is_an_ordinary_user", "gVisor's /proc has two of the lines not; containers:: asks in another way"),
    ("kernel::memory_that_is_used_up_is_told", "gVisor ends with all that is in it, which is told; see containers::"),
    ("kernel::processes_are_bounded", "gVisor ends with all that is in it when there are too many processes"),
    (
        "roots::process_1_is_out_of_its_roots_reach",
        "gVisor shows environments to all and lets root end process 1; containers:: asks what holds there",
    ),
    ("links::absolute_links_start_at_the_sandboxs_root", "gVisor of 2022 takes a link to / for the end of a path"),
    (
        "terminals::an_end_of_input_is_typed_too",
        "gVisor of 2022 gives no end of a line that is empty to who reads lines",
    ),
    ("terminals::control_c_interrupts", "gVisor of 2022 makes no signals of what is typed"),
];

fn main() -> ExitCode {
    let Some(place) = Place::of_environment() else { return support::skipped("suite") };
    let state = tempfile::tempdir().expect("a temporary directory");
    let name = Outside::own_name();
    if name.is_none() {
        println!("the hosts file has no name for this machine but localhost: behaviours with a network are ignored");
    }
    let trials = [("", 0), ("spare::", 2)].into_iter().flat_map(|(prefix, spares)| {
        let state_dir = state.path().join("state");
        let host = TestHost { place: place.clone(), state_dir, spares, name: name.clone() };
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
    name: Option<(String, IpAddr)>,
}

impl TestHost {
    /// Why a case does not hold here.
    fn differs(&self, case: &Case) -> Option<&'static str> {
        if !self.place.is_gvisor() {
            return None;
        }
        let network = (case.needs == Needs::Network).then_some("sandboxes of gVisor have no network");
        network.or(DIFFERENT_IN_GVISOR.iter().find(|(name, _)| *name == case.name).map(|(_, why)| *why))
    }

    async fn engine(&self) -> Arc<DockerEngine> {
        self.engine_with(GatewaySettings::default(), SandboxSpec::new(Owner::local())).await
    }

    /// With spares of this kind.
    async fn engine_with(&self, settings: GatewaySettings, kind: SandboxSpec) -> Arc<DockerEngine> {
        let gateway = Arc::new(Gateway::new(settings));
        let config = DockerConfig { spares: self.spares, gateway, ..self.place.config(&self.state_dir) };
        let engine = Arc::new(DockerEngine::start(config).await.expect("the engine starts"));
        if self.spares > 0 {
            have_spares(&engine, &kind).await;
        }
        engine
    }
}

async fn run(case: Case, host: &TestHost) -> Completion {
    if let Some(why) = host.differs(&case) {
        return Completion::ignored_with(why);
    }
    if case.needs == Needs::Builder {
        return Completion::ignored_with("images are built by the daemon's own tools");
    }
    if case.needs == Needs::RootOfTree && host.place.is_gvisor() {
        return Completion::ignored_with("the image is read-only for root of gVisor too");
    }
    if case.name == "roots::what_root_changed_can_be_taken_back" {
        return Completion::ignored_with("a container's own layer has no checkpoints, which is said; see containers::");
    }
    if case.needs == Needs::Network {
        return run_with_network(case, host).await;
    }
    let engine = host.engine().await;
    let powers = Powers {
        snapshots: Some(engine.clone()),
        checkpoints: Some(engine.clone()),
        trees: Some(engine.clone()),
        connections: Some(engine.clone()),
    };
    if let Some(lacking) = case.lacks(&powers) {
        return Completion::ignored_with(lacking);
    }
    case.run_with_powers(engine, &powers).await;
    Completion::Completed
}

async fn run_with_network(case: Case, host: &TestHost) -> Completion {
    let Some((name, address)) = &host.name else {
        return Completion::ignored_with("the hosts file has no name for this machine");
    };
    let listener = TcpListener::bind((*address, 0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    Outside::serve(listener).expect("a server");
    let rule: HostRule = format!("{name}:{}", server.port()).parse().expect("a rule");
    let secret: (SecretName, String) = ("SOME_TOKEN".parse().expect("a name"), "value-that-stays-outside".to_owned());
    let settings = || {
        let value = SecretValue::new(secret.1.clone()).expect("a value");
        let mut vault = Vault::default();
        vault.insert(Secret::new(secret.0.clone(), value, vec![rule.clone()], None).expect("a secret"));
        GatewaySettings {
            private_hosts: vec![rule.clone()],
            secrets: SecretSource::Vault(vault),
            ..GatewaySettings::default()
        }
    };
    let kind = SandboxSpec { network: Network::Internet, ..SandboxSpec::new(Owner::local()) };
    let next = host.engine_with(settings(), kind.clone()).await;
    let outside = Outside { name: name.clone(), server, next, secret: secret.clone() };
    case.run_with(host.engine_with(settings(), kind).await, &outside).await;
    Completion::Completed
}

/// The first sandbox of a kind asks for spares of it; they are there some moments later.
async fn have_spares(engine: &DockerEngine, kind: &SandboxSpec) {
    let id = SandboxId::random().expect("random numbers");
    engine.create(&id, kind).await.expect("a sandbox");
    engine.destroy(&id).await.expect("its end");
    tokio::time::sleep(Duration::from_millis(1500)).await;
}
