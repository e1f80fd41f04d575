//! Where a span stands in a trace, as W3C Trace Context writes it.

use std::fmt;

/// Of the one who asks, or of a span of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    /// Whether anybody keeps it.
    pub sampled: bool,
}

impl Context {
    /// A `traceparent`. One that makes no sense is none, and a new trace begins.
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = bytes::<1>(version)?[0];
        // Later versions may have more behind; this one has not, and the last one is none.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace, span) = (bytes::<16>(trace)?, bytes::<8>(span)?);
        let sampled = bytes::<1>(flags)?[0] & 1 == 1;
        (trace != [0; 16] && span != [0; 8]).then_some(Self { trace, span, sampled })
    }
}

/// As it is passed on.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", hexadecimal(&self.trace), hexadecimal(&self.span), u8::from(self.sampled))
    }
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lower case alone, as the specification has it.
fn bytes<const COUNT: usize>(text: &str) -> Option<[u8; COUNT]> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * COUNT || !text.bytes().all(is_digit) {
        return None;
    }
    let mut read = [0; COUNT];
    for (at, byte) in read.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_read_again() {
        let context = Context::read(GOOD).unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_string(), GOOD);
        assert!(!Context::read(&GOOD.replace("-01", "-00")).unwrap().sampled);
        assert!(Context::read(&format!("{}-more", GOOD.replacen("00-", "cc-", 1))).is_some(), "a later version");
    }

    #[test]
    fn what_makes_no_sense_is_none() {
        for text in [
            "",
            "00",
            &GOOD.replacen("00-", "ff-", 1),
            &format!("{GOOD}-more"),
            &GOOD.to_uppercase(),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            &GOOD.replace("b7ad", "b7a"),
            &GOOD.replace("b7ad", "b7aé"),
            &GOOD.replace('-', "_"),
        ] {
            assert_eq!(Context::read(text), None, "{text:?}");
        }
    }
}
