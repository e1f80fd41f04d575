//! Marks of a driver in the output of what it runs: found, taken out, and never believed to be more than words.
//!
//! A mark is a record separator, the token of the run, a space, some words and a line break. The token is random and new for
//! each run, so that no program prints one by accident. Code that looks for it can find it, and can then lie about its own
//! run and nothing else.

/// Longer words are no driver's.
const MOST_WORDS: usize = 120;
const SEPARATOR: u8 = 0x1e;

/// What is found in one stream of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Output(&'a [u8]),
    Mark(Mark),
    /// The beginning of a mark, and then something else.
    Broken,
}

/// What drivers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A result belongs here.
    Item(u32),
    /// There is no more of this stream.
    Done,
    /// The same, on the stream that says how the run ended.
    Ended(Ended),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub exit_code: u8,
    pub cpu_milliseconds: u32,
    pub peak_kibibytes: u32,
}

impl Mark {
    fn parse(words: &[u8]) -> Option<Self> {
        let words: Vec<&str> = str::from_utf8(words).ok()?.split(' ').collect();
        match words.as_slice() {
            ["item", number] => Some(Self::Item(number.parse().ok()?)),
            ["done"] => Some(Self::Done),
            ["done", exit_code, cpu, peak] => Some(Self::Ended(Ended {
                exit_code: exit_code.parse().ok()?,
                cpu_milliseconds: cpu.parse().ok()?,
                peak_kibibytes: peak.parse().ok()?,
            })),
            _ => None,
        }
    }
}

/// Looks for marks in one stream, as it comes.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// With the separator before and the space after it. `None` between two runs, when all is output.
    needle: Option<Vec<u8>>,
    /// What may be the beginning of a mark.
    held: Vec<u8>,
}

impl Scanner {
    pub fn begin(&mut self, token: &str) {
        self.needle = Some(format!("\u{1e}{token} ").into_bytes());
    }

    /// What is held back is output after all.
    pub fn end(&mut self) -> Vec<u8> {
        self.needle = None;
        std::mem::take(&mut self.held)
    }

    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Piece<'_>)) {
        let Some(needle) = &self.needle else { return take(Piece::Output(bytes)) };
        let joined;
        let mut rest = if self.held.is_empty() {
            bytes
        } else {
            joined = [&std::mem::take(&mut self.held), bytes].concat();
            &joined
        };
        while let Some(at) = rest.iter().position(|byte| *byte == SEPARATOR) {
            let candidate = &rest[at..];
            let common = needle.len().min(candidate.len());
            if candidate[..common] != needle[..common] {
                take(Piece::Output(&rest[..=at]));
                rest = &candidate[1..];
                continue;
            }
            if at > 0 {
                take(Piece::Output(&rest[..at]));
            }
            let words = candidate.get(needle.len()..).unwrap_or_default();
            match words.iter().take(MOST_WORDS + 1).position(|byte| *byte == b'\n') {
                Some(end) => {
                    take(Mark::parse(&words[..end]).map_or(Piece::Broken, Piece::Mark));
                    rest = &words[end + 1..];
                }
                None if words.len() > MOST_WORDS => {
                    take(Piece::Broken);
                    rest = words;
                }
                None => {
                    self.held = candidate.to_vec();
                    return;
                }
            }
        }
        if !rest.is_empty() {
            take(Piece::Output(rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    /// Everything that is found, with neighbouring output joined.
    fn scan(pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>) {
        let mut scanner = Scanner::default();
        scanner.begin(TOKEN);
        let mut found: Vec<String> = Vec::new();
        let mut text = Vec::new();
        for bytes in pieces {
            scanner.push(bytes, |piece| match piece {
                Piece::Output(bytes) => text.extend_from_slice(bytes),
                Piece::Mark(mark) => {
                    found.push(String::from_utf8_lossy(&std::mem::take(&mut text)).into_owned());
                    found.push(format!("{mark:?}"));
                }
                Piece::Broken => found.push("broken".to_owned()),
            });
        }
        text.extend(scanner.end());
        (found, text)
    }

    #[test]
    fn marks_are_found_however_they_are_cut() {
        let stream = format!("a\u{1e}b\u{1e}{TOKEN} item 1\nc\u{1e}{TOKEN} done 3 20 4096\nlater");
        let expected = scan(&[stream.as_bytes()]);
        assert_eq!(expected.0[..3], ["a\u{1e}b", "Item(1)", "c"]);
        assert!(expected.0[3].contains("exit_code: 3"), "{expected:?}");
        assert_eq!(expected.1, b"later");
        for cut in 1..stream.len() {
            let (one, other) = stream.as_bytes().split_at(cut);
            assert_eq!(scan(&[one, other]), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(scan(&bytes), expected);
    }

    #[test]
    fn another_token_is_output() {
        let stream = b"\x1effffffffffffffff done 0 0 0\n\x1e\x1e";
        assert_eq!(scan(&[stream]), (Vec::new(), stream.to_vec()));
    }

    #[test]
    fn what_only_begins_like_a_mark_is_broken() {
        for words in ["nonsense", "done 1", "done 256 0 0", "done -1 0 0", "item", "item x", &"x".repeat(1000)] {
            let (found, _) = scan(&[format!("\u{1e}{TOKEN} {words}\n").as_bytes()]);
            assert_eq!(found, ["broken"], "{words}");
        }
    }

    #[test]
    fn what_never_ends_is_not_held_for_ever() {
        let flood = format!("\u{1e}{TOKEN} {}", "x".repeat(1 << 20));
        let (found, text) = scan(&[flood.as_bytes()]);
        assert_eq!(found, ["broken"]);
        assert_eq!(text.len(), 1 << 20);
    }
}
