//! One line of the log for each event: who did what in which sandbox, and with whom it spoke.
//!
//! Names of secrets, never values; hosts, never what was asked of them; programs, never their arguments.

use std::time::Duration;

use sandbox::{Event, EventBus, EventKind, GuestPath, Persistence, SecretName};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Characters of a name that sandboxed code chose.
const MOST_CHARACTERS: usize = 256;

/// Writes for as long as it is there.
#[derive(Debug)]
pub struct Audit {
    task: Option<JoinHandle<()>>,
    over: CancellationToken,
}

impl Audit {
    /// From now on. Where nobody reads the lines, nobody listens either.
    pub fn start(events: &EventBus) -> Self {
        let over = CancellationToken::new();
        let wanted = tracing::enabled!(tracing::Level::INFO);
        let task = wanted.then(|| tokio::spawn(listen(events.subscribe(), over.clone())));
        Self { task, over }
    }

    /// Returns when everything that has happened is written.
    pub async fn finish(self) {
        self.over.cancel();
        if let Some(task) = self.task {
            let _ = task.await;
        }
    }
}

async fn listen(mut events: Receiver<Event>, over: CancellationToken) {
    loop {
        let received = tokio::select! {
            received = events.recv() => received,
            () = over.cancelled() => break,
        };
        match received {
            Ok(event) => write(&event),
            Err(RecvError::Lagged(count)) => missed(count),
            Err(RecvError::Closed) => return,
        }
    }
    loop {
        match events.try_recv() {
            Ok(event) => write(&event),
            Err(TryRecvError::Lagged(count)) => missed(count),
            Err(TryRecvError::Empty | TryRecvError::Closed) => return,
        }
    }
}

fn missed(count: u64) {
    tracing::warn!(missed = count, "events came faster than they could be written");
}

fn write(event: &Event) {
    let Event { owner, id, kind } = event;
    let sandbox = id.as_ref().map(tracing::field::display);
    // Each event with what is worth knowing of it, after what all of them have.
    macro_rules! line {
        ($($field:tt)*) => {
            tracing::info!(%owner, sandbox, event = kind.as_str(), $($field)*)
        };
    }
    match kind {
        EventKind::Created { persistence, limits, network, secrets, took } => line!(
            persistent = *persistence == Persistence::Persistent,
            memory = limits.memory.bytes(),
            %network,
            secrets = names(secrets),
            took_ms = milliseconds(*took),
        ),
        EventKind::CreateRefused { kind: error }
        | EventKind::CreateFailed { kind: error }
        | EventKind::ExecRefused { kind: error } => line!(error = error.as_str()),
        EventKind::Adopted | EventKind::Renewed => line!(),
        EventKind::ExecStarted { program } => line!(program = chosen(program)),
        EventKind::ExecEnded { program, outcome, stdout_bytes, stderr_bytes } => line!(
            program = chosen(program),
            status = outcome.status.as_str(),
            exit_code = outcome.status.exit_code(),
            signal = outcome.status.signal(),
            took_ms = milliseconds(outcome.usage.wall),
            cpu_ms = milliseconds(outcome.usage.cpu),
            stdout_bytes,
            stderr_bytes,
            connections = outcome.network.usage.connections,
            refused = outcome.network.usage.refused,
        ),
        EventKind::FileRead { path, bytes } | EventKind::FileWritten { path, bytes } => {
            line!(path = place(path), bytes)
        }
        EventKind::FileRemoved { path } => line!(path = place(path)),
        EventKind::FileRenamed { from, to } => line!(from = place(from), to = place(to)),
        EventKind::Connected { host, port, bytes_in, bytes_out, took, secrets } => line!(
            %host,
            port,
            bytes_in,
            bytes_out,
            took_ms = milliseconds(*took),
            secrets = names(secrets),
        ),
        EventKind::ConnectionRefused { host, port, denial } => line!(%host, port, rule = denial.as_str()),
        EventKind::Saved { name, bytes, took } => line!(%name, bytes, took_ms = milliseconds(*took)),
        EventKind::Forgotten { name } => line!(%name),
        EventKind::Forked { into } => line!(%into),
        EventKind::Checkpointed { checkpoint, took } | EventKind::Restored { checkpoint, took } => {
            line!(checkpoint = checkpoint.0, took_ms = milliseconds(*took))
        }
        EventKind::TreeFailed { work, kind: error } => line!(work = work.as_str(), error = error.as_str()),
        EventKind::Stopped { reason } => line!(reason = reason.as_str()),
        EventKind::StopFailed { reason, kind: error } => line!(reason = reason.as_str(), error = error.as_str()),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn names<'a>(secrets: impl IntoIterator<Item = &'a SecretName>) -> String {
    secrets.into_iter().map(SecretName::as_str).collect::<Vec<_>>().join(",")
}

/// A name that somebody chose must not look like a line of ours, nor fill the log.
fn chosen(name: &str) -> String {
    name.chars().take(MOST_CHARACTERS).flat_map(char::escape_default).collect()
}

fn place(path: &GuestPath) -> String {
    chosen(&path.to_string_lossy())
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
