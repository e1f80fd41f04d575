//! `sandpen export`: a sandbox as a Dockerfile with its build context.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use sandbox::{Error, ErrorKind, ImageName, Owner, Result};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tools::Progress;
use tools::export::{Check, ExportRequest, Outcome, Report};

use crate::build::RunSettings;
use crate::cli::examples;
use crate::commands::find;
use crate::config::{Config, Pull};
use crate::exit::Exit;
use crate::export::{Exports, Fetching, KnownBases, Terms};
use crate::signals::Signals;
use crate::{output, wiring};

/// Write a Dockerfile that makes a sandbox anew
///
/// It holds the image that the sandbox was made from, its variables, the commands that changed files, and the files that
/// were copied in. It is built and compared with the sandbox; what does not come out the same is told, and is written at
/// the end of the Dockerfile. Exit code 3 says that something did not.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen export lab ./lab", "write ./lab/Dockerfile and its files"),
    ("docker build -t lab ./lab", "build it elsewhere"),
    ("sandpen export lab ./lab --base debian:12", "of a sandbox made from this machine's own programs"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,

    /// A directory that is not there yet
    #[arg(value_name = "DIRECTORY", value_hint = clap::ValueHint::AnyPath)]
    directory: PathBuf,

    /// The image to build from, in place of the one that the sandbox was made from
    #[arg(long, value_name = "IMAGE")]
    base: Option<String>,

    /// Do not build it
    #[arg(long)]
    no_verify: bool,
}

#[derive(Serialize)]
struct Exported<'a> {
    directory: &'a PathBuf,
    base: &'a str,
    base_digest: Option<&'a str>,
    result: &'static str,
    reason: Option<&'a str>,
    same: u64,
    differences: Vec<DifferenceObject>,
    more_differences: u64,
    builds: u32,
    notes: &'a [String],
}

#[derive(Serialize)]
struct DifferenceObject {
    path: String,
    what: &'static str,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    // Before a build of minutes.
    if arguments.directory.symlink_metadata().is_ok() {
        let message = format!("{} is there already", arguments.directory.display());
        return Err(Error::new(ErrorKind::AlreadyExists, message).with_hint("name a directory that is not there yet"));
    }
    let base = arguments.base.as_deref().map(str::parse::<ImageName>).transpose()?;
    let check = if arguments.no_verify { Check::Skip("--no-verify".to_owned()) } else { Check::Rebuild };
    let config = &config;
    wiring::with_service_and_images(config, |service, images| async move {
        let mut signals = Signals::listen()?;
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &arguments.sandbox).await?;
        let fetching = match config.registries.pull {
            Pull::Missing => Fetching::Missing,
            Pull::Never => Fetching::Nothing,
        };
        let terms = Terms { fetching, timeout: RunSettings::default().timeout, bases: KnownBases::All, images };
        let exports = Exports::new(&service, config, terms)?;
        let request = ExportRequest { sandbox: sandbox.id, base, check };
        let progress: Arc<dyn Progress> = Arc::new(Telling { wanted: !config.json });
        let cancel = CancellationToken::new();
        let writing = exports.write(&owner, &request, &progress, &cancel);
        let written = match signals.unless_ended(writing).await {
            Ok(written) => written?,
            Err(signal) => {
                cancel.cancel();
                return Ok(Exit::signal(signal));
            }
        };
        written.context.move_to(&arguments.directory)?;
        if config.json {
            output::object(&exported(&arguments.directory, &written.report));
        } else {
            tell(&arguments.directory, &written.report);
        }
        Ok(match &written.report.outcome {
            Outcome::Compared { differences, .. } if differences.is_empty() => Exit::SUCCESS,
            Outcome::NotChecked(_) => Exit::SUCCESS,
            Outcome::Compared { .. } | Outcome::NotBuilt(_) => Exit::DIFFERENT,
        })
    })
}

fn exported<'a>(directory: &'a PathBuf, report: &'a Report) -> Exported<'a> {
    let (same, differences, more, reason) = match &report.outcome {
        Outcome::Compared { same, differences, more } => (*same, &differences[..], *more, None),
        Outcome::NotBuilt(why) | Outcome::NotChecked(why) => (0, &[][..], 0, Some(why.as_str())),
    };
    let tell = |one: &tools::export::Difference| DifferenceObject {
        path: one.path.to_string_lossy().into_owned(),
        what: one.what.as_str(),
    };
    Exported {
        directory,
        base: &report.base,
        base_digest: report.base_digest.as_deref(),
        result: report.outcome.as_str(),
        reason,
        same,
        differences: differences.iter().map(tell).collect(),
        more_differences: more,
        builds: report.builds,
        notes: &report.notes,
    }
}

fn tell(directory: &std::path::Path, report: &Report) {
    output::text(&format!("{}\n", directory.join("Dockerfile").display()));
    match &report.outcome {
        Outcome::Compared { same, differences, .. } if differences.is_empty() => {
            output::note(&format!("built and compared: all {same} paths came out the same"), None);
        }
        Outcome::Compared { same, differences, more } => {
            let count = differences.len() as u64 + more;
            let mut text = format!("built and compared: {same} paths came out the same, {count} did not");
            for one in differences.iter().take(20) {
                text += &format!("\n  {} {}", one.path, one.what.words());
            }
            output::note(&text, (count > 20).then_some("all of them are at the end of the Dockerfile"));
        }
        Outcome::NotBuilt(why) => output::note(&format!("it could not be built: {why}"), None),
        Outcome::NotChecked(_) => {}
    }
    for note in &report.notes {
        output::note(note, None);
    }
}

/// Steps of a build, for whoever waits for it at a terminal.
struct Telling {
    wanted: bool,
}

impl Progress for Telling {
    fn is_wanted(&self) -> bool {
        self.wanted
    }

    fn report(&self, message: &str) {
        if self.wanted && std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            output::note(message, None);
        }
    }
}
