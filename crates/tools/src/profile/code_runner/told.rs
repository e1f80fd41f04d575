//! Results as the older server wrote them: JSON as text, with the fields of both of its generations.

use std::time::Duration;

use serde::Serialize;

use crate::content::Output;

#[derive(Debug, Serialize)]
pub struct FileObject {
    pub name: String,
    pub url: String,
}

#[derive(Debug, Serialize)]
pub struct Uploaded {
    pub success: bool,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FileObject>,
}

/// `output` and `files` were the first generation's, `stdout` and `stderr` the second's, which left out `stderr` alone when
/// it was empty.
#[derive(Debug, Serialize)]
pub struct Ran {
    pub success: bool,
    pub stdout: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    pub output: String,
    pub files: Vec<FileObject>,
}

impl Ran {
    pub fn new(success: bool, stdout: String, stderr: String, files: Vec<FileObject>) -> Self {
        let output = match (stdout.as_str(), stderr.as_str()) {
            (_, "") => stdout.clone(),
            ("", _) => stderr.clone(),
            (_, _) => format!("{stdout}\n{stderr}"),
        };
        Self { success, stdout, stderr, output, files }
    }

    pub fn failed(reason: String, files: Vec<FileObject>) -> Self {
        Self::new(false, String::new(), reason, files)
    }
}

#[derive(Debug, Serialize)]
pub struct Listed {
    pub languages: Vec<RunnerObject>,
}

#[derive(Debug, Serialize)]
pub struct RunnerObject {
    pub language: String,
    pub image: String,
}

/// With two spaces, and with what could mean something in a page escaped.
pub fn output(value: &impl Serialize) -> Output {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            // None of these stands outside of a string.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => escaped += &format!("\\u{:04x}", u32::from(character)),
            other => escaped.push(other),
        }
    }
    Output::text(escaped)
}

/// As Go writes them: `30s`, `1m30s`, `1.5s`, `250ms`.
pub fn duration(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return format!("{}ms", time.as_millis());
    }
    let (hours, minutes) = (time.as_secs() / 3600, time.as_secs() / 60 % 60);
    let seconds = (time.as_millis() % 60_000) as f64 / 1000.0;
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        (_, _) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;

    fn text(value: &impl Serialize) -> String {
        match output(value).content.as_slice() {
            [Content::Text(text)] => text.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn results_have_the_fields_of_both_generations() {
        let file = FileObject { name: "a&b".to_owned(), url: "http://x/files/1/a%26b".to_owned() };
        let ran = Ran::new(true, "<b>\n".to_owned(), "oops".to_owned(), vec![file]);
        assert_eq!(
            text(&ran),
            "{\n  \"success\": true,\n  \"stdout\": \"\\u003cb\\u003e\\n\",\n  \"stderr\": \"oops\",\n  \"output\": \
             \"\\u003cb\\u003e\\n\\noops\",\n  \"files\": [\n    {\n      \"name\": \"a\\u0026b\",\n      \"url\": \
             \"http://x/files/1/a%26b\"\n    }\n  ]\n}"
        );
        let quiet = text(&Ran::new(true, String::new(), String::new(), Vec::new()));
        assert_eq!(quiet, "{\n  \"success\": true,\n  \"stdout\": \"\",\n  \"output\": \"\",\n  \"files\": []\n}");
        assert_eq!(Ran::failed("no".to_owned(), Vec::new()).output, "no");
    }

    #[test]
    fn escapes_mean_what_they_stand_for() {
        let said = "</script>&\u{2028}\u{2029}\"\\ü";
        let read: serde_json::Value = serde_json::from_str(&text(&[said])).unwrap();
        assert_eq!(read, serde_json::json!([said]));
    }

    #[test]
    fn times_are_written_as_go_writes_them() {
        for (millis, expected) in [
            (30_000, "30s"),
            (1_500, "1.5s"),
            (250, "250ms"),
            (60_000, "1m0s"),
            (90_000, "1m30s"),
            (1_800_000, "30m0s"),
            (3_661_000, "1h1m1s"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), expected);
        }
    }
}
