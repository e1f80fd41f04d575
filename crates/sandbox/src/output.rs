//! Output that is bounded while it is read: the head and the tail are kept, the middle is counted and dropped.

use std::collections::VecDeque;

/// How much of one stream is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutputCaps {
    /// Bytes kept from the start: the first error is usually the cause.
    pub head: usize,
    /// Bytes kept from the end: the last line is usually the result.
    pub tail: usize,
}

impl OutputCaps {
    /// Not more at either end than there.
    #[must_use]
    pub fn at_most(self, most: Self) -> Self {
        Self { head: self.head.min(most.head), tail: self.tail.min(most.tail) }
    }
}

impl Default for OutputCaps {
    fn default() -> Self {
        Self { head: 64 * 1024, tail: 64 * 1024 }
    }
}

/// What was kept of a stream. Its memory is bounded by its caps, whatever the program writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CappedOutput {
    caps: OutputCaps,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    /// Ends of lines among them. `None` where nobody will ask for numbers of lines: to look at each byte of a flood costs
    /// more than all else that is done with it.
    line_ends: Option<u64>,
}

impl CappedOutput {
    pub fn new(caps: OutputCaps) -> Self {
        Self { caps, head: Vec::new(), tail: VecDeque::new(), total: 0, line_ends: None }
    }

    /// One that knows the numbers of its lines.
    pub fn with_lines(caps: OutputCaps) -> Self {
        Self { line_ends: Some(0), ..Self::new(caps) }
    }

    /// What was kept once, as it was.
    pub(crate) fn restored(caps: OutputCaps, head: Vec<u8>, tail: Vec<u8>, total: u64, line_ends: u64) -> Self {
        Self { caps, head, tail: tail.into(), total, line_ends: Some(line_ends) }
    }

    pub(crate) fn caps(&self) -> OutputCaps {
        self.caps
    }

    /// Among all that the program wrote, where they are counted.
    pub(crate) fn line_ends(&self) -> u64 {
        self.line_ends.unwrap_or_default()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if let Some(ends) = &mut self.line_ends {
            *ends += ends_of_lines(bytes);
        }
        let room = self.caps.head - self.head.len();
        let (to_head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(to_head);
        let kept = &rest[rest.len().saturating_sub(self.caps.tail)..];
        let excess = (self.tail.len() + kept.len()).saturating_sub(self.caps.tail);
        self.tail.drain(..excess);
        self.tail.extend(kept);
    }

    /// Bytes that the program wrote, kept or not.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes between head and tail that were not kept.
    pub fn dropped(&self) -> u64 {
        self.total - self.head.len() as u64 - self.tail.len() as u64
    }

    pub fn is_truncated(&self) -> bool {
        self.dropped() > 0
    }

    pub fn head(&self) -> &[u8] {
        &self.head
    }

    pub fn tail(&self) -> Vec<u8> {
        self.tail.iter().copied().collect()
    }

    /// All that was kept, without a mark where bytes are missing.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        bytes.extend(&self.tail);
        bytes
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// At most `most` of the kept bytes from `offset` on, and how many just before them were not kept.
    pub fn part(&self, offset: u64, most: usize) -> (u64, Vec<u8>) {
        if let Some(head) = usize::try_from(offset).ok().and_then(|offset| self.head.get(offset..))
            && !head.is_empty()
        {
            return (0, head[..head.len().min(most)].to_vec());
        }
        let tail_offset = self.total - self.tail.len() as u64;
        let start = offset.clamp(tail_offset, self.total);
        let bytes = self.tail.range((start - tail_offset) as usize..).take(most).copied().collect();
        (start.saturating_sub(offset), bytes)
    }

    /// The lines that are kept, each with its number, counted from 1 over all that the program wrote, or over those that are
    /// kept where no numbers were asked for. Where bytes are missing,
    /// the lines on both sides of the gap are kept in part. The last line may go on.
    pub fn lines(&self) -> Vec<(u64, Vec<u8>)> {
        if !self.is_truncated() {
            return numbered(1, &self.bytes());
        }
        let tail = self.tail();
        let ends = ends_of_lines(&tail);
        let all = self.line_ends.unwrap_or_else(|| ends_of_lines(&self.head) + ends);
        let mut lines = numbered(1, &self.head);
        lines.extend(numbered(all - ends + 1, &tail));
        lines
    }

    /// Give back memory that was reserved for output that never came.
    pub fn shrink(&mut self) {
        self.head.shrink_to_fit();
        self.tail.shrink_to_fit();
    }

    /// For reading: bytes that are not UTF-8 are replaced, and missing ones are named.
    pub fn to_text(&self) -> String {
        if !self.is_truncated() {
            return String::from_utf8_lossy(&self.bytes()).into_owned();
        }
        format!(
            "{}\n[… {} bytes left out …]\n{}",
            String::from_utf8_lossy(&self.head),
            self.dropped(),
            String::from_utf8_lossy(&self.tail())
        )
    }
}

fn ends_of_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

fn numbered(first: u64, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let bytes = bytes.strip_suffix(b"\n").map_or((bytes, bytes.is_empty()), |bytes| (bytes, false));
    match bytes {
        (_, true) => Vec::new(),
        (bytes, false) => (first..).zip(bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec)).collect(),
    }
}

