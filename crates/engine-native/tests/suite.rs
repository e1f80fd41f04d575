//! The shared suite on this engine, with whatever rights it is run: once with sandboxes that are made when they are asked
//! for, and once with spares.
//!
//! Layers that the host cannot give must be named in `SANDPEN_TEST_ALLOW_MISSING`; behaviours that need them are then
//! shown as ignored.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use egress::{Gateway, GatewaySettings};
use engine_native::{NativeConfig, NativeEngine};
use libtest_mimic::{Arguments, Trial};
use sandbox::engine::testsuite;
use sandbox::{Engine, InstanceId, Layer, Owner, SandboxId, SandboxSpec};

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    let allowed = std::env::var("SANDPEN_TEST_ALLOW_MISSING").unwrap_or_default();
    let allow_missing: BTreeSet<Layer> =
        allowed.split(',').filter(|name| !name.is_empty()).map(|name| name.parse().expect("a layer")).collect();
    // One store of images for all: finding the host's interpreters takes longer than all behaviours together.
    let state = tempfile::tempdir().expect("a temporary directory");
    let state_dir = state.path().join("state");
    let ways = [("", 0), ("spare::", 2)];
    let trials = ways.into_iter().flat_map(|(prefix, spares)| {
        let (state_dir, allow_missing) = (state_dir.clone(), allow_missing.clone());
        testsuite::cases().into_iter().map(move |case| {
            let (state_dir, allow_missing) = (state_dir.clone(), allow_missing.clone());
            let lacking = case.name.contains("memory") && allow_missing.contains(&Layer::MemoryLimit);
            let name = format!("{prefix}{}", case.name);
            let run = move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                runtime.block_on(async {
                    let instance = InstanceId::random().expect("random numbers");
                    let gateway = Arc::new(Gateway::new(GatewaySettings::default()));
                    let config =
                        NativeConfig { allow_missing, spares, ..NativeConfig::new(state_dir, instance, gateway) };
                    let engine = Arc::new(NativeEngine::start(config).await.expect("the engine starts"));
                    if spares > 0 {
                        have_spares(&engine).await;
                    }
                    case.run(engine).await;
                });
                Ok(())
            };
            Trial::test(name, run).with_ignored_flag(lacking)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The first sandbox of a kind asks for spares of it; they are there some milliseconds later.
async fn have_spares(engine: &NativeEngine) {
    let id = SandboxId::random().expect("random numbers");
    engine.create(&id, &SandboxSpec::new(Owner::local())).await.expect("a sandbox");
    engine.destroy(&id).await.expect("its end");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
