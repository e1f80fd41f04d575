//! One property more or less in a text that is known to be sound. All other bytes stay.

use jsonc_parser::ast::{Object, ObjectProp};
use jsonc_parser::common::Ranged;
use serde_json::Value;

use super::super::newline_of;
use super::render;

/// How the file is written.
#[derive(Debug)]
pub struct Style {
    newline: &'static str,
    /// One step of indentation.
    unit: String,
    layout: Layout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Lines,
    /// The whole is on one line.
    Spaced,
    Compact,
}

impl Style {
    pub fn of(text: &str, root: &Object<'_>) -> Self {
        let newline = newline_of(text);
        let layout = if root.properties.is_empty() || is_spread(text, root) {
            Layout::Lines
        } else if text.contains("\": ") {
            Layout::Spaced
        } else {
            Layout::Compact
        };
        let first = root.properties.first().filter(|_| is_spread(text, root));
        let unit = first.map(|first| line_indent(text, first.start()));
        Self { newline, unit: unit.filter(|unit| !unit.is_empty()).unwrap_or("  ").to_owned(), layout }
    }

    fn on_lines(&self, key: &str, value: &Value, indent: &str) -> String {
        format!("{}: {}", Value::from(key), render::on_lines(value, &self.unit, indent, self.newline))
    }

    fn on_one_line(&self, key: &str, value: &Value) -> String {
        match self.layout {
            Layout::Lines | Layout::Spaced => format!("{}: {}", Value::from(key), render::on_one_line(value)),
            Layout::Compact => format!("{}:{}", Value::from(key), render::without_spaces(value)),
        }
    }
}

/// A new property behind the last.
pub fn append(text: &str, style: &Style, object: &Object<'_>, key: &str, value: &Value) -> String {
    let Some(last) = object.properties.last() else { return fill(text, style, object, key, value) };
    let next = behind_trivia(text, last.end());
    let has_trailing_comma = text[next..].starts_with(',');
    let (comma, closing_comma) = if has_trailing_comma { ("", ",") } else { (",", "") };
    if !is_spread(text, object) {
        let property = style.on_one_line(key, value);
        let blank = if style.layout == Layout::Compact { "" } else { " " };
        let at = if has_trailing_comma { next + 1 } else { last.end() };
        return [&text[..at], comma, blank, &property, &text[at..]].concat();
    }
    let indent = line_indent(text, last.start());
    let property = style.on_lines(key, value, indent);
    // A comment behind the last property is about that one.
    let at = behind_comments_of_line(text, if has_trailing_comma { next + 1 } else { last.end() });
    let (before, between) = (&text[..last.end()], &text[last.end()..at]);
    [before, comma, between, style.newline, indent, &property, closing_comma, &text[at..]].concat()
}

/// The first property of an object, which may hold comments.
fn fill(text: &str, style: &Style, object: &Object<'_>, key: &str, value: &Value) -> String {
    let (start, end) = (object.start() + 1, object.end() - 1);
    let comments = text[start..end].trim_end();
    if comments.is_empty() && style.layout != Layout::Lines {
        return [&text[..start], &style.on_one_line(key, value), &text[end..]].concat();
    }
    let outer = line_indent(text, object.start());
    let inner = format!("{outer}{}", style.unit);
    let property = style.on_lines(key, value, &inner);
    [&text[..start], comments, style.newline, &inner, &property, style.newline, outer, &text[end..]].concat()
}

/// Another value for a property, on as many lines as before.
pub fn replace(text: &str, style: &Style, property: &ObjectProp<'_>, value: &Value) -> String {
    let (start, end) = (property.value.start(), property.value.end());
    let new = if text[start..end].contains('\n') {
        render::on_lines(value, &style.unit, line_indent(text, property.start()), style.newline)
    } else if style.layout == Layout::Compact {
        render::without_spaces(value)
    } else {
        render::on_one_line(value)
    };
    [&text[..start], &new, &text[end..]].concat()
}

/// Without one property, its comma, and what is left of its lines.
pub fn remove(text: &str, object: &Object<'_>, index: usize) -> String {
    let property = &object.properties[index];
    let (start, end) = (property.start(), property.end());
    let next = behind_trivia(text, end);
    let has_comma = text[next..].starts_with(',');
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let is_first_of_line = line_start > object.start() && text[line_start..start].trim().is_empty();
    let behind = behind_comments_of_line(text, if has_comma { next + 1 } else { end });
    let line_end = behind_line_end(text, behind).filter(|_| is_first_of_line);
    let (from, to) = match line_end {
        Some(line_end) => (line_start, line_end),
        None if has_comma => (start, behind_blanks(text, next + 1)),
        None => (start, end),
    };
    let mut before = text[..from].to_owned();
    if !has_comma && let Some(previous) = index.checked_sub(1).map(|index| &object.properties[index]) {
        let comma = behind_trivia(text, previous.end());
        if line_end.is_none() && text[comma + 1..start].trim().is_empty() {
            before.truncate(comma);
            before.truncate(before.trim_end_matches([' ', '\t']).len());
        } else {
            before.remove(comma);
        }
    }
    let after = &text[to..];
    let inside = &text[to..object.end() - 1];
    if before[object.start() + 1..].trim().is_empty() && inside.trim().is_empty() {
        before.truncate(object.start() + 1);
        return before + &text[object.end() - 1..];
    }
    before + after
}

/// Whether properties have lines of their own.
fn is_spread(text: &str, object: &Object<'_>) -> bool {
    object.properties.first().is_some_and(|first| text[object.start()..first.start()].contains('\n'))
}

fn line_indent(text: &str, position: usize) -> &str {
    let start = text[..position].rfind('\n').map_or(0, |newline| newline + 1);
    let line = &text[start..position];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

fn behind_blanks(text: &str, position: usize) -> usize {
    text.len() - text[position..].trim_start_matches([' ', '\t']).len()
}

/// The next thing that means something.
fn behind_trivia(text: &str, mut position: usize) -> usize {
    loop {
        let rest = &text[position..];
        let blank = rest.len() - rest.trim_start().len();
        let comment = comment_at(&rest[blank..]);
        if blank + comment == 0 {
            return position;
        }
        position += blank + comment;
    }
}

/// The end of the comments that follow on the same line and end there.
fn behind_comments_of_line(text: &str, mut position: usize) -> usize {
    loop {
        let blanks = behind_blanks(text, position);
        let comment = comment_at(&text[blanks..]);
        if comment == 0 || text[blanks..blanks + comment].contains('\n') {
            return position;
        }
        position = blanks + comment;
    }
}

/// Behind the line break, if nothing stands before it.
fn behind_line_end(text: &str, position: usize) -> Option<usize> {
    let blanks = behind_blanks(text, position);
    let rest = &text[blanks..];
    let length = if rest.starts_with("\r\n") { 2 } else { usize::from(rest.starts_with('\n')) };
    (length > 0).then_some(blanks + length)
}

/// The length of the comment that a text begins with.
fn comment_at(text: &str) -> usize {
    if text.starts_with("//") {
        let line = text.split('\n').next().unwrap_or(text);
        line.trim_end_matches('\r').len()
    } else if text.starts_with("/*") {
        text.find("*/").map_or(text.len(), |end| end + 2)
    } else {
        0
    }
}
