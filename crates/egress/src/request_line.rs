//! Whether the first bytes of a client begin a request of HTTP/1. Pure.
//!
//! Wider than the standard, as servers are: whatever one of them could take for a request is one, and whether it is a sound
//! one is decided by whoever parses it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestLine {
    /// More bytes decide.
    Unfinished,
    Http,
    SomethingElse,
}

const LONGEST_METHOD: usize = 32;

/// A line that is longer is taken for a request, and refused as one that is too long.
const LONGEST_LINE: usize = 64 * 1024;

pub(crate) fn read(bytes: &[u8]) -> RequestLine {
    // Servers pass over empty lines before a request.
    let begin = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    let rest = &bytes[begin..];
    match rest.iter().position(|byte| !is_in_method(*byte)) {
        None if rest.len() > LONGEST_METHOD || begin > LONGEST_METHOD => return RequestLine::SomethingElse,
        None => return RequestLine::Unfinished,
        Some(end) if end == 0 || end > LONGEST_METHOD || !is_blank(rest[end]) => return RequestLine::SomethingElse,
        Some(_) => {}
    }
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_text = |byte: &u8| is_blank(*byte) || *byte == b'\r' || (*byte >= b' ' && *byte != 0x7f);
    if !line.iter().all(is_text) {
        return RequestLine::SomethingElse;
    }
    match line.len() < rest.len() {
        true if has_version(line) => RequestLine::Http,
        true => RequestLine::SomethingElse,
        false if line.len() > LONGEST_LINE => RequestLine::Http,
        false => RequestLine::Unfinished,
    }
}

fn has_version(line: &[u8]) -> bool {
    const NAME: &[u8] = b"HTTP/";
    line.windows(1 + NAME.len()).any(|window| is_blank(window[0]) && window[1..].eq_ignore_ascii_case(NAME))
}

fn is_in_method(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_however_they_are_spelled() {
        for line in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\r\n\r\nGET / HTTP/1.1\r\n",
            b"get\t/\thttp/1.0\n",
            b"M-SEARCH * HTTP/1.1\r\nHost: x",
            b"GET /a b HTTP/1.1\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            assert_eq!(read(line), RequestLine::Http, "{:?}", String::from_utf8_lossy(line));
            let end = line.iter().rposition(|byte| *byte == b'/').unwrap();
            for length in 0..end {
                assert_eq!(read(&line[..length]), RequestLine::Unfinished, "{:?}", &line[..length]);
            }
        }
        assert_eq!(read(&[b"GET /", &[b'a'; LONGEST_LINE][..]].concat()), RequestLine::Http);
    }

    #[test]
    fn other_protocols_are_something_else_at_once() {
        for bytes in [
            &b"SSH-2.0-x\r\n"[..],
            b"EHLO host.example\r\n",
            b"a1 LOGIN user secret\r\n",
            b"GET key\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"\x16\x03\x01",
            b" GET / HTTP/1.1\r\n",
            b"GET / \x01",
            &[b'x'; 1000],
            &[b'\n'; 1000],
        ] {
            assert_eq!(read(bytes), RequestLine::SomethingElse, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
