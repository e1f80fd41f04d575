//! `sandpen audit`: whether a trail of what was done is whole.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sandbox::{Error, Result};
use serde::Serialize;

use crate::audit::trail::{self, Verified};
use crate::cli::examples;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, Audience};

/// Look at what servers wrote with --audit-log
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen serve --audit-log audit.jsonl", "write down what is done"),
    ("sandpen audit verify audit.jsonl", "see whether anything was changed or taken out"),
]))]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Verify(VerifyArguments),
}

/// See whether a trail is whole: nothing changed, taken out or put in
///
/// That its end was cut off cannot be seen from the file alone: keep the digest that this prints, and give it back with --head.
#[derive(Args, Debug)]
struct VerifyArguments {
    /// The file
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// The digest that its last line must have
    #[arg(long, value_name = "DIGEST")]
    head: Option<String>,
}

#[derive(Serialize)]
struct Whole {
    lines: u64,
    head: String,
    missed: u64,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let Action::Verify(VerifyArguments { file, head }) = arguments.action;
    let Verified { lines, head: found, missed } = trail::verify(&file)?;
    if head.is_some_and(|head| !head.eq_ignore_ascii_case(&found)) {
        return Err(Error::invalid_input(format!("{} has another last line than it should", file.display()))
            .with_hint("lines were cut off at its end, or written since that digest was taken"));
    }
    match Audience::new(config.json) {
        Audience::Program => output::object(&Whole { lines, head: found, missed }),
        Audience::Person => {
            let gaps = if missed > 0 { format!(", which say that {missed} more are missing") } else { String::new() };
            output::text(&format!("{lines} lines, whole{gaps}\n{found}\n"));
        }
    }
    Ok(Exit::SUCCESS)
}
