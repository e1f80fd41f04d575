//! What a package manager says, made fit for people: it comes out of a sandbox, so nothing of it is to be believed or passed
//! on as it is.

/// Longer lines are cut.
const LONGEST: usize = 200;

/// Printable and not too long, whatever was in it.
pub(super) fn plain(line: &str) -> String {
    let mut text: String =
        strip_escapes(line).chars().filter(|character| !character.is_control()).take(LONGEST).collect();
    text.truncate(text.trim_end().len());
    text.trim_start().to_owned()
}

/// The last lines that say something.
pub(super) fn last_lines(text: &str, count: usize) -> Vec<String> {
    let lines: Vec<String> = text.lines().map(plain).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

/// Colours and the like: an escape character and what belongs to it.
fn strip_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '\x1b' {
            plain.push(character);
            continue;
        }
        if characters.next_if_eq(&'[').is_some() {
            while characters.next().is_some_and(|character| !character.is_ascii_alphabetic()) {}
        }
    }
    plain
}

/// Bytes as they come, lines as they end. A line without an end is not kept for long.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    unfinished: Vec<u8>,
}

impl LineSplitter {
    pub fn push(&mut self, bytes: &[u8], on_line: &mut impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => {
                    let line = plain(&String::from_utf8_lossy(&self.unfinished));
                    if !line.is_empty() {
                        on_line(&line);
                    }
                    self.unfinished.clear();
                }
                byte if self.unfinished.len() < 4 * LONGEST => self.unfinished.push(*byte),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_a_cursor_comes_through() {
        assert_eq!(plain("  \x1b[31mERROR\x1b[0m: a\x07\x1b]0;title\x1b\\b \x1b"), "ERROR: a]0;title\\b");
        assert_eq!(plain(&"x".repeat(1000)).len(), LONGEST);
        assert_eq!(last_lines("a\n\n \nb\nc\n", 2), ["b", "c"]);
    }

    #[test]
    fn lines_come_when_they_end() {
        let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
        for piece in ["Coll", "ecting a\r\nDown", "loading b\n", "unfin"] {
            splitter.push(piece.as_bytes(), &mut |line: &str| lines.push(line.to_owned()));
        }
        assert_eq!(lines, ["Collecting a", "Downloading b"]);
    }
}
