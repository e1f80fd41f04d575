//! A trail read from its end, a page at a time, while somebody writes to it.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sandbox::system;
use sandbox::{Error, Result};
use serde_json::Value;

use super::trail::{LONGEST_LINE, LineDigest};

/// Bytes that are looked at for one page: room for a few of the longest lines.
const WINDOW: u64 = 8 * LONGEST_LINE;

/// Some lines, the newest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub lines: Vec<Value>,
    /// Where the oldest of them begins; `None` when there is nothing before it.
    pub older: Option<u64>,
    /// Whether each has the digest of the one before it, as far as the page goes.
    pub is_unbroken: bool,
}

/// The newest lines of a trail, or those before the place where an earlier page begins.
pub fn page(path: &Path, before: Option<u64>, most: usize) -> Result<Page> {
    let unreadable = |cause: io::Error| Error::unavailable("the audit trail cannot be read").with_cause(cause);
    let mut file = system::file_of_another().read(true).open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let end = before.unwrap_or(length);
    if end > length {
        return Err(misplaced());
    }
    let start = end.saturating_sub(WINDOW);
    file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
    let mut window = Vec::new();
    file.take(end - start).read_to_end(&mut window).map_err(unreadable)?;
    // Half of a line is being written, or was when a process died.
    let whole = window.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    if before.is_some() && whole != window.len() {
        return Err(misplaced());
    }
    let skipped =
        if start == 0 { 0 } else { window.iter().position(|byte| *byte == b'\n').map_or(whole, |end| end + 1) };
    let mut begins = start + whole as u64;
    let mut lines = Vec::new();
    let mut is_unbroken = true;
    let mut expected: Option<String> = None;
    let text = window.get(skipped..whole).unwrap_or_default();
    for line in text.strip_suffix(b"\n").into_iter().flat_map(|text| text.rsplit(|byte| *byte == b'\n')).take(most) {
        begins -= line.len() as u64 + 1;
        is_unbroken &= expected.is_none_or(|expected| LineDigest::of(line).as_str() == expected);
        // What is no line of ours was put in by somebody.
        let value: Value = serde_json::from_slice(line).unwrap_or_else(|_| {
            is_unbroken = false;
            Value::Null
        });
        expected = value.get("previous").and_then(Value::as_str).map(str::to_owned);
        lines.push(value);
    }
    Ok(Page { lines, older: (begins > 0).then_some(begins), is_unbroken })
}

fn misplaced() -> Error {
    Error::invalid_input("no line of the audit trail begins there").with_hint("use `older` of an earlier answer")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::SystemTime;

    use super::super::line::Line;
    use super::super::trail::Trail;
    use super::*;

    fn trail(lines: u64) -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trail");
        let mut trail = Trail::open(&path).unwrap();
        for number in 0..lines {
            let details = vec![("count", number.into())];
            trail.add(&Line { owner: None, sandbox: None, event: "tried", details }, SystemTime::now());
        }
        trail.close();
        (directory, path)
    }

    fn numbers(page: &Page) -> Vec<u64> {
        page.lines.iter().map(|line| line["number"].as_u64().unwrap()).collect()
    }

    #[test]
    fn pages_go_back_to_the_first_line_without_a_gap() {
        let (_directory, path) = trail(9);
        let newest = page(&path, None, 4).unwrap();
        assert_eq!(numbers(&newest), [10, 9, 8, 7]);
        let older = page(&path, newest.older, 4).unwrap();
        assert_eq!(numbers(&older), [6, 5, 4, 3]);
        let oldest = page(&path, older.older, 4).unwrap();
        assert_eq!((numbers(&oldest), oldest.older), (vec![2, 1], None));
        assert!([newest, older, oldest].iter().all(|page| page.is_unbroken));
    }

    #[test]
    fn a_long_trail_is_read_in_windows() {
        let (_directory, path) = trail(5000);
        assert!(fs::metadata(&path).unwrap().len() > 2 * WINDOW / 2);
        let mut before = None;
        let mut seen = 0;
        loop {
            let page = page(&path, before, usize::MAX).unwrap();
            assert!(page.is_unbroken && !page.lines.is_empty());
            seen += page.lines.len();
            before = page.older;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, 5001);
    }

    #[test]
    fn a_line_that_was_changed_is_seen_and_a_half_one_is_not_shown() {
        let (_directory, path) = trail(3);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{{\"number\":5")).unwrap();
        let whole = page(&path, None, 10).unwrap();
        assert_eq!((numbers(&whole), whole.is_unbroken), (vec![4, 3, 2, 1], true));
        fs::write(&path, text.replacen("\"count\":1", "\"count\":7", 1)).unwrap();
        assert!(!page(&path, None, 10).unwrap().is_unbroken);
        assert!(page(&path, Some(3), 10).is_err(), "no line begins there");
        assert!(page(&path, Some(1 << 40), 10).is_err());
    }
}
