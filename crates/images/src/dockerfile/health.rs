//! `HEALTHCHECK`, in the form in which an image's configuration has it.

use serde_json::{Map, Value, json};

use super::Command;

/// The flags, which are times but for one, and what they are called in the configuration.
const TIMES: [(&str, &str); 4] = [
    ("interval", "Interval"),
    ("timeout", "Timeout"),
    ("start-period", "StartPeriod"),
    ("start-interval", "StartInterval"),
];

/// The flags that there are.
pub const FLAGS: [&str; 5] = ["interval", "timeout", "start-period", "start-interval", "retries"];

/// The error is a sentence without the line.
pub fn check(flags: &[(String, String)], command: Option<&Command>) -> Result<Value, String> {
    let test = match command {
        None => json!(["NONE"]),
        Some(Command::Shell(line)) => json!(["CMD-SHELL", line]),
        Some(Command::Exec(words)) => {
            Value::Array(["CMD"].into_iter().chain(words.iter().map(String::as_str)).map(Value::from).collect())
        }
    };
    let mut check = Map::from_iter([("Test".to_owned(), test)]);
    for (name, value) in flags {
        match TIMES.iter().find(|(flag, _)| flag == name) {
            Some((_, field)) => {
                let time =
                    nanoseconds(value).ok_or_else(|| format!("has --{name}={value}, which is no time such as 30s"))?;
                check.insert((*field).to_owned(), time.into());
            }
            None => {
                let count: u32 = value.parse().map_err(|_| format!("has --{name}={value}, which is no number"))?;
                check.insert("Retries".to_owned(), count.into());
            }
        }
    }
    Ok(Value::Object(check))
}

/// `1m30s`, as Go writes it.
fn nanoseconds(text: &str) -> Option<u64> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|one: char| !one.is_ascii_digit() && one != '.')?;
        let unit_end = rest[digits..].find(|one: char| one.is_ascii_digit()).map_or(rest.len(), |end| digits + end);
        let unit = match &rest[digits..unit_end] {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += rest[..digits].parse::<f64>().ok()? * unit;
        rest = &rest[unit_end..];
    }
    (!text.is_empty() && (0.0..9e18).contains(&total)).then_some(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_go() {
        for (text, seconds) in [("30s", 30.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("250ms", 0.25), ("0s", 0.0)] {
            assert_eq!(nanoseconds(text), Some((seconds * 1e9) as u64), "{text}");
        }
        for text in ["", "s", "30", "1x", "-1s", "1m 30s", "9999999999h"] {
            assert_eq!(nanoseconds(text), None, "{text:?}");
        }
    }
}
