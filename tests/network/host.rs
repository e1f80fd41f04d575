//! The host's side: the checks, and how they look at the outside.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use sandpen_tests::Result;
use sandpen_tests::probe::Findings;
use sandpen_tests::table::{Table, Verdict};

use crate::world::oracle::Oracle;
use crate::world::places::{Kind, PLACES};
use crate::world::visits::VisitKind;

pub const ARGUMENT: &str = "--be-the-host";

pub struct Scene {
    pub directory: PathBuf,
    pub oracle: Oracle,
}

pub async fn run(arguments: &[String]) -> Result<ExitCode> {
    let [directory, _wanted @ ..] = arguments else { return Err("no directory is given".into()) };
    let directory = PathBuf::from(directory);
    let scene = Scene { oracle: Oracle::of(&directory), directory };
    let mut table = Table::titled("network checks, engine native");
    match stands(&scene) {
        Ok(()) => table.add("the world stands", Verdict::Pass, "", Duration::ZERO),
        Err(trouble) => table.add("the world stands", Verdict::Fail, &trouble.to_string(), Duration::ZERO),
    }
    Ok(table.finish())
}

/// Every place must be in the host's reach, or that a sandbox does not reach it would prove nothing.
fn stands(scene: &Scene) -> Result<()> {
    let place = tempfile::tempdir()?;
    let probe = sandpen_tests::lab::probe_on_host(place.path())?;
    let mut command = Command::new(probe);
    command.arg("fetch").stdin(Stdio::null());
    for place in PLACES.iter().filter(|place| place.kind != Kind::Host) {
        for address in place.addresses {
            command.arg(address.to_string()).arg("7000");
        }
    }
    let output = command.output()?;
    let findings = Findings::parse(&String::from_utf8_lossy(&output.stdout));
    let unreached: Vec<String> = findings
        .0
        .iter()
        .filter(|(_, answer)| !answer.contains("speaks first"))
        .map(|(place, answer)| format!("{place}: {answer}"))
        .collect();
    let came = scene.oracle.visits()?.iter().filter(|visit| visit.kind == VisitKind::Connection).count();
    if unreached.is_empty() && came == findings.0.len() {
        return Ok(());
    }
    Err(format!("{came} of {} came: {}", findings.0.len(), unreached.join("; ")).into())
}
