//! Lines as Docker counts them: without comments, joined where one ends in the escape character.

use super::wrong;
use crate::error::Result;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it begins, from 1.
    pub number: usize,
    pub text: String,
}

/// The escape character, and the lines.
pub fn read(text: &str) -> Result<(char, Vec<Line>)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let escape = directives(text)?;
    let mut lines = Vec::new();
    let mut begun: Option<Line> = None;
    for (index, line) in text.lines().enumerate() {
        // Comments and empty lines may stand in the middle of what goes on over several lines.
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let trimmed = line.trim_end();
        let (part, goes_on) = match trimmed.strip_suffix(escape) {
            Some(part) => (part, true),
            None => (trimmed, false),
        };
        let whole = match begun.take() {
            Some(mut begun) => {
                begun.text.push_str(part);
                begun
            }
            None => Line { number: index + 1, text: part.trim_start().to_owned() },
        };
        if goes_on {
            begun = Some(whole);
        } else {
            lines.push(whole);
        }
    }
    lines.extend(begun.filter(|line| !line.text.trim().is_empty()));
    Ok((escape, lines))
}

/// `# escape=` and the like, which count only at the very top.
fn directives(text: &str) -> Result<char> {
    for (index, line) in text.lines().enumerate() {
        let directive = line.trim().strip_prefix('#').and_then(|rest| rest.split_once('='));
        let Some((name, value)) = directive else { break };
        match (name.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("escape", "\\") => return Ok('\\'),
            ("escape", "`") => return Ok('`'),
            ("escape", _) => return Err(wrong(index + 1, "the escape character is \\ or `")),
            ("syntax" | "check", _) => {}
            _ => break,
        }
    }
    Ok('\\')
}
