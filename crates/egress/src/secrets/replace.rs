//! Replaces texts in a stream, wherever it is cut into pieces.
//!
//! Work is linear in the length of the stream and memory is bounded by the longest text, whatever the stream is made of.
//!
//! How much is held back depends on the stream alone: everything after the last byte that can be in no text, up to the
//! length of the longest. To hold back only what could still become a match would be less, but then whoever chooses the
//! stream could watch what is held back, and guess a text letter by letter.

use std::fmt;
use std::sync::Arc;

use super::spelling::{Reader, Reading, Spelling};

/// Texts to look for, each with what stands in its place.
#[derive(Clone, Default)]
pub(super) struct Patterns {
    patterns: Vec<Pattern>,
    replacements: Vec<Vec<u8>>,
    /// How many bytes of a stream the longest match can take.
    longest: usize,
    has_space: bool,
    beginnings: Beginnings,
}

#[derive(Clone)]
struct Pattern {
    spelling: Spelling,
    /// For each length of a matched beginning, the longest shorter one that is matched as well.
    fallback: Vec<usize>,
    replacement: usize,
}

impl Patterns {
    /// Look for `spellings` and put `replacement` there. Its number is how [`Replacer::replaced`] names it.
    pub fn add(&mut self, spellings: Vec<Spelling>, replacement: Vec<u8>) -> usize {
        let number = self.replacements.len();
        self.replacements.push(replacement);
        for spelling in spellings.into_iter().filter(|spelling| !spelling.text.is_empty()) {
            let longest = spelling.text.len() * spelling.reading.widest();
            // A power of two, because the exact length is nobody's business.
            self.longest = self.longest.max(longest.next_power_of_two());
            self.has_space |= spelling.text.contains(&b' ');
            self.beginnings.add(&spelling);
            let fallback = fallbacks(&spelling.text);
            self.patterns.push(Pattern { spelling, fallback, replacement: number });
        }
        number
    }

    /// Whether nothing can be found in this text, by a look that costs next to nothing.
    pub fn cannot_be_in(&self, text: &[u8]) -> bool {
        let shortest = self.patterns.iter().map(|pattern| pattern.spelling.text.len()).min();
        shortest.is_none_or(|shortest| shortest > 1 && self.beginnings.none_before(text) + 1 >= text.len())
    }

    /// Whether no match goes over this byte.
    fn separates(&self, byte: u8) -> bool {
        byte < b' ' || (byte == b' ' && !self.has_space)
    }
}

/// Pairs of bytes that a match can begin with. Nearly all of a stream is passed over by a look at this.
#[derive(Clone, Default)]
struct Beginnings(Vec<u64>);

impl Beginnings {
    fn add(&mut self, spelling: &Spelling) {
        self.0.resize(1 << 10, 0);
        let stands_for = |byte: u8, index: usize| match spelling.text.get(index) {
            Some(&wanted) => spelling.fold.apply(byte) == wanted,
            None => true,
        };
        let escape = spelling.reading.escape();
        // A reader that starts in the middle of an escape would read something else, so each is read from its beginning.
        let begins = |first: &u8| Some(*first) == escape || stands_for(*first, 0);
        for first in (0..=u8::MAX).filter(begins) {
            for second in 0..=u8::MAX {
                if Some(first) == escape || stands_for(second, 1) || Some(second) == escape {
                    let (word, bit) = Self::place(first, second);
                    self.0[word] |= 1 << bit;
                }
            }
        }
    }

    fn contain(&self, first: u8, second: u8) -> bool {
        let (word, bit) = Self::place(first, second);
        self.0.get(word).is_some_and(|word| word >> bit & 1 == 1)
    }

    /// How many bytes can be passed over. The last is never: it takes two to tell.
    fn none_before(&self, piece: &[u8]) -> usize {
        let pairs = piece.windows(2).position(|pair| self.contain(pair[0], pair[1]));
        pairs.unwrap_or(piece.len().saturating_sub(1))
    }

    fn place(first: u8, second: u8) -> (usize, u32) {
        let pair = usize::from(first) << 8 | usize::from(second);
        (pair >> 6, u32::from(second) & 63)
    }
}

/// The texts are secret.
impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patterns({})", self.patterns.len())
    }
}

fn fallbacks(text: &[u8]) -> Vec<usize> {
    let mut fallback = vec![0; text.len() + 1];
    let mut length = 0;
    for end in 1..text.len() {
        while length > 0 && text[end] != text[length] {
            length = fallback[length];
        }
        if text[end] == text[length] {
            length += 1;
        }
        fallback[end + 1] = length;
    }
    fallback
}

/// One stream in the middle of being searched.
pub(super) struct Replacer {
    patterns: Arc<Patterns>,
    views: Vec<View>,
    /// Nothing is matched, not even in part.
    idle: bool,
    /// Bytes that may be part of a match, from `head` on; the first of them is at `base` in the stream.
    held: Vec<u8>,
    head: usize,
    base: u64,
    /// Behind the last byte that no match goes over.
    separated: u64,
    /// Apart from each other and in order.
    hits: Vec<Hit>,
    /// Bytes before this place belong to a match that was replaced already.
    covered: u64,
    replaced: Vec<bool>,
}

/// The stream as one reader sees it.
struct View {
    reader: Reader,
    patterns: Vec<usize>,
    /// For each of `patterns`, how much of it is matched.
    matched: Vec<usize>,
    /// Where the last bytes that were read begin, as a ring.
    starts: Vec<u64>,
    read: usize,
}

