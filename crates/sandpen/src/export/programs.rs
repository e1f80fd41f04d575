//! Which of several ways to run a language there is in a sandbox, found without running anything.

use std::collections::BTreeSet;
use std::time::Duration;

use sandbox::{Deed, Files, GuestPath, History, RunCode, Runners, Runs};

const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The programs that runners of this history start and that are there.
pub async fn present(files: &dyn Files, history: &History, runners: &Runners) -> BTreeSet<String> {
    let languages: BTreeSet<&str> = history
        .entries
        .iter()
        .filter_map(|entry| match &entry.deed {
            Deed::Code { language, .. } => Some(language.as_str()),
            Deed::Command { .. }
            | Deed::FileWritten { .. }
            | Deed::Unpacked { .. }
            | Deed::DirectoryMade { .. }
            | Deed::Removed { .. }
            | Deed::Renamed { .. } => None,
        })
        .collect();
    let mut wanted = BTreeSet::new();
    for language in languages {
        let Ok(runner) = runners.find(language) else { continue };
        let Ok(plan) = runner.plan(&RunCode::new(language, "", Duration::ZERO), &history.work_directory, Runs::Many)
        else {
            continue;
        };
        for step in plan.build.iter().chain([&plan.run]) {
            let attempts = step.attempts(Duration::from_secs(1)).unwrap_or_default();
            wanted.extend(attempts.iter().map(|attempt| attempt.request.argv()[0].clone()));
        }
    }
    let search = history.environment.values.get("PATH").unwrap_or(USUAL);
    let mut found = BTreeSet::new();
    for program in wanted {
        let places: Vec<String> = match program.contains('/') {
            true => vec![program.clone()],
            false => search.split(':').map(|directory| format!("{directory}/{program}")).collect(),
        };
        for place in places {
            let Ok(path) = place.parse::<GuestPath>() else { continue };
            if files.stat(&path).await.is_ok() {
                found.insert(program);
                break;
            }
        }
    }
    found
}
