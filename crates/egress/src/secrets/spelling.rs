//! How a text is spelled on its way: as it is, percent-encoded, escaped in JSON, in hexadecimal digits, in base64.
//!
//! What is searched for is not a list of spellings, because there are too many: `%2F` and `%2f`, `\/` and `\u002f`, or any
//! mixture. The stream is read as each kind of reader would read it, and each reading is searched.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

/// A reader of escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Plain,
    Percent,
    Json,
}

impl Reading {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Percent, Self::Json];

    /// How many bytes of the stream can stand for one byte that was read.
    pub fn widest(self) -> usize {
        match self {
            Self::Plain => 1,
            Self::Percent => "%2F".len(),
            Self::Json => "\\u002f".len(),
        }
    }

    /// The byte that begins an escape.
    pub fn escape(self) -> Option<u8> {
        match self {
            Self::Plain => None,
            Self::Percent => Some(b'%'),
            Self::Json => Some(b'\\'),
        }
    }
}

/// Bytes that mean the same in some alphabet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fold {
    Exact,
    /// Digits in either case.
    Hex,
    /// The standard alphabet and the one for addresses.
    Base64,
}

impl Fold {
    pub fn apply(self, byte: u8) -> u8 {
        match self {
            Self::Exact => byte,
            Self::Hex => byte.to_ascii_lowercase(),
            Self::Base64 => match byte {
                b'-' => b'+',
                b'_' => b'/',
                other => other,
            },
        }
    }
}

/// A text to look for in one reading.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Spelling {
    pub reading: Reading,
    pub fold: Fold,
    pub text: Vec<u8>,
}

impl Spelling {
    pub fn plain(text: &str) -> Self {
        Self { reading: Reading::Plain, fold: Fold::Exact, text: text.into() }
    }

    /// Every spelling in which a value must not come back.
    pub fn all(value: &str) -> Vec<Self> {
        let mut all: Vec<Self> =
            Reading::ALL.map(|reading| Self { reading, fold: Fold::Exact, text: value.into() }).into();
        if value.contains(' ') {
            // In forms, a space is a plus sign.
            all.push(Self { reading: Reading::Percent, fold: Fold::Exact, text: value.replace(' ', "+").into() });
        }
        let hex = value.bytes().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect();
        all.push(Self { reading: Reading::Plain, fold: Fold::Hex, text: hex });
        for skew in 0..3 {
            let text = base64_core(value.as_bytes(), skew);
            all.push(Self { reading: Reading::Percent, fold: Fold::Base64, text: text.clone() });
            all.push(Self { reading: Reading::Json, fold: Fold::Base64, text });
        }
        all
    }
}

/// The part of the base64 text that depends on the value alone, when `skew` other bytes stand before it in its group of
/// three. A few bits of its first and last byte are in the characters beside it, mixed with those of its neighbours.
fn base64_core(value: &[u8], skew: usize) -> Vec<u8> {
    let encoder = GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_encode_padding(false));
    let mut bytes = vec![0; skew];
    bytes.extend_from_slice(value);
    let text = encoder.encode(&bytes).into_bytes();
    text[(8 * skew).div_ceil(6)..8 * bytes.len() / 6].to_vec()
}

/// A byte as a reader sees it, and where the spelling of it begins in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub byte: u8,
    pub start: u64,
}

/// Reads a stream byte by byte.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    reading: Reading,
    /// An escape that is not complete.
    pending: Vec<u8>,
    pending_start: u64,
    /// The first half of a character that JSON spells in two escapes.
    high_surrogate: Option<(u32, u64)>,
}

/// In no text that is UTF-8, so it ends every match.
const NEVER: u8 = 0xff;

impl Reader {
    pub fn new(reading: Reading) -> Self {
        Self { reading, pending: Vec::new(), pending_start: 0, high_surrogate: None }
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.high_surrogate.is_none()
    }

    /// What can be read once `byte` has come at `position`.
    pub fn feed(&mut self, byte: u8, position: u64, see: &mut impl FnMut(Seen)) {
        if self.pending.is_empty() {
            if Some(byte) == self.reading.escape() {
                self.pending.push(byte);
                self.pending_start = position;
            } else {
                self.drop_half(see);
                see(Seen { byte, start: position });
            }
            return;
        }
        self.pending.push(byte);
        match self.reading {
            Reading::Plain => {}
            Reading::Percent => self.percent(position, see),
            Reading::Json => self.json(position, see),
        }
    }

    fn percent(&mut self, position: u64, see: &mut impl FnMut(Seen)) {
        match self.pending[..] {
            [_, high, low] if hex(high).is_some() && hex(low).is_some() => {
                let byte = hex(high).unwrap_or(0) << 4 | hex(low).unwrap_or(0);
                see(Seen { byte, start: self.pending_start });
                self.pending.clear();
            }
            [_, digit] if hex(digit).is_some() => {}
            _ => self.no_escape(position, see),
        }
    }

    fn json(&mut self, position: u64, see: &mut impl FnMut(Seen)) {
        let start = self.pending_start;
        match self.pending[..] {
            [_, b'u' | b'x'] => {}
            // Not JSON, but how Python, JavaScript and Rust print bytes.
            [_, b'x', high] if hex(high).is_some() => {}
            [_, b'x', high, low] if hex(low).is_some() => {
                self.pending.clear();
                self.drop_half(see);
                see(Seen { byte: hex(high).unwrap_or(0) << 4 | hex(low).unwrap_or(0), start });
            }
            [_, b'u', ref digits @ ..] if digits.iter().all(u8::is_ascii_hexdigit) => {
                if digits.len() == 4 {
                    let unit = digits.iter().fold(0, |unit, &digit| unit << 4 | u32::from(hex(digit).unwrap_or(0)));
                    self.pending.clear();
                    self.unit(unit, start, see);
                }
            }
            [_, letter] => {
                let byte = match letter {
                    b'"' | b'\\' | b'/' => letter,
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    _ => return self.no_escape(position, see),
                };
                self.pending.clear();
                self.drop_half(see);
                see(Seen { byte, start });
            }
            _ => self.no_escape(position, see),
        }
    }

    fn unit(&mut self, unit: u32, start: u64, see: &mut impl FnMut(Seen)) {
        let (code, start) = match (self.high_surrogate.take(), unit) {
            (None, 0xd800..=0xdbff) => {
                self.high_surrogate = Some((unit, start));
                return;
            }
            (Some((high, start)), 0xdc00..=0xdfff) => (0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00), start),
            (Some((_, half)), 0xd800..=0xdbff) => {
                see(Seen { byte: NEVER, start: half });
                self.high_surrogate = Some((unit, start));
                return;
            }
            (Some((_, half)), _) => {
                see(Seen { byte: NEVER, start: half });
                (unit, start)
            }
            (None, _) => (unit, start),
        };
        match char::from_u32(code) {
            Some(character) => {
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    see(Seen { byte, start });
                }
            }
            None => see(Seen { byte: NEVER, start }),
        }
    }

    /// The escape was none: its bytes mean themselves, and the last one may begin another.
    fn no_escape(&mut self, position: u64, see: &mut impl FnMut(Seen)) {
        self.drop_half(see);
        let last = self.pending.pop();
        for (byte, start) in self.pending.drain(..).zip(self.pending_start..) {
            see(Seen { byte, start });
        }
        if let Some(last) = last {
            self.feed(last, position, see);
        }
    }

    fn drop_half(&mut self, see: &mut impl FnMut(Seen)) {
        if let Some((_, start)) = self.high_surrogate.take() {
            see(Seen { byte: NEVER, start });
        }
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
