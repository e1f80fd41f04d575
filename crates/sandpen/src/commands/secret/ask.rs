//! Where a value comes from: a pipe, or a person who types it unseen. Never an argument, which others can read.

use std::io::{BufRead, IsTerminal, Read, Write, stderr, stdin};

use egress::SecretValue;
use sandbox::{Error, Result, SecretName, Signal};

use crate::signals::Signals;
use crate::terminal::SilentTerminal;
use crate::wiring;

#[derive(Debug)]
pub enum Asked<T> {
    Value(T),
    /// The person changed their mind.
    Interrupted(Signal),
}

pub fn value(name: &SecretName) -> Result<Asked<SecretValue>> {
    match text(&format!("value of {name}"), SecretValue::MAX_BYTES)? {
        Asked::Value(text) => SecretValue::new(text).map(Asked::Value),
        Asked::Interrupted(signal) => Ok(Asked::Interrupted(signal)),
    }
}

/// One line that nobody sees; `most` is what its reader takes.
pub fn text(what: &str, most: usize) -> Result<Asked<String>> {
    if stdin().is_terminal() { typed(what, most) } else { piped(most).map(Asked::Value) }
}

fn piped(most: usize) -> Result<String> {
    let mut text = Vec::new();
    // A little more than a value may have, so that a longer one is noticed and a stream without end is not read.
    stdin().lock().take(most as u64 + 2).read_to_end(&mut text).map_err(unreadable)?;
    understand(text)
}

fn typed(what: &str, most: usize) -> Result<Asked<String>> {
    wiring::block_on(async {
        let mut signals = Signals::listen()?;
        // Dropped on every way out of here, so that the terminal echoes again.
        let _silent = SilentTerminal::enter();
        let _ = write!(stderr(), "{what} (not shown): ");
        let line = tokio::task::spawn_blocking(move || {
            let mut text = Vec::new();
            stdin().lock().take(2 * most as u64).read_until(b'\n', &mut text).map(|_| text)
        });
        let heard = signals.unless_ended(line).await;
        let _ = writeln!(stderr());
        match heard {
            Err(signal) => Ok(Asked::Interrupted(signal)),
            Ok(Ok(text)) => understand(text.map_err(unreadable)?).map(Asked::Value),
            Ok(Err(panicked)) => Err(Error::internal("the value cannot be read").with_cause(panicked)),
        }
    })
}

fn understand(mut text: Vec<u8>) -> Result<String> {
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if text.is_empty() {
        return Err(Error::invalid_input("the value is empty"));
    }
    // The error would hold the text.
    String::from_utf8(text).map_err(|_| Error::invalid_input("the value is not UTF-8 text"))
}

fn unreadable(cause: std::io::Error) -> Error {
    Error::unavailable("the value cannot be read").with_cause(cause)
}
