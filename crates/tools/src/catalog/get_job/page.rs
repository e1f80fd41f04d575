//! Parts of a job's output: a page of it, or the lines that have a text in them.

use std::fmt::Write;

use sandbox::{CappedOutput, Error, JobOutput, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text;

/// Encoded bytes of one page, or of all lines that were found.
const MOST: usize = 24 * 1024;
const MOST_LINES: u64 = 2000;
const USUAL_LINES: u64 = 200;
const MOST_BYTES: u64 = 24 * 1024;

/// Lines that are shown of those that were found, and how much of each.
const MOST_FOUND: usize = 100;
const LINE: usize = 400;

/// What is looked for.
const LONGEST_SEARCH: usize = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Stream {
    #[default]
    Stdout,
    Stderr,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Unit {
    #[default]
    Lines,
    Bytes,
}

/// Which part is wanted.
#[derive(Debug, Default)]
pub struct Wish {
    pub stream: Option<Stream>,
    pub unit: Option<Unit>,
    pub offset: Option<u64>,
    pub limit: Option<u64>,
    pub search: Option<String>,
}

impl Wish {
    pub fn is_any(&self) -> bool {
        self.stream.is_some()
            || self.unit.is_some()
            || self.offset.is_some()
            || self.limit.is_some()
            || self.search.is_some()
    }
}

/// A part of what is kept of one stream.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Page {
    stream: Stream,
    unit: Unit,
    /// Where it begins: a line, counted from 1, or a byte, counted from 0.
    offset: u64,
    /// Where the next one begins; absent when there is no more yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    /// Bytes that the program has written to the stream.
    total_bytes: u64,
    /// Bytes from the middle of the stream that were too many to keep: they are in no page, and are not searched.
    left_out_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// With search: how many lines have it, from the offset on.
    #[serde(skip_serializing_if = "Option::is_none")]
    matches: Option<u64>,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    lines: Vec<Found>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Found {
    line: u64,
    text: String,
}

/// The part, and the same for reading.
pub fn cut(output: &JobOutput, wish: Wish) -> Result<(Page, String)> {
    let stream = wish.stream.unwrap_or_default();
    let kept = match stream {
        Stream::Stdout => &output.stdout,
        Stream::Stderr => &output.stderr,
    };
    let mut page = Page {
        stream,
        unit: wish.unit.unwrap_or_default(),
        offset: wish.offset.unwrap_or(0),
        next_offset: None,
        total_bytes: kept.total(),
        left_out_bytes: kept.dropped(),
        text: None,
        matches: None,
        lines: Vec::new(),
    };
    let shown = match (wish.search, page.unit) {
        (Some(search), Unit::Lines) => page.search(kept, &search, wish.limit)?,
        (Some(_), Unit::Bytes) => {
            return Err(Error::invalid_input("a search finds lines").with_hint("leave unit out with search"));
        }
        (None, Unit::Lines) => page.lines_of(kept, wish.limit),
        (None, Unit::Bytes) => page.bytes_of(kept, wish.limit),
    };
    Ok((page, shown))
}

impl Page {
    fn lines_of(&mut self, kept: &CappedOutput, limit: Option<u64>) -> String {
        self.offset = self.offset.max(1);
        let most = limit.unwrap_or(USUAL_LINES).clamp(1, MOST_LINES);
        let (mut shown, mut room, mut count, mut last) = (String::new(), MOST, 0, self.offset - 1);
        let mut lines = kept.lines().into_iter().skip_while(|(number, _)| *number < self.offset).peekable();
        while let Some((number, line)) = lines.next_if(|_| count < most && room > 0) {
            if number > last + 1 {
                let _ = writeln!(shown, "[… {} bytes left out …]", self.left_out_bytes);
            }
            let line = String::from_utf8_lossy(&line).into_owned();
            let end = text::encoded_prefix(&line, room);
            shown += &line[..end];
            shown.push('\n');
            // Of a line that is longer than a page, the rest is read by bytes.
            room = if end < line.len() { 0 } else { room.saturating_sub(text::encoded(&line) + 2) };
            (count, last) = (count + 1, number);
        }
        // A line that lost its middle is there twice.
        self.next_offset = lines.map(|(number, _)| number).find(|number| *number > last);
        self.text = Some(shown.clone());
        shown + &self.closing()
    }

    fn bytes_of(&mut self, kept: &CappedOutput, limit: Option<u64>) -> String {
        let most = limit.unwrap_or(MOST_BYTES).clamp(1, MOST_BYTES) as usize;
        let (skipped, bytes) = kept.part(self.offset, most);
        self.offset += skipped;
        // A character that is not whole is the next page's, unless it is never going to be.
        let mut end = bytes.len();
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
            && error.valid_up_to() > 0
        {
            end = error.valid_up_to();
        }
        let whole = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let fitting = text::encoded_prefix(&whole, MOST);
        let taken = if fitting < whole.len() && std::str::from_utf8(&bytes[..end]).is_ok() { fitting } else { end };
        let next = self.offset + taken as u64;
        self.next_offset = (next < self.total_bytes).then_some(next);
        let shown = whole[..fitting].to_owned();
        self.text = Some(shown.clone());
        shown + &self.closing()
    }

    fn search(&mut self, kept: &CappedOutput, search: &str, limit: Option<u64>) -> Result<String> {
        if search.is_empty() || search.len() > LONGEST_SEARCH {
            return Err(Error::invalid_input(format!("a search is for 1 to {LONGEST_SEARCH} bytes of text")));
        }
        self.offset = self.offset.max(1);
        let most = limit.map_or(MOST_FOUND, |limit| usize::try_from(limit).unwrap_or(MOST_FOUND).clamp(1, MOST_FOUND));
        let (mut found, mut room) = (0, MOST);
        for (number, line) in kept.lines().into_iter().filter(|(number, _)| *number >= self.offset) {
            let line = String::from_utf8_lossy(&line);
            if !line.contains(search) {
                continue;
            }
            found += 1;
            if self.lines.len() < most && room > 0 {
                let text = line[..text::encoded_prefix(&line, LINE.min(room))].to_owned();
                room = room.saturating_sub(text::encoded(&text) + 32);
                self.lines.push(Found { line: number, text });
            } else if self.next_offset.is_none() {
                self.next_offset = Some(number);
            }
        }
        self.matches = Some(found);
        let mut shown: String =
            self.lines.iter().map(|Found { line, text }| format!("{line}: {}\n", text::on_one_line(text))).collect();
        let _ = writeln!(shown, "[{found} lines have it]");
        Ok(shown + &self.closing())
    }

    fn closing(&self) -> String {
        match self.next_offset {
            Some(next) => format!("[more from offset {next}]\n"),
            None => String::new(),
        }
    }
}
