//! A byte stream cut into lines, each of them bounded.

/// One line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Vec<u8>),
    /// More than is taken; its bytes were let go as they came, but for its two ends.
    TooLong {
        start: Vec<u8>,
        end: Vec<u8>,
    },
}

/// What is kept of each end of a line that is too long: enough to see whose it is.
const END: usize = 2048;

/// Holds at most one unfinished line, and never more than `most` bytes of it.
#[derive(Debug)]
pub struct Cutter {
    begun: Vec<u8>,
    /// The start of a line that is too long; what is begun is its end then.
    start: Option<Vec<u8>>,
    most: usize,
}

impl Cutter {
    pub fn new(most: usize) -> Self {
        Self { begun: Vec::new(), start: None, most }
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
        let line = std::mem::take(&mut self.begun);
        if let Some(start) = self.start.take() {
            return Some(Line::TooLong { start, end: line });
        }
        (!line.iter().all(u8::is_ascii_whitespace)).then_some(Line::Whole(line))
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.start.is_none() && self.begun.len() + bytes.len() > self.most {
            let missing = END.saturating_sub(self.begun.len()).min(bytes.len());
            let kept = &self.begun[..self.begun.len().min(END)];
            self.start = Some([kept, &bytes[..missing]].concat());
            self.keep_end();
        }
        match self.start {
            None => self.begun.extend_from_slice(bytes),
            Some(_) => {
                self.begun.extend_from_slice(&bytes[bytes.len().saturating_sub(END)..]);
                self.keep_end();
            }
        }
    }

    /// In a buffer of its own: that of the line may be large.
    fn keep_end(&mut self) {
        self.begun = self.begun[self.begun.len().saturating_sub(END)..].to_vec();
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

    fn too_long(start: &str, end: &str) -> Line {
        Line::TooLong { start: start.into(), end: end.into() }
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
        assert_eq!(cut(3, &["four\nok\n"]), [too_long("four", "four"), whole("ok")]);
        assert_eq!(cut(3, &["fo", "ur", "teen", "\nok"]), [too_long("four", "fourteen"), whole("ok")]);
        assert_eq!(cut(3, &["six", "\nfour"]), [whole("six"), too_long("four", "four")]);
    }

    #[test]
    fn only_the_ends_are_kept_of_a_line_that_is_too_long() {
        let mut cutter = Cutter::new(1000);
        for _ in 0..1000 {
            assert_eq!(cutter.push(&[b'x'; 999]).count(), 0);
        }
        assert!(cutter.begun.capacity() <= END);
        let Some(Line::TooLong { start, end }) = cutter.finish() else { panic!("it is too long") };
        assert_eq!((start.len(), end.len()), (END.min(1998), END));
    }
}
