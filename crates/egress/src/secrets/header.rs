//! A header that a secret is sent in.

use std::fmt;
use std::str::FromStr;

use http::header::{self, HeaderName, HeaderValue};
use sandbox::{Error, Result};

use super::value::SecretValue;

/// A header with a place for the value: `Authorization: Bearer {}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTemplate {
    /// As it was written, because people know headers by their capitals.
    written: String,
    name: HeaderName,
    before: String,
    after: String,
}

impl HeaderTemplate {
    const PLACE: &str = "{}";

    pub fn name(&self) -> &HeaderName {
        &self.name
    }

    pub fn fill(&self, value: &SecretValue) -> Result<HeaderValue> {
        let text = format!("{}{}{}", self.before, value.expose(), self.after);
        let mut filled = HeaderValue::from_bytes(text.as_bytes())
            .map_err(|_| Error::invalid_input("the value does not fit into a header"))?;
        filled.set_sensitive(true);
        Ok(filled)
    }
}

impl FromStr for HeaderTemplate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The text is not repeated: a person may have written the value where the place for it belongs.
        let refused = |why: &str| {
            Error::invalid_input(format!("the header {why}"))
                .with_hint("write it like 'Authorization: Bearer {}', where {} is the place of the value")
        };
        let (name, rest) = text.split_once(':').ok_or_else(|| refused("has no colon after its name"))?;
        let parsed: HeaderName = name.parse().map_err(|_| refused("has a name that no header can have"))?;
        if RESERVED.contains(&parsed) || parsed.as_str().starts_with("proxy-") {
            return Err(refused("is one that only the proxy may set"));
        }
        let rest = rest.trim();
        let (before, after) = rest.split_once(Self::PLACE).ok_or_else(|| refused("has no {} for the value"))?;
        if after.contains(Self::PLACE) {
            return Err(refused("has more than one {}"));
        }
        if HeaderValue::from_str(rest).is_err() {
            return Err(refused("has characters that no header can have"));
        }
        let (before, after) = (before.to_owned(), after.to_owned());
        Ok(Self { written: format!("{name}: {rest}"), name: parsed, before, after })
    }
}

impl fmt::Display for HeaderTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// They say where a request goes, where it ends, or what the answer looks like: a value there would break the promise that
/// answers can be read and masked.
static RESERVED: [HeaderName; 13] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::CONTENT_TYPE,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::ACCEPT_ENCODING,
    header::RANGE,
    header::IF_RANGE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled() {
        let value = SecretValue::new("sk-12345678").unwrap();
        for (text, filled) in [
            ("Authorization:Bearer {}", "Bearer sk-12345678"),
            ("X-Key: {};v=1", "sk-12345678;v=1"),
            ("a:{}", "sk-12345678"),
        ] {
            let template: HeaderTemplate = text.parse().unwrap();
            assert_eq!(template.fill(&value).unwrap(), filled);
            assert_eq!(template.to_string().parse::<HeaderTemplate>().unwrap(), template);
        }
    }

    #[test]
    fn templates_that_would_break_a_request_are_refused() {
        for text in [
            "",
            "{}",
            "X-Key",
            "X-Key: sk-12345678",
            "X-Key: {} {}",
            "X Key: {}",
            "Host: {}",
            "accept-encoding: {}",
            "Proxy-Authorization: {}",
            "X: {}\r\nY: 1",
        ] {
            let error = text.parse::<HeaderTemplate>().unwrap_err();
            assert!(!error.to_string().contains("12345678"), "{error}");
        }
    }
}
