//! The terminal in front of which a person sits.

use std::io::{IsTerminal, stdin};
use std::os::fd::AsFd;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sandbox::TerminalSize;

/// Raw until dropped: every key goes to the program, which has a terminal of its own to interpret it.
#[derive(Debug)]
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// `None` when stdin is not a terminal; then there is nothing to set.
    pub fn enter() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// Does not show what is typed, until dropped.
#[derive(Debug)]
pub struct SilentTerminal {
    before: Termios,
}

impl SilentTerminal {
    /// `None` when stdin is not a terminal.
    pub fn enter() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        // What was typed ahead was shown, and may not be meant as the answer.
        tcsetattr(stdin(), OptionalActions::Flush, &silent).ok()?;
        Some(Self { before })
    }
}

impl Drop for SilentTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// The size of whichever of our streams is a terminal.
pub fn size() -> TerminalSize {
    let of = |stream: &dyn AsFd| tcgetwinsize(stream.as_fd()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    let found = of(&std::io::stdout()).or_else(|| of(&stdin())).or_else(|| of(&std::io::stderr()));
    found
        .map_or(TerminalSize { rows: 24, columns: 80 }, |size| TerminalSize { rows: size.ws_row, columns: size.ws_col })
}

/// Whether a read of stdin would stop this process, as it does to a background job of an interactive shell.
pub fn stdin_belongs_to_somebody_else() -> bool {
    stdin().is_terminal() && rustix::termios::tcgetpgrp(stdin()).is_ok_and(|group| group != rustix::process::getpgrp())
}
