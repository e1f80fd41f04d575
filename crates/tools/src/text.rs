//! Text for a model's context: bounded by what it takes once it is written down as JSON, not by what it was before.

use std::borrow::Cow;
use std::time::Duration;

use sandbox::CappedOutput;

/// How much of a file is shown at once.
pub const PART: u64 = 32 * 1024;

/// Encoded bytes that are kept of each end.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub head: usize,
    pub tail: usize,
}

/// Output as it is shown, and whether anything was left out of it.
pub fn cut(output: &CappedOutput, budget: Budget) -> (String, bool) {
    let whole = String::from_utf8_lossy(&output.bytes()).into_owned();
    if !output.is_truncated() && encoded_prefix(&whole, budget.head + budget.tail) == whole.len() {
        return (whole, false);
    }
    // Where bytes are already missing, the ends must not be taken for neighbours.
    let (start, end) = if output.is_truncated() {
        (String::from_utf8_lossy(output.head()).into_owned(), String::from_utf8_lossy(&output.tail()).into_owned())
    } else {
        (whole.clone(), whole)
    };
    let head = &start[..encoded_prefix(&start, budget.head)];
    let tail = &end[encoded_suffix(&end, budget.tail)..];
    let (head, tail) = (whole_lines_before(head), whole_lines_after(tail));
    let left_out = output.total().saturating_sub((head.len() + tail.len()) as u64);
    (format!("{head}\n[… {left_out} bytes left out …]\n{tail}"), true)
}

/// Without the broken last line, unless there is no other.
fn whole_lines_before(text: &str) -> &str {
    text.rfind('\n').map_or(text, |end| &text[..end])
}

fn whole_lines_after(text: &str) -> &str {
    text.find('\n').filter(|end| end + 1 < text.len()).map_or(text, |end| &text[end + 1..])
}

/// A name that sandboxed code chose, on one line: a line break in it must not look like a line of ours.
pub fn on_one_line(name: &str) -> Cow<'_, str> {
    if !name.chars().any(char::is_control) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::new();
    for character in name.chars() {
        if character.is_control() { shown.extend(character.escape_default()) } else { shown.push(character) }
    }
    Cow::Owned(shown)
}

const DAY: u64 = 24 * 60;

/// As a person says it.
pub fn spoken(duration: Duration) -> String {
    match (duration.as_secs() / 60, duration.as_secs() % 60) {
        (0, 0) => format!("{} ms", duration.as_millis()),
        (0, seconds) => format!("{seconds} s"),
        // A day is 24 h, as is all that is no whole number of days.
        (minutes, 0) if minutes % DAY == 0 && minutes > DAY => format!("{} days", minutes / DAY),
        (minutes, 0) if minutes % 60 == 0 => format!("{} h", minutes / 60),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// The bytes that a text takes inside a JSON string.
pub fn encoded(text: &str) -> usize {
    text.chars().map(encoded_length).sum()
}

/// The bytes that a character takes inside a JSON string.
fn encoded_length(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        character if (character as u32) < 0x20 => 6,
        character => character.len_utf8(),
    }
}

/// How many bytes of the beginning fit into so many encoded ones, cut between characters.
pub fn encoded_prefix(text: &str, most: usize) -> usize {
    let mut room = most;
    for (index, character) in text.char_indices() {
        match room.checked_sub(encoded_length(character)) {
            Some(left) => room = left,
            None => return index,
        }
    }
    text.len()
}

/// Where the end begins that fits into so many encoded bytes.
pub fn encoded_suffix(text: &str, most: usize) -> usize {
    let mut room = most;
    for (index, character) in text.char_indices().rev() {
        match room.checked_sub(encoded_length(character)) {
            Some(left) => room = left,
            None => return index + character.len_utf8(),
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_what_is_written() {
        let text: String = (0..0x250).filter_map(char::from_u32).chain(['€', '𝄞']).collect();
        let written = serde_json::to_string(&text).unwrap();
        assert_eq!(text.chars().map(encoded_length).sum::<usize>(), written.len() - 2);
    }

    fn output(text: &str, caps: usize) -> CappedOutput {
        let mut output = CappedOutput::new(sandbox::OutputCaps { head: caps, tail: caps });
        output.push(text.as_bytes());
        output
    }

    #[test]
    fn what_fits_is_whole_and_what_does_not_keeps_both_ends() {
        let budget = Budget { head: 20, tail: 20 };
        assert_eq!(cut(&output("one\ntwo\n", 100), budget), ("one\ntwo\n".to_owned(), false));
        let long: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let (text, truncated) = cut(&output(&long, 1000), budget);
        assert!(truncated);
        assert!(text.starts_with("line 0\nline 1\n[… ") && text.ends_with("left out …]\nline 98\nline 99\n"), "{text}");
        assert_eq!(cut(&output(&long, 50), budget).0, text);
    }

    #[test]
    fn control_bytes_do_not_escape_the_budget() {
        let budget = Budget { head: 600, tail: 600 };
        let (text, truncated) = cut(&output(&"\u{1}".repeat(10_000), 10_000), budget);
        assert!(truncated && serde_json::to_string(&text).unwrap().len() < 1300);
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(on_one_line("plot 1.png"), "plot 1.png");
        assert_eq!(on_one_line("a\n[exit code 0]\u{1b}[2J"), "a\\n[exit code 0]\\u{1b}[2J");
    }

    #[test]
    fn cuts_fall_between_characters_from_both_ends() {
        let text = "ä\u{1}€\"x";
        for most in 0..20 {
            let head = &text[..encoded_prefix(text, most)];
            let tail = &text[encoded_suffix(text, most)..];
            for part in [head, tail] {
                assert!(serde_json::to_string(part).unwrap().len() - 2 <= most);
            }
        }
        assert_eq!(encoded_prefix(text, 20), text.len());
        assert_eq!(encoded_suffix(text, 20), 0);
    }
}
