//! Where a value comes from: a pipe, or a person who types it unseen. Never an argument, which others can read.

use std::io::{BufRead, IsTerminal, Read, Write, stderr, stdin};

use egress::SecretValue;
use sandbox::{Error, Result, SecretName, Signal};

use crate::signals::Signals;
use crate::terminal::SilentTerminal;
use crate::wiring;

#[derive(Debug)]
pub enum Asked {
    Value(SecretValue),
    /// The person changed their mind.
    Interrupted(Signal),
}

pub fn value(name: &SecretName) -> Result<Asked> {
    if stdin().is_terminal() { typed(name) } else { piped().map(Asked::Value) }
}

fn piped() -> Result<SecretValue> {
    let mut text = Vec::new();
    // A little more than a value may have, so that a longer one is noticed and a stream without end is not read.
    let most = SecretValue::MAX_BYTES as u64 + 2;
    stdin().lock().take(most).read_to_end(&mut text).map_err(unreadable)?;
    understand(text)
}

fn typed(name: &SecretName) -> Result<Asked> {
    wiring::block_on(async {
        let mut signals = Signals::listen()?;
        // Dropped on every way out of here, so that the terminal echoes again.
        let _silent = SilentTerminal::enter();
        let _ = write!(stderr(), "value of {name} (not shown): ");
        let line = tokio::task::spawn_blocking(|| {
            let mut text = Vec::new();
            stdin().lock().take(2 * SecretValue::MAX_BYTES as u64).read_until(b'\n', &mut text).map(|_| text)
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

fn understand(mut text: Vec<u8>) -> Result<SecretValue> {
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if text.is_empty() {
        return Err(Error::invalid_input("the value is empty"));
    }
    // The error would hold the text.
    let text = String::from_utf8(text).map_err(|_| Error::invalid_input("the value is not UTF-8 text"))?;
    SecretValue::new(text)
}

fn unreadable(cause: std::io::Error) -> Error {
    Error::unavailable("the value cannot be read").with_cause(cause)
}