/// Turns pieces of a stream into text, although a piece may end in the middle of a character.
#[derive(Clone, Debug, Default)]
pub struct TextPieces {
    /// The start of a character whose rest has not come.
    pending: Vec<u8>,
}

impl TextPieces {
    /// The text that is whole by now. Bytes that are not UTF-8 are replaced.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let unfinished = match self.pending.utf8_chunks().last() {
            Some(last) if is_start_of_a_character(last.invalid()) => last.invalid().len(),
            Some(_) | None => 0,
        };
        let rest = self.pending.split_off(self.pending.len() - unfinished);
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending = rest;
        text
    }

    /// What is left when no more comes.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Whether these bytes, which are the last and not valid by themselves, could become a character with more to come.
fn is_start_of_a_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capped(head: usize, tail: usize, chunks: &[&[u8]]) -> CappedOutput {
        let mut output = CappedOutput::new(OutputCaps { head, tail });
        for chunk in chunks {
            output.push(chunk);
        }
        output
    }

    #[test]
    fn small_output_is_whole() {
        let output = capped(4, 4, &[b"ab", b"cdef"]);
        assert_eq!(output.to_text(), "abcdef");
        assert_eq!(output.dropped(), 0);
    }

    #[test]
    fn the_middle_is_dropped_and_counted_however_it_is_chunked() {
        let text: Vec<u8> = (0..=255).collect();
        for size in 1..=text.len() {
            let output = capped(10, 7, &text.chunks(size).collect::<Vec<_>>());
            assert_eq!(output.head(), &text[..10]);
            assert_eq!(output.tail(), &text[text.len() - 7..]);
            assert_eq!(output.dropped(), 256 - 17);
            assert_eq!(output.total(), 256);
        }
    }

    #[test]
    fn parts_put_together_are_the_output_without_its_gap() {
        let text: Vec<u8> = (0..=255).collect();
        for (head, tail) in [(10, 7), (0, 7), (10, 0), (300, 0), (0, 300), (128, 128)] {
            for most in [1, 3, 1000] {
                let output = capped(head, tail, &[&text]);
                let (mut offset, mut all, mut gaps) = (0, Vec::new(), 0);
                loop {
                    let (skipped, bytes) = output.part(offset, most);
                    if skipped == 0 && bytes.is_empty() {
                        break;
                    }
                    offset += skipped + bytes.len() as u64;
                    gaps += skipped;
                    all.extend(bytes);
                }
                assert_eq!((all, gaps, offset), (output.bytes(), output.dropped(), 256), "{head} {tail} {most}");
            }
        }
    }

    #[test]
    fn text_in_pieces_is_the_text_however_it_is_cut() {
        let text = "aé€😀 \u{301}x\n".as_bytes();
        let broken = [b"\xff a\xe2\x82 b\xf0\x9f".as_slice(), text, b"\xe2"].concat();
        for bytes in [text, &broken] {
            for size in 1..=bytes.len() {
                let mut pieces = TextPieces::default();
                let mut joined: String = bytes.chunks(size).map(|piece| pieces.push(piece)).collect();
                assert!(pieces.pending.len() < 4);
                joined.push_str(&pieces.finish());
                assert_eq!(joined, String::from_utf8_lossy(bytes), "in pieces of {size}");
            }
        }
    }

    #[test]
    fn caps_of_zero_keep_nothing() {
        let output = capped(0, 0, &[b"abc"]);
        assert_eq!((output.bytes().len(), output.dropped()), (0, 3));
    }

    #[test]
    fn lines_have_the_numbers_that_they_had() {
        let numbers = |output: &CappedOutput| -> Vec<(u64, String)> {
            output.lines().into_iter().map(|(number, line)| (number, String::from_utf8(line).unwrap())).collect()
        };
        let mut output = CappedOutput::with_lines(OutputCaps { head: 8, tail: 8 });
        assert_eq!(numbers(&output), []);
        output.push(b"a\n\nb");
        assert_eq!(numbers(&output), [(1, "a".to_owned()), (2, String::new()), (3, "b".to_owned())]);
        output.push(b"\n");
        assert_eq!(numbers(&output).len(), 3, "an end of a line begins no other");
        for number in 4..=100 {
            output.push(format!("{number}\n").as_bytes());
        }
        let kept = numbers(&output);
        assert_eq!(kept.first(), Some(&(1, "a".to_owned())));
        assert_eq!(kept.last(), Some(&(100, "100".to_owned())));
        assert!(kept.contains(&(99, "99".to_owned())), "{kept:?}");
    }
}
