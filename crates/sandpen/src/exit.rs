//! Exit codes: the program's own, or one of ours with Docker's meaning.

use sandbox::{ExecStatus, Signal};

/// What this process tells its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(u8);

impl Exit {
    pub const SUCCESS: Self = Self(0);
    /// A command other than `run` and `exec` did not do what was asked.
    pub const FAILURE: Self = Self(1);
    /// The command line itself makes no sense, and the command is not `run` or `exec`.
    pub const USAGE: Self = Self(2);
    /// `export` wrote what does not make the sandbox anew in all its parts.
    pub const DIFFERENT: Self = Self(3);
    /// As of `timeout(1)`.
    pub const TIMED_OUT: Self = Self(124);
    /// `run` or `exec` could not do their part.
    pub const OURS: Self = Self(125);
    /// The program exists but cannot be executed.
    pub const CANNOT_EXECUTE: Self = Self(126);
    /// There is no such program.
    pub const NOT_FOUND: Self = Self(127);

    /// What a shell shows for a program that wrote to a pipe without a reader.
    pub const READER_GONE: Self = Self(141);

    pub fn signal(signal: Signal) -> Self {
        Self::signal_number(signal.number())
    }

    fn signal_number(number: i32) -> Self {
        Self(u8::try_from(number).map_or(u8::MAX, |number| number.saturating_add(128)))
    }

    pub fn of(status: ExecStatus) -> Self {
        match status {
            ExecStatus::Exited(code) => Self(code as u8),
            ExecStatus::Signalled(number) => Self::signal_number(number),
            ExecStatus::TimedOut => Self::TIMED_OUT,
            ExecStatus::OutOfMemory | ExecStatus::Killed => Self::signal(Signal::Kill),
            ExecStatus::Cancelled => Self::signal(Signal::Interrupt),
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Exit::of(ExecStatus::Exited(3)), Exit(3));
        assert_eq!(Exit::of(ExecStatus::Signalled(11)), Exit(139));
        assert_eq!(Exit::of(ExecStatus::OutOfMemory), Exit(137));
        assert_eq!(Exit::of(ExecStatus::TimedOut), Exit(124));
        assert_eq!(Exit::signal(Signal::Terminate), Exit(143));
    }
}
