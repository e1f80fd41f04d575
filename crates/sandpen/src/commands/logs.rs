//! `sandpen logs`: what commands wrote that nobody waited for.

use std::io::Write;

use clap::Args;
use sandbox::{ExecLog, ExecStatus, Owner, Result};
use serde::Serialize;

use crate::cli::examples;
use crate::commands::find;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, BOLD, DIM};
use crate::{time, wiring};

/// Show the output of detached commands
///
/// The last megabyte of each of the last 32 is kept with the sandbox.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen exec --detach lab -- python3 train.py", "start something long"),
    ("sandpen logs lab", "see what it has written"),
    ("sandpen logs --last lab", "only the newest command's output, and nothing else"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,

    /// Only the output of the newest command, without headings
    #[arg(long)]
    last: bool,
}

#[derive(Serialize)]
struct LogObject {
    command: Vec<String>,
    started_at: String,
    /// `running`, or as in results.
    status: &'static str,
    exit_code: Option<i32>,
    output: String,
    dropped_bytes: u64,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let json = config.json;
    wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &arguments.sandbox).await?;
        let mut logs = service.logs(&owner, &sandbox.id).await?;
        if arguments.last {
            logs.drain(..logs.len().saturating_sub(1));
        }
        if json {
            output::object(&logs.iter().map(as_object).collect::<Vec<_>>());
        } else {
            for log in &logs {
                show(log, arguments.last);
            }
        }
        Ok(Exit::SUCCESS)
    })
}

fn show(log: &ExecLog, only_output: bool) {
    if !only_output {
        let heading = log.command.join(" ");
        let state = log.status.map_or_else(|| "running".to_owned(), describe);
        output::text(&format!(
            "{BOLD}{}{BOLD:#} {DIM}{}, {state}{DIM:#}\n",
            output::printable(&heading),
            time::rfc3339(log.started)
        ));
        if log.dropped > 0 {
            output::text(&format!("{DIM}… {} bytes before this were not kept{DIM:#}\n", log.dropped));
        }
    }
    let mut stdout = std::io::stdout().lock();
    // A reader that went away has seen what it wanted.
    let _ = stdout.write_all(&log.output).and_then(|()| stdout.flush());
}

fn describe(status: ExecStatus) -> String {
    match status {
        ExecStatus::Exited(code) => format!("exit code {code}"),
        ExecStatus::Signalled(signal) => format!("ended by signal {signal}"),
        ExecStatus::TimedOut => "its time ran out".to_owned(),
        ExecStatus::OutOfMemory => "out of memory".to_owned(),
        ExecStatus::Cancelled => "cancelled".to_owned(),
        ExecStatus::Killed => "killed".to_owned(),
    }
}

fn as_object(log: &ExecLog) -> LogObject {
    LogObject {
        command: log.command.clone(),
        started_at: time::rfc3339(log.started),
        status: log.status.map_or("running", ExecStatus::as_str),
        exit_code: log.status.and_then(ExecStatus::exit_code),
        output: String::from_utf8_lossy(&log.output).into_owned(),
        dropped_bytes: log.dropped,
    }
}
