//! Values as text, in the style of their surroundings.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// One thing per line; the first line is wherever it is put.
pub fn on_lines(value: &Value, unit: &str, indent: &str, newline: &str) -> String {
    // Within strings line breaks are escaped.
    written(value, PrettyFormatter::with_indent(unit.as_bytes())).replace('\n', &format!("{newline}{indent}"))
}

pub fn on_one_line(value: &Value) -> String {
    written(value, Spaced)
}

pub fn without_spaces(value: &Value) -> String {
    value.to_string()
}

fn written(value: &Value, formatter: impl Formatter) -> String {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter)).expect("memory takes what is written");
    String::from_utf8(bytes).expect("JSON is text")
}

/// `{"a": 1, "b": [2, 3]}`
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn styles_differ_in_blanks_alone() {
        let value = json!({ "a": ["x, y", 1], "b": {} });
        assert_eq!(on_one_line(&value), r#"{"a": ["x, y", 1], "b": {}}"#);
        assert_eq!(without_spaces(&value), r#"{"a":["x, y",1],"b":{}}"#);
        let lines = "{\r\n\t\t\"a\": [\r\n\t\t\t\"x, y\",\r\n\t\t\t1\r\n\t\t],\r\n\t\t\"b\": {}\r\n\t}";
        assert_eq!(on_lines(&value, "\t", "\t", "\r\n"), lines);
    }
}
