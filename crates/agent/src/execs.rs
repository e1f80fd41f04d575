//! Commands as the domain speaks of them and as process 1 does: one conversion, for every engine.

use std::io;
use std::time::{Duration, SystemTime};

use sandbox::{
    Environment, Error, ErrorKind, ExecLog, ExecRequest, ExecStatus, ExecUsage, GuestPath, OnDisconnect, OutputTarget,
    Result,
};

use crate::errno;
use crate::filework::system_failure;
use crate::messages::{EndCause, Exec, ExecEnd, ExecStage, FromLog, Prelude, Terminal};

/// Bounds on what process 1, which is not trusted, may send as logs; it keeps less.
const MOST_LOGS: usize = 64;
const MOST_LOG_BYTES: usize = 2 << 20;

/// A request with all that the sandbox adds to it.
pub fn message(request: &ExecRequest, environment: Environment, directory: &GuestPath) -> Exec {
    let mut environment = environment.overlaid_by(&request.environment);
    if request.terminal.is_some() && environment.get("TERM").is_none() {
        let mut term = Environment::default();
        // A constant of ours, which the check cannot refuse.
        let _ = term.insert("TERM", "xterm-256color");
        environment = environment.overlaid_by(&term);
    }
    let prelude = request.prelude.as_ref().and_then(|prelude| {
        let directory = prelude.directory.to_string_lossy();
        let value = match environment.get(prelude.variable) {
            Some(rest) => format!("{directory}:{rest}"),
            None => directory.into_owned(),
        };
        let mut longer = environment.clone();
        // Where there is no room for it the program has to do without.
        longer.insert(prelude.variable, value).ok()?;
        environment = longer;
        Some(Box::new(Prelude {
            directory: prelude.directory.as_bytes().to_vec(),
            file: prelude.file.as_bytes().to_vec(),
            contents: prelude.contents.clone().into_bytes(),
        }))
    });
    Exec {
        argv: request.argv().to_vec(),
        environment: environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        work_directory: directory.as_bytes().to_vec(),
        terminal: request.terminal.map(|size| Terminal { rows: size.rows, columns: size.columns }),
        timeout_milliseconds: milliseconds(request.timeout),
        detached: request.on_disconnect == OnDisconnect::Continue,
        joined: request.output == OutputTarget::Joined,
        logged: request.output == OutputTarget::Log,
        account: request.account.map(|account| (account.user, account.group)),
        ahead: false,
        script: request.script.as_ref().map(|script| (script.path().as_bytes().to_vec(), script.contents().to_vec())),
        prelude,
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2)
}

/// Why a command did not start in its directory.
pub fn not_started(stage: ExecStage, number: i32, directory: &GuestPath, request: &ExecRequest) -> Error {
    let cause = io::Error::from_raw_os_error(number);
    let program = &request.argv()[0];
    let error = match (stage, number) {
        (_, errno::EAGAIN) => no_more_processes(),
        (ExecStage::WorkDirectory, errno::ENOENT | errno::ENOTDIR) => {
            Error::not_found(format!("there is no directory {directory} in the sandbox"))
        }
        (ExecStage::WorkDirectory, _) => Error::new(ErrorKind::Denied, format!("the directory {directory} is closed")),
        (ExecStage::Script, number) => match &request.script {
            Some(script) => system_failure(number, script.path()),
            None => Error::internal("there was no script to write"),
        },
        (ExecStage::Program, errno::ENOENT) => {
            Error::not_found(format!("there is no program {program:?} in the sandbox"))
        }
        (ExecStage::Program, errno::EACCES) => {
            Error::invalid_input(format!("{program:?} is not executable")).with_hint("give it the executable bit")
        }
        (ExecStage::Program, errno::ENOEXEC) => Error::invalid_input(format!("{program:?} is not a program"))
            .with_hint("a script needs a first line such as #!/bin/sh"),
        (ExecStage::Log, errno::ENOSPC) => Error::limit_exceeded("the sandbox's disk is full"),
        (ExecStage::Program, errno::E2BIG) => Error::limit_exceeded("the arguments and environment are too large"),
        (ExecStage::Program, errno::ENOMEM) => Error::limit_exceeded("there is not enough memory to start the program"),
        (ExecStage::Program, _) => Error::invalid_input(format!("{program:?} cannot be executed: {cause}")),
        (ExecStage::Log | ExecStage::Terminal | ExecStage::Fork | ExecStage::Identity, _) => {
            Error::internal("the command could not be started")
        }
    };
    error.with_cause(cause)
}

pub fn no_more_processes() -> Error {
    Error::limit_exceeded("the sandbox has as many processes as it may have")
        .with_hint("wait for some to end, stop them, or create a sandbox with a higher process limit")
}

pub fn status_of(status: i32, cause: EndCause) -> ExecStatus {
    let signal = status & 0x7f;
    match cause {
        EndCause::Deadline => ExecStatus::TimedOut,
        EndCause::Asked => ExecStatus::Cancelled,
        EndCause::Itself if signal == 0 => ExecStatus::Exited((status >> 8) & 0xff),
        EndCause::Itself => ExecStatus::Signalled(signal),
    }
}

pub fn usage_of(end: &ExecEnd) -> ExecUsage {
    ExecUsage {
        wall: Duration::from_micros(end.wall_microseconds),
        cpu: Duration::from_micros(end.cpu_microseconds),
        peak_memory: end.peak_memory,
    }
}

/// What detached commands wrote, as it comes.
#[derive(Debug, Default)]
pub struct Logs(Vec<ExecLog>);

impl Logs {
    /// The whole, after its last piece.
    pub fn add(&mut self, piece: FromLog) -> Result<Option<Vec<ExecLog>>> {
        match piece {
            FromLog::Entry(_) if self.0.len() >= MOST_LOGS => return Err(Error::internal("there are too many logs")),
            FromLog::Entry(entry) => self.0.push(ExecLog {
                command: entry.argv,
                started: SystemTime::UNIX_EPOCH + Duration::from_millis(entry.started_milliseconds),
                status: entry.end.map(|end| status_of(end.status, end.cause)),
                output: Vec::new(),
                dropped: entry.total,
            }),
            FromLog::Output(bytes) => {
                if let Some(log) = self.0.last_mut().filter(|log| log.output.len() + bytes.len() <= MOST_LOG_BYTES) {
                    log.dropped = log.dropped.saturating_sub(bytes.len() as u64);
                    log.output.extend(bytes);
                }
            }
            FromLog::Done => return Ok(Some(std::mem::take(&mut self.0))),
        }
        Ok(None)
    }
}
