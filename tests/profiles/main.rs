//! What older servers answered, word by word: transcripts that are replayed to the profiles which speak for them, over stdio
//! and over HTTP, on the engine that the environment names.
//!
//! `transcripts/PROFILE/NAME.json` holds calls and what comes back. In strings `<<name>>` is a value that is known,
//! `<<name:hex64>>` one that is learnt there, and `<<:any>>`, `<<:line>>` and `<<:number>>` are whatever is of that kind. A step
//! with `only` is for the `embedded` engine or for a `daemon`.

mod coverage;
mod expected;
mod lives;
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

type Life = fn() -> Result<()>;

fn trials() -> Result<Vec<Trial>> {
    let engine = engine_name()?;
    let mut trials = Vec::new();
    let failed = |trouble: sandpen_tests::Trouble| Failed::from(trouble.to_string());
    trials.push(Trial::test("what transcripts leave out is seen", move || {
        coverage::sees_what_is_missing().map_err(failed)
    }));
    let lives: [(&str, Life); 3] = [
        ("cloudflare: a container is its user's and no server's", lives::shared),
        ("sandbox-server: containers without persist end where the operator wants it", lives::temporary),
        ("sandbox-server: containers are left behind until their time is over", lives::left_behind),
    ];
    for (name, live) in lives {
        trials.push(Trial::test(format!("{name} on {engine}"), move || live().map_err(failed)));
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (transcripts, schemas) = (here.join("profiles/transcripts"), here.join("../crates/tools/snapshots"));
    for profile in sorted(&transcripts)? {
        let name = profile.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (transcripts, schemas) = (transcripts.clone(), schemas.clone());
        trials.push(Trial::test(format!("{name}: transcripts leave nothing out"), move || {
            let gaps = coverage::gaps(&name, &transcripts, &schemas).map_err(failed)?;
            if gaps.is_empty() { Ok(()) } else { Err(Failed::from(gaps.join("\n"))) }
        }));
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
