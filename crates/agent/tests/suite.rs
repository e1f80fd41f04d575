//! The shared suite over a connection: everything goes through a bridge, as in somebody else's daemon.

mod hosted;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};
use sandbox::Powers;
use sandbox::engine::testsuite::{self, Needs};

use hosted::HostedEngine;

fn main() -> ExitCode {
    let lacking = hosted::lacking();
    if let Some(lacking) = lacking {
        println!("everything is ignored: {lacking}");
    }
    let trials = testsuite::cases().into_iter().map(|case| {
        let ignored = lacking.or_else(|| not_ours(case.name, case.needs));
        Trial::ignorable_test(case.name, move || {
            if let Some(reason) = ignored {
                return Ok(Completion::ignored_with(reason));
            }
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let engine = Arc::new(HostedEngine::default());
            let powers = Powers { connections: Some(engine.clone()), ..Powers::default() };
            runtime.block_on(case.run_with_powers(engine, &powers));
            Ok(Completion::Completed)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// What is the daemon's to do and not the connection's.
fn not_ours(name: &str, needs: Needs) -> Option<&'static str> {
    match needs {
        Needs::Nothing | Needs::Kernel | Needs::Terminal => {}
        Needs::Connections if std::path::Path::new("/usr/sbin/ip").exists() => {}
        Needs::Connections => return Some("without ip of iproute2 these sandboxes have no loopback"),
        Needs::Network
        | Needs::Snapshots
        | Needs::Checkpoints
        | Needs::Trees
        | Needs::TreesAndCheckpoints
        | Needs::Builder
        | Needs::Root
        | Needs::RootOfProcesses
        | Needs::RootOfTree => {
            return Some("the engine of this test has no such power");
        }
    }
    match name {
        "kernel::memory_that_is_used_up_is_told" | "kernel::processes_are_bounded" => {
            Some("these sandboxes have no control group")
        }
        "life::every_layer_is_reported_once" => Some("the report is the engine's"),
        _ => None,
    }
}
