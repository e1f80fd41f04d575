//! Other people's clients and suites on the real program, over every transport that they know.
//!
//! `cargo xtask test clients` installs them and builds the two programs that they meet. What is not installed is skipped
//! by name. Sandboxes are the embedded engine's, or those of a daemon that the environment names.

mod agents;
mod analysis;
mod conformance;
mod hands;
mod inspector;
mod installed;
mod oauth;
mod older;
mod scene;
mod server;
mod task;

use std::process::ExitCode;
use std::sync::Arc;

use installed::Installed;
use libtest_mimic::{Arguments, Failed, Trial};
use sandpen_tests::Result;

/// More at once would measure the machine: most trials are two or three busy processes.
const AT_ONCE: usize = 3;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let installed = match Installed::find() {
        Ok(installed) => Arc::new(installed),
        Err(trouble) => {
            println!("the clients cannot run: {trouble}");
            return ExitCode::FAILURE;
        }
    };
    // Longest first, so that no long one is left alone at the end.
    let plans = [
        conformance::plans(),
        task::plans(),
        analysis::plans(),
        older::plans(),
        oauth::plans(),
        agents::plans(),
        inspector::plans(),
    ];
    let trials = plans.into_iter().flatten().map(|plan| plan.into_trial(&installed)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// One trial, as data: what it needs, and what it does when that is there.
struct Plan {
    name: String,
    needs: Vec<Need>,
    run: Box<Run>,
}

type Run = dyn FnOnce(&Installed) -> Result<()> + Send;

/// A part that may be missing on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Node,
    Python(&'static str),
    /// The embedded engine, for what has nothing of any: on one of them it has been seen.
    Embedded,
    /// In the image of sandboxes, for its own Python.
    Matplotlib,
    /// In the image of sandboxes, for C.
    Compiler,
    /// What makes a Debian to have an image of.
    Debian,
    /// One without a screen, for clients that send a person there.
    Browser,
}

impl Plan {
    fn new(
        name: impl Into<String>,
        needs: &[Need],
        run: impl FnOnce(&Installed) -> Result<()> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), needs: needs.to_vec(), run: Box::new(run) }
    }

    fn into_trial(self, installed: &Arc<Installed>) -> Trial {
        let missing = self.needs.iter().find_map(|need| installed.missing(*need));
        if let Some(why) = &missing {
            eprintln!("SKIPPED: {}: {why}", self.name);
        }
        let skipped = missing.is_some();
        let installed = installed.clone();
        let run = move || match missing {
            Some(why) => Err(Failed::from(why)),
            None => (self.run)(&installed).map_err(|trouble| Failed::from(trouble.to_string())),
        };
        Trial::test(self.name, run).with_ignored_flag(skipped)
    }
}
