//! A byte stream cut into lines, each of them bounded.

/// One line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Vec<u8>),
    /// More than is taken; its bytes were let go as they came.
    TooLong,
}

/// Holds at most one unfinished line, and never more than `most` bytes of it.
#[derive(Debug)]
pub struct Cutter {
    begun: Vec<u8>,
    too_long: bool,
    most: usize,
}

impl Cutter {
    pub fn new(most: usize) -> Self {
        Self { begun: Vec::new(), too_long: false, most }
    }

    /// The lines that `bytes` complete. Blank ones are no lines.
    pub fn push<'a>(&'a mut self, mut bytes: &'a [u8]) -> impl Iterator<Item = Line> + 'a {
        std::iter::from_fn(move || {
            while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
                let (last, rest) = bytes.split_at(end);
                bytes = &rest[1..];
                self.take(last);
                if let Some(line) = self.finish() {
                    return Some(line);
                }
            }
            self.take(std::mem::take(&mut bytes));
            None
        })
    }

    /// The line that is begun, as if its end had come.
    pub fn finish(&mut self) -> Option<Line> {
        if std::mem::take(&mut self.too_long) {
            return Some(Line::TooLong);
        }
        let line = std::mem::take(&mut self.begun);
        (!line.iter().all(u8::is_ascii_whitespace)).then_some(Line::Whole(line))
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.too_long || self.begun.len() + bytes.len() > self.most {
            self.too_long = true;
            self.begun = Vec::new();
        } else {
            self.begun.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(most: usize, chunks: &[&str]) -> Vec<Line> {
        let mut cutter = Cutter::new(most);
        let mut lines: Vec<Line> = Vec::new();
        for chunk in chunks {
            lines.extend(cutter.push(chunk.as_bytes()));
        }
        lines.extend(cutter.finish());
        lines
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_come_whole_however_they_arrive() {
        assert_eq!(cut(9, &["one\ntwo\n"]), [whole("one"), whole("two")]);
        assert_eq!(cut(9, &["o", "ne\nt", "wo"]), [whole("one"), whole("two")]);
        assert_eq!(cut(9, &["one\r\n", "\n", " \r\n", "two"]), [whole("one\r"), whole("two")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_let_go_and_the_next_one_is_read() {
        assert_eq!(cut(3, &["four\nok\n"]), [Line::TooLong, whole("ok")]);
        assert_eq!(cut(3, &["fo", "ur", "teen", "\nok"]), [Line::TooLong, whole("ok")]);
        assert_eq!(cut(3, &["six", "\nfour"]), [whole("six"), Line::TooLong]);
    }

    #[test]
    fn nothing_is_kept_of_a_line_that_is_too_long() {
        let mut cutter = Cutter::new(1000);
        for _ in 0..1000 {
            assert_eq!(cutter.push(&[b'x'; 999]).count(), 0);
        }
        assert!(cutter.begun.capacity() == 0);
    }
}
