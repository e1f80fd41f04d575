//! Values as Python writes them, because its error messages show what was sent.

use serde_json::{Number, Value};

/// More is cut in the middle.
const SHOWN: usize = 50;

/// A value and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    pub shown: String,
    pub kind: &'static str,
}

impl Python {
    pub fn of(value: &Value) -> Self {
        let kind = match value {
            Value::Null => "NoneType",
            Value::Bool(_) => "bool",
            Value::Number(number) if number.is_f64() => "float",
            Value::Number(_) => "int",
            Value::String(_) => "str",
            Value::Array(_) => "list",
            Value::Object(_) => "dict",
        };
        let mut whole = String::new();
        write(&mut whole, value);
        Self { shown: cut(&whole), kind }
    }
}

fn cut(whole: &str) -> String {
    if whole.len() <= SHOWN {
        return whole.to_owned();
    }
    let half = SHOWN / 2;
    let start = (0..=half).rev().find(|at| whole.is_char_boundary(*at)).unwrap_or(0);
    let end = (whole.len() - half + 1..=whole.len()).find(|at| whole.is_char_boundary(*at)).unwrap_or(whole.len());
    format!("{}...{}", &whole[..start], &whole[end..])
}

fn write(into: &mut String, value: &Value) {
    match value {
        Value::Null => into.push_str("None"),
        Value::Bool(true) => into.push_str("True"),
        Value::Bool(false) => into.push_str("False"),
        Value::Number(number) => into.push_str(&number_text(number)),
        Value::String(text) => write_text(into, text),
        Value::Array(items) => {
            into.push('[');
            for (index, item) in items.iter().enumerate() {
                into.push_str(if index == 0 { "" } else { ", " });
                write(into, item);
            }
            into.push(']');
        }
        Value::Object(members) => {
            into.push('{');
            for (index, (name, member)) in members.iter().enumerate() {
                into.push_str(if index == 0 { "" } else { ", " });
                write_text(into, name);
                into.push_str(": ");
                write(into, member);
            }
            into.push('}');
        }
    }
}

/// Exponents have a sign and two digits.
fn number_text(number: &Number) -> String {
    let text = match number.as_f64() {
        Some(value) if number.is_f64() => format!("{value:?}"),
        Some(_) | None => number.to_string(),
    };
    match text.split_once('e') {
        None => text,
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
    }
}

fn write_text(into: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    into.push(quote);
    for character in text.chars() {
        match character {
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            ' ' => into.push(' '),
            character if character == quote => {
                into.push('\\');
                into.push(character);
            }
            character if character.is_control() || character.is_whitespace() => match u32::from(character) {
                code @ ..0x100 => into.push_str(&format!("\\x{code:02x}")),
                code => into.push_str(&format!("\\u{code:04x}")),
            },
            character => into.push(character),
        }
    }
    into.push(quote);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_python_does() {
        for (value, shown, kind) in [
            (
                json!({ "a": [true, null, 1.5, "it's", "a\"b\n"] }),
                "{'a': [True, None, 1.5, \"it's\", 'a\"b\\n']}",
                "dict",
            ),
            (json!(["both ' and \"", "\u{2028}😀\u{7f}"]), "['both \\' and \"', '\\u2028😀\\x7f']", "list"),
            (json!([1e30, 1e-7, 5.0, -0.0, -3]), "[1e+30, 1e-07, 5.0, -0.0, -3]", "list"),
            (
                json!({ "persist": true, "x": "y".repeat(100) }),
                "{'persist': True, 'x': 'y...yyyyyyyyyyyyyyyyyyyyyy'}",
                "dict",
            ),
            (json!({ "persist": true, "x": "ä".repeat(40) }), "{'persist': True, 'x': '...äääääääääää'}", "dict"),
        ] {
            assert_eq!(Python::of(&value), Python { shown: shown.to_owned(), kind });
        }
    }
}
