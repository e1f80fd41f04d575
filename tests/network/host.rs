//! The host's side: the checks, and how they look at the outside.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use sandpen_tests::Result;
use sandpen_tests::daemon::engine_name;
use sandpen_tests::table::{Table, Verdict};

use crate::check::{Check, judge};
use crate::scene::Scene;
use crate::world::FIRST_PORT;
use crate::world::places::{Kind, PLACES};
use crate::world::visits::VisitKind;
use crate::{greeting, inbound, names, secrets, served, spellings, tools, walls};

pub const ARGUMENT: &str = "--be-the-host";

fn checks() -> Vec<&'static dyn Check> {
    [walls::CHECKS, names::CHECKS, spellings::CHECKS, greeting::CHECKS, inbound::CHECKS, secrets::CHECKS].concat()
}

pub async fn run(arguments: &[String]) -> Result<ExitCode> {
    let [directory, wanted @ ..] = arguments else { return Err("no directory is given".into()) };
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|begin| name.starts_with(begin.as_str()));
    let scene = Scene::start(Path::new(directory)).await?;
    let mut table = Table::titled(&format!("network checks, engine {}", engine_name()?));
    let started = Instant::now();
    match stands(&scene) {
        Ok(()) => table.add("the world stands", Verdict::Pass, "every place is in the host's reach", started.elapsed()),
        Err(trouble) => table.add("the world stands", Verdict::Fail, &trouble.to_string(), started.elapsed()),
    }
    for check in checks().iter().filter(|check| is_wanted(check.about().id)) {
        judge(*check, &scene, &mut table).await;
    }
    served::judge(is_wanted, &scene.oracle, &mut table);
    tools::judge(is_wanted, &scene.oracle, &mut table)?;
    Ok(table.finish())
}

/// Every place must be in the host's reach, or that a sandbox does not reach it would prove nothing.
fn stands(scene: &Scene) -> Result<()> {
    let others = PLACES.iter().filter(|place| place.kind != Kind::Host);
    let addresses: Vec<String> = others.flat_map(|place| place.addresses).map(ToString::to_string).collect();
    let port = FIRST_PORT.to_string();
    let words = addresses.iter().flat_map(|address| [address.as_str(), &port]);
    let arguments: Vec<&str> = ["fetch"].into_iter().chain(words).collect();
    let findings = scene.probe_on_host(&arguments, "")?;
    let unreached: Vec<String> = findings
        .0
        .iter()
        .filter(|(_, answer)| !answer.contains("speaks first"))
        .map(|(place, answer)| format!("{place}: {answer}"))
        .collect();
    let came = scene.oracle.visits()?.iter().filter(|visit| visit.kind == VisitKind::Connection).count();
    if unreached.is_empty() && came == addresses.len() {
        return Ok(());
    }
    Err(format!("{came} of {} came: {}", addresses.len(), unreached.join("; ")).into())
}
