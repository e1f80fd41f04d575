//! The official conformance suite: the frozen requirement sets and the Tasks scenarios on a build with its fixtures, and
//! what needs none on the program itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sandpen_tests::program::{Ran, run};
use sandpen_tests::{Result, Trouble};
use serde_json::Value;

use crate::installed::{Installed, source};
use crate::scene::Scene;
use crate::server::Server;
use crate::{Need, Plan};

const SUITE: &str = "@modelcontextprotocol/conformance/dist/index.js";
const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// Extensions are run by the requirement sets but cannot fail them, so these are asked for by name. One more, about status
/// notifications, checks nothing in this version of the suite but says that it will be written anew.
const TASKS: &[&str] = &[
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
];

/// What any server must pass, whatever its tools are.
const WITHOUT_FIXTURES: &[(&str, &[&str])] = &[
    ("server-initialize", &[LEGACY]),
    ("server-session-lifecycle", &[LEGACY]),
    ("ping", &[LEGACY]),
    ("tools-list", &[LEGACY, MODERN]),
    ("resources-list", &[LEGACY, MODERN]),
    ("prompts-list", &[LEGACY, MODERN]),
    ("completion-complete", &[LEGACY, MODERN]),
    ("server-sse-multiple-streams", &[LEGACY, MODERN]),
    ("dns-rebinding-protection", &[LEGACY, MODERN]),
    ("sep-2164-resource-not-found", &[MODERN]),
    ("caching", &[MODERN]),
    ("http-header-validation", &[MODERN]),
];

const NEEDS: &[Need] = &[Need::Node, Need::Embedded];

pub(crate) fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for revision in [MODERN, LEGACY] {
        plans.push(Plan::new(format!("conformance::requirements::{revision}"), NEEDS, move |installed| {
            suite(installed, &Installed::fixtures()?, &["--requirements", revision])
        }));
    }
    for scenario in TASKS {
        plans.push(Plan::new(format!("conformance::{scenario}"), NEEDS, move |installed| {
            suite(installed, &Installed::fixtures()?, &["--scenario", scenario])
        }));
    }
    for (scenario, revisions) in WITHOUT_FIXTURES {
        for revision in *revisions {
            let name = format!("conformance::product::{scenario}::{revision}");
            plans.push(Plan::new(name, NEEDS, move |installed| {
                suite(installed, &installed.product, &["--scenario", scenario, "--spec-version", revision])
            }));
        }
    }
    plans.push(Plan::new("conformance::a listed failure that passes is refused", NEEDS, stale_list_is_refused));
    plans
}

const LIMIT: Duration = Duration::from_secs(300);

fn suite(installed: &Installed, program: &Path, what: &[&str]) -> Result<()> {
    let scene = Scene::new(installed)?;
    let server = Server::start(&scene, program)?;
    let results = scene.path().join("results");
    let mut command = command(&scene, &server, &source("known-failures.yml"));
    command.args(what).arg("--output-dir").arg(&results);
    server.explain(run(&mut command, scene.path(), LIMIT).and_then(Ran::succeeded))?;
    // A scenario that does not apply is left out without a word, and would look like one that passed.
    let passed = successes(&results)?;
    if passed == 0 {
        return Err(format!("{what:?} checked nothing").into());
    }
    server.stop()
}

fn stale_list_is_refused(installed: &Installed) -> Result<()> {
    let scene = Scene::new(installed)?;
    let server = Server::start(&scene, &installed.product)?;
    let list = scene.path().join("stale.yml");
    std::fs::write(&list, "server:\n  - ping\n")?;
    let mut command = command(&scene, &server, &list);
    let ran = run(command.args(["--scenario", "ping", "--spec-version", LEGACY]), scene.path(), LIMIT)?;
    if ran.status.success() || !ran.stdout.contains("Stale baseline") {
        return Err(ran.told("a stale list of known failures was taken"));
    }
    server.stop()
}

fn command(scene: &Scene<'_>, server: &Server, known_failures: &Path) -> Command {
    let mut command = scene.node_package(SUITE);
    command.args(["server", "--url", &server.url, "--timeout", "60000", "--expected-failures"]).arg(known_failures);
    command
}

/// Checks that succeeded, over all files that the suite has written.
fn successes(directory: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory)? {
        let file = entry?.path().join("checks.json");
        let checks: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)
            .map_err(|error| Trouble(format!("{}: {error}", file.display())))?;
        count += checks.as_array().into_iter().flatten().filter(|check| check["status"] == "SUCCESS").count();
    }
    Ok(count)
}
