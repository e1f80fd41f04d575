//! The shared suite on the fake. What needs a kernel is shown as ignored, by name.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use sandbox::engine::fake::FakeHost;
use sandbox::engine::testsuite::{self, Needs};

fn main() -> ExitCode {
    let trials = testsuite::cases().into_iter().map(|case| {
        let lacking = match case.needs {
            Needs::Nothing
            | Needs::Snapshots
            | Needs::Checkpoints
            | Needs::Connections
            | Needs::Trees
            | Needs::TreesAndCheckpoints
            | Needs::Builder
            | Needs::Root
            | Needs::RootOfTree => false,
            Needs::Kernel | Needs::Terminal | Needs::Network | Needs::RootOfProcesses => true,
        };
        let run = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let engine = FakeHost::new().engine();
            let powers = engine.powers();
            runtime.block_on(case.run_with_powers(engine, &powers));
            Ok(())
        };
        Trial::test(case.name, run).with_ignored_flag(lacking)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
