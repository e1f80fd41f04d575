//! What people and programs see: results, errors, notes.

use std::io::Write;

use anstyle::{AnsiColor, Style};
use sandbox::Error;
use serde::Serialize;

use crate::config::{Color, Config};

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();
pub const ADVICE: Style = AnsiColor::Cyan.on_default().bold();

/// For whom a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    Person,
    Program,
}

impl Audience {
    pub fn new(json: bool) -> Self {
        if json { Self::Program } else { Self::Person }
    }
}

/// Colour for the whole process. `auto` looks at the terminal, `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE`.
pub fn use_color(color: Color) {
    match color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// Text for a person on stdout. A reader that went away, as in `| head`, has seen what it wanted.
pub fn text(text: &str) {
    let mut stdout = anstream::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// One JSON object on one line of stdout.
pub fn object(value: &impl Serialize) {
    let mut line = serde_json::to_string(value).expect("our own results hold nothing that JSON lacks");
    line.push('\n');
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}

/// How errors are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Teller {
    pub audience: Audience,
    /// With the private cause, for whoever runs this machine.
    pub verbose: bool,
}

impl Teller {
    pub fn new(config: &Config) -> Self {
        Self { audience: Audience::new(config.json), verbose: config.verbose }
    }

    pub fn error(self, error: &Error) {
        match self.audience {
            Audience::Person => {
                let mut lines = format!("{BAD}error:{BAD:#} {}\n", printable(error.message()));
                if let Some(hint) = error.hint() {
                    lines += &format!("{ADVICE}hint:{ADVICE:#} {}\n", printable(hint));
                }
                if let Some(cause) = error.cause().filter(|_| self.verbose) {
                    lines += &format!("{DIM}cause:{DIM:#} {}\n", printable(&cause.to_string()));
                }
                to_stderr(&lines);
            }
            Audience::Program => object(&ErrorObject {
                error: ErrorFields { kind: error.kind().as_str(), message: error.message(), hint: error.hint() },
            }),
        }
    }
}

/// Something a person should know although nothing of ours failed.
pub fn note(message: &str, hint: Option<&str>) {
    let mut lines = format!("{DOUBTFUL}sandpen:{DOUBTFUL:#} {}\n", printable(message));
    if let Some(hint) = hint {
        lines += &format!("{ADVICE}hint:{ADVICE:#} {}\n", printable(hint));
    }
    to_stderr(&lines);
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    kind: &'a str,
    message: &'a str,
    hint: Option<&'a str>,
}

/// One write for the whole message, so that it is not torn apart by the output of a program.
fn to_stderr(lines: &str) {
    let _ = anstream::stderr().lock().write_all(lines.as_bytes());
}

/// A message can quote what sandboxed code chose, and that must not drive the terminal.
pub fn printable(message: &str) -> String {
    message
        .chars()
        .map(|character| if character.is_control() && character != '\n' { '\u{fffd}' } else { character })
        .collect()
}

/// What the system says about a failed call, as part of a sentence.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split(" (os error").next().unwrap_or_default() {
        "" => "unknown reason".to_owned(),
        text => in_a_sentence(text),
    }
}

/// What begins with a capital by itself does not within our sentences.
pub fn in_a_sentence(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().into_iter().flat_map(char::to_lowercase).chain(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_fits_into_a_sentence() {
        assert_eq!(reason(&std::io::Error::from_raw_os_error(2)), "no such file or directory");
    }

    #[test]
    fn a_message_cannot_drive_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}c\nd"), "a\u{fffd}[2Jb\u{fffd}c\nd");
    }
}
