//! The shared suite on this engine, with whatever rights it is run: once with sandboxes that are made when they are asked
//! for, and once with spares.
//!
//! Layers that the host cannot give must be named in `SANDPEN_TEST_ALLOW_MISSING`; behaviours that need them are then
//! shown as ignored.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use egress::{Gateway, GatewaySettings, Secret, SecretSource, SecretValue, Vault};
use engine_native::{NativeConfig, NativeEngine};
use libtest_mimic::{Arguments, Completion, Trial};
use sandbox::engine::testsuite::{self, Case, Needs, Outside};
use sandbox::{Engine, HostRule, Image, InstanceId, Layer, Owner, Powers, SandboxId, SandboxSpec, SecretName};

#[path = "suite/ahead.rs"]
mod ahead;

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    let allowed = std::env::var("SANDPEN_TEST_ALLOW_MISSING").unwrap_or_default();
    let allow_missing: BTreeSet<Layer> =
        allowed.split(',').filter(|name| !name.is_empty()).map(|name| name.parse().expect("a layer")).collect();
    // One store of images for all: finding the host's interpreters takes longer than all behaviours together.
    let state = tempfile::tempdir().expect("a temporary directory");
    let name = Outside::own_name();
    if name.is_none() {
        println!("the hosts file has no name for this machine but localhost: behaviours with a network are ignored");
    }
    let ways = [("", 0), ("spare::", 2)];
    let trials = ways.into_iter().flat_map(|(prefix, spares)| {
        let host = TestHost {
            state_dir: state.path().join("state"),
            allow_missing: allow_missing.clone(),
            spares,
            name: name.clone(),
        };
        testsuite::cases().into_iter().map(move |case| {
            let host = host.clone();
            let lacking = case.name.contains("memory") && host.allow_missing.contains(&Layer::MemoryLimit)
                || case.needs == Needs::Network && host.name.is_none();
            let name = format!("{prefix}{}", case.name);
            let run = move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                Ok(runtime.block_on(run(case, &host)))
            };
            Trial::ignorable_test(name, run).with_ignored_flag(lacking)
        })
    });
    let keeping = TestHost {
        state_dir: state.path().join("state"),
        allow_missing: allow_missing.clone(),
        spares: 2,
        name: name.clone(),
    };
    let ahead = ahead::TRIALS.into_iter().map(|(name, trial)| {
        let host = keeping.clone();
        Trial::test(name, move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { trial(host.engine(GatewaySettings::default()).await).await });
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.chain(ahead).collect()).exit_code()
}

#[derive(Clone)]
struct TestHost {
    state_dir: PathBuf,
    allow_missing: BTreeSet<Layer>,
    spares: usize,
    name: Option<(String, IpAddr)>,
}

impl TestHost {
    async fn engine(&self, settings: GatewaySettings) -> Arc<NativeEngine> {
        let instance = InstanceId::random().expect("random numbers");
        let config = NativeConfig {
            allow_missing: self.allow_missing.clone(),
            spares: self.spares,
            ..NativeConfig::new(self.state_dir.clone(), instance, Arc::new(Gateway::new(settings)))
        };
        let engine = Arc::new(NativeEngine::start(config).await.expect("the engine starts"));
        if self.spares > 0 {
            have_spares(&engine).await;
        }
        engine
    }
}

/// What the engine can do with trees. A behaviour that needs more is shown as ignored, with what it needs.
fn powers(engine: &Arc<NativeEngine>) -> Powers {
    Powers {
        snapshots: Some(engine.clone()),
        checkpoints: Some(engine.clone()),
        trees: Some(engine.clone()),
        connections: Some(engine.clone()),
    }
}

async fn run(case: Case, host: &TestHost) -> Completion {
    let Some((name, address)) = host.name.as_ref().filter(|_| case.needs == Needs::Network) else {
        let engine = host.engine(GatewaySettings::default()).await;
        let powers = powers(&engine);
        if let Some(lacking) = case.lacks(&powers) {
            return Completion::ignored_with(lacking);
        }
        if case.needs == Needs::Builder && !engine_native::can_build() {
            return Completion::ignored_with("there are no ids for a builder");
        }
        if case.needs.root()
            && let Err(error) = engine.check_root(&root_image(case))
        {
            return Completion::ignored_with(error.message());
        }
        case.run_with_powers(engine, &powers).await;
        return Completion::Completed;
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
    let next = host.engine(settings()).await;
    let outside = Outside { name: name.clone(), server, next, secret: secret.clone() };
    case.run_with(host.engine(settings()).await, &outside).await;
    Completion::Completed
}

/// On which kind of image programs of a case are root.
fn root_image(case: Case) -> Image {
    match case.needs {
        Needs::RootOfTree => Image::Saved("suite".parse().expect("a name")),
        _ => Image::Host,
    }
}

/// The first sandbox of a kind asks for spares of it; they are there some milliseconds later.
async fn have_spares(engine: &NativeEngine) {
    let id = SandboxId::random().expect("random numbers");
    engine.create(&id, &SandboxSpec::new(Owner::local())).await.expect("a sandbox");
    engine.destroy(&id).await.expect("its end");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
