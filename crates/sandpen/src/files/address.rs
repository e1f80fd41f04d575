//! What the address of a request names: a sandbox, a path in it, and how it is wanted.
//!
//! An address is decoded once, as bytes, and before anything is decided about it. What a name means is the sandbox's.

use sandbox::{Error, GuestPath, Result};

const SANDBOXES: &str = "/api/sandboxes/";

/// What stands for a sandbox in an address, and the path after `/files` there.
pub fn of_file(path: &str) -> Result<(&str, GuestPath)> {
    let (sandbox, rest) = of_sandbox(path)?;
    let rest = rest.strip_prefix("files").ok_or_else(nowhere)?;
    let decoded = decode(rest)?;
    let path = if decoded.is_empty() { GuestPath::root() } else { GuestPath::resolve(&GuestPath::root(), &decoded)? };
    Ok((sandbox, path))
}

/// What stands for a sandbox in an address, and all that follows it.
pub fn of_sandbox(path: &str) -> Result<(&str, &str)> {
    path.strip_prefix(SANDBOXES).and_then(|rest| rest.split_once('/')).ok_or_else(nowhere)
}

fn nowhere() -> Error {
    Error::not_found("there is nothing here")
}

/// Bytes that were escaped by `%` and two digits. Half an escape is refused: readers differ about what it means.
pub fn decode(text: &str) -> Result<Vec<u8>> {
    let wrong =
        || Error::invalid_input("the address has a % that escapes nothing").with_hint("a % itself is written %25");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(2).ok_or_else(wrong)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let (high, low) = (digit(digits[0]).ok_or_else(wrong)?, digit(digits[1]).ok_or_else(wrong)?);
        bytes.push(high << 4 | low);
        rest = after;
    }
    Ok(bytes)
}

/// Escaped so that it is one part of an address, and means nothing else in a header.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len()), |mut text, &byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text += &format!("%{byte:02X}");
        }
        text
    })
}

/// The value of a word of the query; empty when it has none.
pub fn query<'a>(query: Option<&'a str>, word: &str) -> Option<&'a str> {
    let words = query.unwrap_or_default().split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
    words.into_iter().find(|(name, _)| *name == word).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rest: &str) -> Result<Vec<u8>> {
        of_file(&format!("/api/sandboxes/sb-1/files{rest}")).map(|(_, path)| path.as_bytes().to_vec())
    }

    #[test]
    fn a_name_is_decoded_once_and_kept() {
        for (rest, expected) in [
            ("", &b"/"[..]),
            ("/", b"/"),
            ("/workspace/a.txt", b"/workspace/a.txt"),
            ("/workspace%2fa.txt", b"/workspace/a.txt"),
            ("//workspace//./a", b"/workspace/a"),
            ("/a%20b", b"/a b"),
            ("/%ff%0a", b"/\xff\n"),
            ("/%252e%252e/x", b"/%2e%2e/x"),
            ("/..%5c..%5cx", b"/..\\..\\x"),
            ("/a+b", b"/a+b"),
            ("/...", b"/..."),
            ("/%ef%bc%8e%ef%bc%8e/x", "/．．/x".as_bytes()),
        ] {
            assert_eq!(path(rest).unwrap(), expected, "{rest}");
        }
    }

    #[test]
    fn what_leads_out_or_means_two_things_is_refused() {
        let long = format!("/{}", "x".repeat(256));
        let deep = "/y".repeat(2048);
        for rest in ["/..", "/a/../b", "/%2e%2e/x", "/a%2f..%2fb", "/%00", "/%", "/%4", "/%zz", "/%+1", &long, &deep] {
            assert!(path(rest).is_err(), "{rest}");
        }
        assert!(of_file("/api/sandboxes/").is_err());
        assert!(of_file("/api/sandboxes/sb-1/uploads").is_err());
    }

    #[test]
    fn what_was_encoded_is_decoded_to_the_same() {
        let all: Vec<u8> = (0..=255).collect();
        let text = encode(&all);
        assert_eq!(decode(&text).unwrap(), all);
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#\"\\&=+".contains(&byte)));
    }

    #[test]
    fn words_of_a_query_are_found() {
        let asked = Some("archive=zip&inline&x=");
        assert_eq!(query(asked, "archive"), Some("zip"));
        assert_eq!(query(asked, "inline"), Some(""));
        assert_eq!(query(asked, "arch"), None);
        assert_eq!(query(None, "inline"), None);
    }
}