#[derive(Clone, Copy)]
struct Hit {
    start: u64,
    end: u64,
    replacement: usize,
}

impl Replacer {
    pub fn new(patterns: Arc<Patterns>) -> Self {
        let views = Reading::ALL.map(|reading| View::new(reading, &patterns));
        Self {
            idle: true,
            views: views.into_iter().filter(|view| !view.patterns.is_empty()).collect(),
            held: Vec::new(),
            head: 0,
            base: 0,
            separated: 0,
            hits: Vec::new(),
            covered: 0,
            replaced: vec![false; patterns.replacements.len()],
            patterns,
        }
    }

    /// The next piece of the stream; what can be told of it is written to `out`.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let begin = self.position();
        self.held.extend_from_slice(piece);
        let mut index = 0;
        while index < piece.len() {
            if self.idle {
                index += self.patterns.beginnings.none_before(&piece[index..]);
            }
            self.look_at(piece[index], begin + index as u64);
            index += 1;
        }
        if let Some(last) = piece.iter().rposition(|&byte| self.patterns.separates(byte)) {
            self.separated = begin + last as u64 + 1;
        }
        let told = self.position().saturating_sub(self.patterns.longest as u64).max(self.separated);
        self.tell(told, out);
    }

    /// The stream has ended.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.tell(self.position(), out);
    }

    /// The numbers of what was put in so far.
    pub fn replaced(&self) -> impl Iterator<Item = usize> {
        self.replaced.iter().enumerate().filter(|(_, replaced)| **replaced).map(|(number, _)| number)
    }

    /// All at once.
    pub fn whole(patterns: &Arc<Patterns>, text: &[u8]) -> (Vec<u8>, Self) {
        let mut replacer = Self::new(Arc::clone(patterns));
        let mut out = Vec::with_capacity(text.len());
        replacer.push(text, &mut out);
        replacer.finish(&mut out);
        (out, replacer)
    }

    fn position(&self) -> u64 {
        self.base + (self.held.len() - self.head) as u64
    }

    fn look_at(&mut self, byte: u8, position: u64) {
        let (patterns, hits) = (&self.patterns.patterns, &mut self.hits);
        for view in &mut self.views {
            view.look_at(byte, position, patterns, &mut |mut hit| {
                // Matches that overlap are one, so that no rest of either is left.
                while let Some(last) = hits.last().filter(|last| last.end > hit.start) {
                    if last.start <= hit.start {
                        (hit.start, hit.replacement) = (last.start, last.replacement);
                    }
                    hit.end = hit.end.max(last.end);
                    hits.pop();
                }
                hits.push(hit);
            });
        }
        self.idle = self.views.iter().all(View::is_idle);
    }

    /// Write what comes before `end` and forget it.
    fn tell(&mut self, end: u64, out: &mut Vec<u8>) {
        let mut from = self.base.max(self.covered);
        let ready = self.hits.iter().take_while(|hit| hit.start < end).count();
        for hit in self.hits.drain(..ready) {
            if hit.start >= self.covered {
                out.extend_from_slice(&self.held[self.head..][offset(self.base, from)..offset(self.base, hit.start)]);
                out.extend_from_slice(&self.patterns.replacements[hit.replacement]);
                self.replaced[hit.replacement] = true;
            }
            self.covered = self.covered.max(hit.end);
            from = self.covered;
        }
        if from < end {
            out.extend_from_slice(&self.held[self.head..][offset(self.base, from)..offset(self.base, end)]);
        }
        self.head += offset(self.base, end);
        self.base = end;
        // Moving the rest to the front each time would be quadratic for a stream of small pieces.
        if self.head * 2 >= self.held.len() {
            self.held.drain(..self.head);
            self.head = 0;
        }
    }
}

impl fmt::Debug for Replacer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replacer(at {})", self.base)
    }
}

impl View {
    fn new(reading: Reading, patterns: &Patterns) -> Self {
        let own = |(_, pattern): &(usize, &Pattern)| pattern.spelling.reading == reading;
        let longest = patterns.patterns.iter().map(|pattern| pattern.spelling.text.len()).max().unwrap_or(0);
        let patterns: Vec<usize> = patterns.patterns.iter().enumerate().filter(own).map(|(number, _)| number).collect();
        Self {
            reader: Reader::new(reading),
            matched: vec![0; patterns.len()],
            starts: vec![0; if patterns.is_empty() { 0 } else { longest }],
            patterns,
            read: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.reader.is_idle() && self.matched.iter().all(|&matched| matched == 0)
    }

    fn look_at(&mut self, byte: u8, position: u64, all: &[Pattern], hit: &mut impl FnMut(Hit)) {
        let Self { reader, patterns, matched, starts, read } = self;
        let ring = starts.len();
        reader.feed(byte, position, &mut |seen| {
            starts[*read % ring] = seen.start;
            *read += 1;
            for (matched, &number) in matched.iter_mut().zip(patterns.iter()) {
                let Pattern { spelling, fallback, replacement } = &all[number];
                let byte = spelling.fold.apply(seen.byte);
                while *matched > 0 && (*matched == spelling.text.len() || spelling.text[*matched] != byte) {
                    *matched = fallback[*matched];
                }
                if spelling.text[*matched] == byte {
                    *matched += 1;
                }
                if *matched == spelling.text.len() {
                    let start = starts[(*read - *matched) % ring];
                    hit(Hit { start, end: position + 1, replacement: *replacement });
                }
            }
        });
    }
}

fn offset(base: u64, position: u64) -> usize {
    usize::try_from(position - base).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "replace_tests.rs"]
mod tests;
