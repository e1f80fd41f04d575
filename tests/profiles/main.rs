//! What older servers answered, word by word: transcripts that are replayed to the profiles which speak for them, over stdio
//! and over HTTP, on the engine that the environment names.
//!
//! `transcripts/PROFILE/NAME.json` holds calls and what comes back. In strings `<<name>>` is a value that is known,
//! `<<name:hex64>>` one that is learnt there, and `<<:any>>`, `<<:line>>` and `<<:number>>` are whatever is of that kind. A step
//! with `only` is for the `embedded` engine or for a `daemon`.

mod expected;
mod server;
mod transcript;

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use sandpen_tests::Result;
use sandpen_tests::daemon::engine_name;

use server::Transport;
use transcript::Transcript;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each starts a server of its own; more at once than processors only wait for each other.
    arguments.test_threads.get_or_insert(2);
    match trials() {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(trouble) => {
            eprintln!("{trouble}");
            ExitCode::FAILURE
        }
    }
}

fn trials() -> Result<Vec<Trial>> {
    let engine = engine_name()?;
    let mut trials = Vec::new();
    for profile in sorted(&Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/transcripts"))? {
        for path in sorted(&profile)? {
            for transport in [Transport::Stdio, Transport::Http] {
                let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let (profile, about) = (name(&profile), name(&path));
                let title = format!("{profile}: {about} over {transport} on {engine}");
                let path = path.clone();
                let replay = move || Transcript::read(&path)?.replay(&profile, transport);
                trials.push(Trial::test(title, move || replay().map_err(|trouble| Failed::from(trouble.to_string()))));
            }
        }
    }
    if trials.is_empty() { Err("there are no transcripts".into()) } else { Ok(trials) }
}

fn sorted(directory: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}
