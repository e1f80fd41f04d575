//! `containers://{id}/logs`: what was run in a container and what it wrote, as far as it is known.
//!
//! Commands are in the history of the sandbox, which outlives the server where the sandbox does; what they wrote is kept
//! with their jobs, for a while.

use std::collections::VecDeque;
use std::time::{Duration, UNIX_EPOCH};

use sandbox::service::Job;
use sandbox::{Deed, ExecStatus, HistoryEntry, Result, SandboxId};

use super::super::{containers, work};
use super::transcript::Transcript;
use super::words;
use crate::call::Call;
use crate::content::Body;
use crate::error::tell;
use crate::resources::{Contents, Template};
use crate::tool::{self, Reason, Rejection};

pub const TEMPLATES: &[Template] = &[Template {
    uri_template: "containers://{id}/logs",
    name: "Container Logs",
    title: "Container Logs",
    description: "What was run in the container and what it wrote, the newest part of it",
    mime_type: Some("text/plain"),
    priority: Some(0.5),
}];

/// What commands wrote is kept for so long, though their server ends before, where there is room for it.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// What is older is left out.
const MOST_BYTES: usize = 1 << 20;

/// A history is written by a clock that may be this far behind.
const CLOCK_NS: i128 = 100_000_000;

pub async fn read(call: &Call, uri: &str) -> Result<Contents, Rejection> {
    let id = uri.strip_prefix("containers://").and_then(|rest| rest.strip_suffix("/logs"));
    let Some(id) = id.filter(|id| !id.is_empty() && !id.contains('/')) else {
        return Err(Rejection::new(Reason::Parameters, format!("Resource not found: {uri}")));
    };
    match text(call, id).await {
        Ok(text) => Ok(Contents { mime_type: "text/plain", body: Body::Text(text) }),
        Err(error) => {
            tool::log("resources/read", &error);
            // The address is one of ours: whatever is wrong with what it leads to, the older server told so.
            Err(Rejection::new(Reason::Internal, tell(&error)))
        }
    }
}

async fn text(call: &Call, id: &str) -> Result<String> {
    let sandbox = containers::find(call, id).await?;
    let history = call.service.history(&call.owner, &sandbox.id).await?;
    let mut jobs = Jobs::of(call, &sandbox.id);
    let mut transcript = Transcript::new(MOST_BYTES);
    if history.dropped > 0 {
        transcript.cut();
    }
    history.entries.iter().filter_map(|entry| run(entry, &mut jobs)).for_each(|run| transcript.push(run));
    Ok(transcript.text())
}

/// The jobs of one sandbox that are still known, oldest first.
struct Jobs(VecDeque<Job>);

impl Jobs {
    fn of(call: &Call, sandbox: &SandboxId) -> Self {
        Self(call.service.jobs(&call.owner).into_iter().filter(|job| job.sandbox() == sandbox).collect())
    }

    /// The one that ran this command. A job is registered before its command is written down; of two alike that ran at
    /// once either may be it.
    fn take(&mut self, command: &str, started_ns: i128) -> Option<Job> {
        let is_it = |job: &Job| {
            let registered = job.started_at().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
            registered <= started_ns + CLOCK_NS && is_titled(job.title(), command)
        };
        let position = self.0.iter().position(is_it)?;
        self.0.remove(position)
    }
}

/// A title is the beginning of the first line.
fn is_titled(title: &str, command: &str) -> bool {
    let begins = title.strip_suffix('…').unwrap_or(title);
    let line = command.trim().lines().next().unwrap_or_default();
    let line: String = line.chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
    line.starts_with(begins) && (begins.len() < title.len() || line.len() == begins.len())
}

fn run(entry: &HistoryEntry, jobs: &mut Jobs) -> Option<String> {
    let (command, status) = match &entry.deed {
        Deed::Command { argv, status, .. } => match argv.as_slice() {
            [shell, flag, script] if flag == "-c" && shell.ends_with("sh") => (script.clone(), *status),
            argv => (argv.join(" "), *status),
        },
        Deed::Code { language, arguments, status, .. } => (
            [language.as_str()].into_iter().chain(arguments.iter().map(String::as_str)).collect::<Vec<_>>().join(" "),
            *status,
        ),
        Deed::FileWritten { .. }
        | Deed::Unpacked { .. }
        | Deed::DirectoryMade { .. }
        | Deed::Removed { .. }
        | Deed::Renamed { .. } => return None,
    };
    let mut text = match jobs.take(&command, entry.started_ns) {
        Some(job) => {
            let output = job.output();
            words::transcript(&command, &output.stdout.to_text(), &output.stderr.to_text())
        }
        None => format!("$ {command}\n[its output is no longer kept]\n"),
    };
    match status {
        Some(ExecStatus::Exited(0)) => {}
        Some(status) => text += &words::exited(work::exit_code(status)),
        None => text += "[not known to have ended]\n",
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_that_of_its_command() {
        let long = "x".repeat(200);
        assert!(is_titled("ls -l", "ls -l") && is_titled("ls -l", "  ls -l "));
        assert!(is_titled("ls…", "ls\npwd") && is_titled(&format!("{}…", "x".repeat(79)), &long));
        assert!(!is_titled("ls", "ls -l") && !is_titled("ls -l", "ls"));
        assert!(!is_titled("pwd…", "ls\npwd"));
    }
}
