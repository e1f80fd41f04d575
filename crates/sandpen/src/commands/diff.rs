//! `sandpen diff`: which files of a sandbox have changed.

use clap::Args;
use sandbox::{ByteSize, Change, ChangeKind, Checkpoint, FileKind, Owner, Result};
use serde::Serialize;

use crate::cli::examples;
use crate::commands::find;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, ADVICE, BAD, DIM, GOOD};
use crate::wiring;

/// List files that are different from what they were
///
/// A for added, M for modified, D for removed: since a checkpoint, or since the sandbox was made.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen diff lab", "everything that lab has changed"),
    ("sandpen diff lab --since 2", "what has changed since checkpoint 2"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,

    /// The number of a checkpoint [default: what it started with]
    #[arg(long, value_name = "N")]
    since: Option<u32>,

    /// List at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    max: usize,
}

#[derive(Serialize)]
struct Changes {
    sandbox_id: String,
    changes: Vec<ChangeObject>,
    truncated: bool,
}

#[derive(Serialize)]
struct ChangeObject {
    /// With bytes that are no text replaced.
    path: String,
    change: &'static str,
    kind: &'static str,
    bytes: u64,
}

impl From<&Change> for ChangeObject {
    fn from(change: &Change) -> Self {
        Self {
            path: change.path.to_string_lossy().into_owned(),
            change: match change.kind {
                ChangeKind::Added => "added",
                ChangeKind::Modified => "modified",
                ChangeKind::Removed => "removed",
            },
            kind: match change.file {
                FileKind::Regular => "file",
                FileKind::Directory => "directory",
                FileKind::Link => "link",
                FileKind::Other => "other",
            },
            bytes: change.bytes,
        }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &arguments.sandbox).await?;
        let since = arguments.since.map(Checkpoint);
        let found = service.changes(&owner, &sandbox.id, since, arguments.max).await?;
        if config.json {
            let changes = found.entries.iter().map(ChangeObject::from).collect();
            output::object(&Changes { sandbox_id: sandbox.id.to_string(), changes, truncated: found.truncated });
            return Ok(Exit::SUCCESS);
        }
        output::text(&found.entries.iter().map(line).collect::<String>());
        if found.truncated {
            output::note("more files have changed than are listed", Some("list more with --max"));
        }
        Ok(Exit::SUCCESS)
    })
}

fn line(change: &Change) -> String {
    let mark = match change.kind {
        ChangeKind::Added => format!("{GOOD}A{GOOD:#}"),
        ChangeKind::Modified => format!("{ADVICE}M{ADVICE:#}"),
        ChangeKind::Removed => format!("{BAD}D{BAD:#}"),
    };
    // Its own escapes keep a name from driving the terminal.
    let path = &change.path;
    match (change.kind, change.file) {
        (ChangeKind::Removed, _) | (_, FileKind::Link | FileKind::Other) => format!("{mark} {path}\n"),
        (_, FileKind::Directory) => format!("{mark} {path}/\n"),
        (_, FileKind::Regular) => format!("{mark} {path} {DIM}({}){DIM:#}\n", ByteSize::new(change.bytes)),
    }
}
