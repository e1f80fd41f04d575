//! The real program on daemons of its own, Docker's and Podman's: what there is only there, and what happens when one of the
//! two dies.
//!
//! `SANDPEN_TEST_KILLS` sets how often a server is killed, `SANDPEN_TEST_SEED` repeats the moments.

mod absence;
mod images;
mod kills;
mod runners;
mod scene;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libtest_mimic::{Arguments, Failed, Trial};
use sandpen_tests::daemon::Flavour;
use sandpen_tests::program::is_installed;
use sandpen_tests::{Result, Trouble};
use scene::Scene;

type Test = fn(&mut Scene) -> Result<()>;
type Stage = Arc<OnceLock<Result<Mutex<Scene>>>>;

const TESTS: &[(&str, Test)] = &[
    ("the doctor tells of the daemon and of the walls", absence::doctor),
    ("a daemon that is not there is told with what was tried", absence::nowhere),
    ("images are those of the daemon", images::of_the_daemon),
    ("an image that says what it runs is a language", runners::by_label),
    ("an image of another tool's label is none", runners::of_others),
    ("a server that is killed leaves nothing and touches nothing of others", kills::at_random_moments),
    ("a daemon that goes away is told, and found again", absence::for_a_while),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They share a daemon, which some of them stop.
    arguments.test_threads = Some(1);
    let stages = [Flavour::Docker, Flavour::Podman].map(|flavour| (flavour, Stage::default()));
    let mut trials = Vec::new();
    for (flavour, stage) in &stages {
        let missing = missing(*flavour);
        if let Some(why) = &missing {
            eprintln!("SKIPPED: nothing runs on {}: {why}", flavour.as_str());
        }
        for &(name, test) in TESTS {
            let (flavour, stage) = (*flavour, stage.clone());
            let run = move || match stage.get_or_init(|| Scene::set(flavour).map(Mutex::new)) {
                Ok(scene) => {
                    let mut scene = scene.lock().unwrap_or_else(PoisonError::into_inner);
                    test(&mut scene).map_err(|trouble| Failed::from(trouble.to_string()))
                }
                Err(Trouble(why)) => Err(Failed::from(format!("the scene could not be set: {why}"))),
            };
            let name = format!("{}: {name}", flavour.as_str());
            trials.push(Trial::test(name, run).with_ignored_flag(missing.is_some()));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut left = Vec::new();
    for (_, stage) in stages {
        if let Some(Ok(scene)) = Arc::into_inner(stage).and_then(OnceLock::into_inner) {
            left.extend(scene.into_inner().unwrap_or_else(PoisonError::into_inner).end());
        }
    }
    for line in &left {
        println!("left: {line}");
    }
    if left.is_empty() { conclusion.exit_code() } else { ExitCode::FAILURE }
}

fn missing(flavour: Flavour) -> Option<String> {
    let absent = || ["mmdebstrap", "cc", "docker-registry"].into_iter().find(|name| !is_installed(name));
    flavour.missing().or_else(|| absent().map(|name| format!("{name} is not installed")))
}
