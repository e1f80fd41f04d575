//! Which part of a file is wanted, and whether it is still the file that the asker knows.

use http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue};
use sandbox::{ByteRange, FileStat};

/// Tells one state of a file from the next: a program cannot set the time of the last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    pub fn of(stat: &FileStat) -> Self {
        Self(format!("\"{:x}-{:x}\"", stat.changed_ns, stat.bytes))
    }

    pub fn value(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(&self.0).ok()
    }

    /// Whether it is in the list of a header, in which weak ones mean the same here.
    fn is_among(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        let listed =
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
        listed.map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.0)
    }
}

/// What to answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Whole,
    /// `end` is not part of it.
    Part {
        start: u64,
        end: u64,
    },
    /// There is nothing at that place.
    Beyond,
    /// The asker has this already.
    NotModified,
    /// It is not the file that the asker means.
    Another,
}

impl Wanted {
    pub fn of(headers: &HeaderMap, tag: &Tag, length: u64) -> Self {
        if headers.contains_key(IF_MATCH) && !tag.is_among(headers, &IF_MATCH) {
            return Self::Another;
        }
        if tag.is_among(headers, &IF_NONE_MATCH) {
            return Self::NotModified;
        }
        // A time instead of a tag is not looked at: two states may have the same second.
        let is_same = headers.get(IF_RANGE).is_none_or(|value| value.as_bytes() == tag.0.as_bytes());
        let mut ranges = headers.get_all(RANGE).iter();
        match (ranges.next().and_then(|range| range.to_str().ok()), ranges.next()) {
            (Some(range), None) if is_same => Self::range(range, length),
            (_, _) => Self::Whole,
        }
    }

    /// Several at once, and what is no range, are answered with the whole.
    fn range(range: &str, length: u64) -> Self {
        let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
            return Self::Whole;
        };
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
        let (start, end) = match (number(first), number(last)) {
            (Some(start), Some(last)) if start <= last => (start, last.saturating_add(1).min(length)),
            (Some(start), None) if last.is_empty() => (start, length),
            (None, Some(count)) if first.is_empty() => (length.saturating_sub(count), length),
            (_, _) => return Self::Whole,
        };
        if start < end { Self::Part { start, end } } else { Self::Beyond }
    }
}

/// What of the file to read for an answer of so many bytes.
pub fn bytes(start: u64, end: u64) -> ByteRange {
    ByteRange { offset: start, length: Some(end - start) }
}

#[cfg(test)]
mod tests {
    use sandbox::FileKind;

    use super::*;

    fn tag() -> Tag {
        Tag::of(&FileStat { kind: FileKind::Regular, bytes: 10, mode: 0o644, modified_ns: 0, changed_ns: 255 })
    }

    fn wanted(headers: &[(HeaderName, &'static str)]) -> Wanted {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        Wanted::of(&headers, &tag(), 10)
    }

    #[test]
    fn parts_of_a_file_are_found() {
        let asked = |range| wanted(&[(RANGE, range)]);
        for whole in
            ["", "bytes", "bytes=", "bytes=-", "bytes=5-2", "bytes=a-b", "lines=1-2", "bytes=1-2,4-5", "bytes=+1-2"]
        {
            assert_eq!(asked(whole), Wanted::Whole, "{whole:?}");
        }
        assert_eq!(asked("bytes=0-0"), Wanted::Part { start: 0, end: 1 });
        assert_eq!(asked("bytes=4-"), Wanted::Part { start: 4, end: 10 });
        assert_eq!(asked("bytes=-4"), Wanted::Part { start: 6, end: 10 });
        assert_eq!(asked("bytes=-40"), Wanted::Part { start: 0, end: 10 });
        assert_eq!(asked("bytes=8-18446744073709551615"), Wanted::Part { start: 8, end: 10 });
        for beyond in ["bytes=10-", "bytes=10-11", "bytes=-0"] {
            assert_eq!(asked(beyond), Wanted::Beyond, "{beyond:?}");
        }
    }

    #[test]
    fn a_part_is_given_only_of_the_file_that_is_meant() {
        let part = Wanted::Part { start: 0, end: 1 };
        let range = (RANGE, "bytes=0-0");
        assert_eq!(tag().0, "\"ff-a\"");
        assert_eq!(wanted(&[range.clone(), (IF_RANGE, "\"ff-a\"")]), part);
        for other in ["\"fe-a\"", "W/\"ff-a\"", "Tue, 17 Nov 2026 15:00:00 GMT"] {
            assert_eq!(wanted(&[range.clone(), (IF_RANGE, other)]), Wanted::Whole, "{other}");
        }
        assert_eq!(wanted(&[range.clone(), range]), Wanted::Whole, "two mean two things");
    }

    #[test]
    fn conditions_are_kept() {
        for known in ["\"ff-a\"", "W/\"ff-a\"", "*", "\"x\", \"ff-a\""] {
            assert_eq!(wanted(&[(IF_NONE_MATCH, known)]), Wanted::NotModified, "{known}");
        }
        assert_eq!(wanted(&[(IF_NONE_MATCH, "\"x\"")]), Wanted::Whole);
        assert_eq!(wanted(&[(IF_MATCH, "\"x\"")]), Wanted::Another);
        assert_eq!(wanted(&[(IF_MATCH, "\"ff-a\"")]), Wanted::Whole);
    }
}
