//! One command in a sandbox: what is asked, what comes back.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::network::NetworkActivity;
use crate::path::GuestPath;
use crate::spec::Environment;

/// A command to start. Engines take it as it is; defaults (time-out, directory) are the service's.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct ExecRequest {
    /// Never empty, no NUL, bounded: see [`ExecRequest::new`].
    argv: Vec<String>,
    /// Overlays the sandbox's own.
    pub environment: Environment,
    /// The sandbox's work directory when not given.
    pub work_directory: Option<GuestPath>,
    pub terminal: Option<TerminalSize>,
    /// Enforced inside the sandbox too, so that a server that hangs or dies does not extend it.
    pub timeout: Duration,
    pub on_disconnect: OnDisconnect,
    pub output: OutputTarget,
    /// Written as the sandbox's user, just before the program starts: no round trip of its own.
    pub script: Option<Script>,
    /// Written likewise. The program is started all the same where it cannot be.
    pub prelude: Option<Prelude>,
    /// Somebody else than who programs of the sandbox usually are. Only for a [`Role::Builder`]; refused elsewhere. What
    /// such a command leaves running ends with it.
    ///
    /// [`Role::Builder`]: crate::Role::Builder
    pub account: Option<Account>,
}

/// A user and its group, by their numbers inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    pub user: u32,
    pub group: u32,
}

impl ExecRequest {
    pub const MAX_ARGUMENT_BYTES: usize = 96 * 1024;

    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>, timeout: Duration) -> Result<Self> {
        let argv: Vec<String> = argv.into_iter().map(Into::into).collect();
        if argv.first().is_none_or(String::is_empty) {
            return Err(Error::invalid_input("there is no command to run"));
        }
        if argv.iter().any(|argument| argument.contains('\0')) {
            return Err(Error::invalid_input("an argument contains a NUL byte"));
        }
        let bytes: usize = argv.iter().map(|argument| argument.len() + 1).sum();
        if bytes > Self::MAX_ARGUMENT_BYTES {
            return Err(Error::limit_exceeded(format!(
                "the arguments have {bytes} bytes, {} are allowed",
                Self::MAX_ARGUMENT_BYTES
            ))
            .with_hint("write the data to a file in the sandbox, or pass it on stdin"));
        }
        Ok(Self {
            argv,
            environment: Environment::default(),
            work_directory: None,
            terminal: None,
            timeout,
            on_disconnect: OnDisconnect::Kill,
            output: OutputTarget::Streams,
            script: None,
            prelude: None,
            account: None,
        })
    }

    /// A command line for the sandbox's own shell.
    pub fn shell(script: &str, timeout: Duration) -> Result<Self> {
        Self::new(["/bin/sh", "-c", script], timeout)
    }

    pub fn argv(&self) -> &[String] {
        &self.argv
    }
}

/// What becomes of an exec in a persistent sandbox when the process that asked for it goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnDisconnect {
    Kill,
    Continue,
}

/// A small file that a program is started for. Larger ones are written by themselves first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Script {
    path: GuestPath,
    contents: Vec<u8>,
}

impl Script {
    pub const MAX_BYTES: usize = 16 * 1024;

    /// `None` when it is too large to travel with a request.
    pub fn new(path: &GuestPath, contents: &[u8]) -> Option<Self> {
        (contents.len() <= Self::MAX_BYTES).then(|| Self { path: path.clone(), contents: contents.to_vec() })
    }

    pub fn path(&self) -> &GuestPath {
        &self.path
    }

    pub fn contents(&self) -> &[u8] {
        &self.contents
    }
}

/// A file that an interpreter reads before its script, because its directory is the first on a search path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prelude {
    /// Made for it, and for nobody else than the sandbox's user.
    pub directory: GuestPath,
    pub file: &'static str,
    pub contents: String,
    /// The variable with that search path. What it has already comes after the directory.
    pub variable: &'static str,
    /// An interpreter that waits for its script after that has much in memory.
    pub is_heavy: bool,
}

/// Where the output of an exec goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputTarget {
    /// To whoever started it.
    Streams,
    /// The same, stdout and stderr on one stream in the order in which they were written; that of stderr is empty.
    Joined,
    /// To a log that the engine keeps with the sandbox, bounded, the newest part; the streams are empty.
    Log,
}

/// A command whose output was kept, and what was kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecLog {
    pub command: Vec<String>,
    pub started: SystemTime,
    /// `None` while it runs.
    pub status: Option<ExecStatus>,
    /// stdout and stderr as they came.
    pub output: Vec<u8>,
    /// Bytes before `output` that were not kept.
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// How an exec ended. Never an error: the request to run something was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecStatus {
    /// It ended by itself, with this code.
    Exited(i32),
    /// A signal ended it that neither the engine nor the caller sent for a reason named below.
    Signalled(i32),
    /// Its time ran out; it and all it started were killed.
    TimedOut,
    /// The kernel killed a process of it because the sandbox's memory was used up.
    OutOfMemory,
    /// Its caller cancelled it.
    Cancelled,
    /// The sandbox was stopped under it.
    Killed,
}

impl ExecStatus {
    /// The word that results and `--json` use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited(_) => "exited",
            Self::Signalled(_) | Self::Killed => "killed",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory => "out_of_memory",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn exit_code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signalled(_) | Self::TimedOut | Self::OutOfMemory | Self::Cancelled | Self::Killed => None,
        }
    }

    pub fn signal(self) -> Option<i32> {
        match self {
            Self::Signalled(signal) => Some(signal),
            Self::Exited(_) | Self::TimedOut | Self::OutOfMemory | Self::Cancelled | Self::Killed => None,
        }
    }
}

/// What an exec used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecUsage {
    pub wall: Duration,
    /// Of the command and everything it started that has ended.
    pub cpu: Duration,
    /// The largest resident set of any one process of the run.
    pub peak_memory: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutcome {
    pub status: ExecStatus,
    pub usage: ExecUsage,
    /// Of the whole sandbox, from the start of the command to its end.
    pub network: NetworkActivity,
}

/// A signal that may be sent to an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
    Kill,
    HangUp,
    Quit,
    User1,
    User2,
}

impl Signal {
    pub fn number(self) -> i32 {
        match self {
            Self::HangUp => 1,
            Self::Interrupt => 2,
            Self::Quit => 3,
            Self::Kill => 9,
            Self::User1 => 10,
            Self::User2 => 12,
            Self::Terminate => 15,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_command_is_refused() {
        let second = Duration::from_secs(1);
        assert!(ExecRequest::new(Vec::<String>::new(), second).is_err());
        assert!(ExecRequest::new([""], second).is_err());
        assert!(ExecRequest::new(["a\0b"], second).is_err());
        assert!(ExecRequest::new(["x".repeat(ExecRequest::MAX_ARGUMENT_BYTES)], second).is_err());
    }
}
