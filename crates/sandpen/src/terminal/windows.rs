//! The console in front of which a person sits.

use sandbox::TerminalSize;
use winapi_util::HandleRef;
use winapi_util::console::{mode, set_mode};

/// What a console does with keys by itself: Ctrl-C is a signal, a line is edited, what is typed is shown.
const PROCESSED_INPUT: u32 = 0x0001;
const LINE_INPUT: u32 = 0x0002;
const ECHO_INPUT: u32 = 0x0004;
/// Keys that are no characters come as the sequences that programs of Linux expect.
const VIRTUAL_TERMINAL_INPUT: u32 = 0x0200;

/// Raw until dropped: every key goes to the program, which has a terminal of its own to interpret it.
#[derive(Debug)]
pub struct RawTerminal {
    _before: Before,
}

impl RawTerminal {
    /// `None` when stdin is not a console; then there is nothing to set.
    pub fn enter() -> Option<Self> {
        let raw = |before: u32| (before & !(PROCESSED_INPUT | LINE_INPUT | ECHO_INPUT)) | VIRTUAL_TERMINAL_INPUT;
        Before::change(raw).map(|before| Self { _before: before })
    }
}

/// Does not show what is typed, until dropped.
#[derive(Debug)]
pub struct SilentTerminal {
    _before: Before,
}

impl SilentTerminal {
    /// `None` when stdin is not a console.
    pub fn enter() -> Option<Self> {
        Before::change(|before| before & !ECHO_INPUT).map(|before| Self { _before: before })
    }
}

/// As the console was, and will be again.
#[derive(Debug)]
struct Before(u32);

impl Before {
    fn change(to: impl FnOnce(u32) -> u32) -> Option<Self> {
        let before = mode(HandleRef::stdin()).ok()?;
        set_mode(HandleRef::stdin(), to(before)).ok()?;
        Some(Self(before))
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        let _ = set_mode(HandleRef::stdin(), self.0);
    }
}

/// The size of whichever of our streams is a console.
pub fn size() -> TerminalSize {
    let found = terminal_size::terminal_size();
    found.map_or(TerminalSize { rows: 24, columns: 80 }, |(columns, rows)| TerminalSize {
        rows: rows.0,
        columns: columns.0,
    })
}

/// Reading the console never stops a process here.
pub fn stdin_belongs_to_somebody_else() -> bool {
    false
}
