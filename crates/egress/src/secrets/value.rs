//! The value of a secret.

use std::fmt;
use std::hint::black_box;

use sandbox::{Error, Result};

/// Cannot be printed, compared or serialized; only the code that puts it in or writes its file asks for the text.
pub struct SecretValue(Vec<u8>);

impl SecretValue {
    /// Shorter ones appear by chance: to mask them would garble answers, and to try them all takes no time.
    pub const MIN_BYTES: usize = 8;
    pub const MAX_BYTES: usize = 8 * 1024;

    pub fn new(text: impl Into<String>) -> Result<Self> {
        let value = Self(text.into().into_bytes());
        let text = value.expose();
        if text.len() < Self::MIN_BYTES {
            return Err(Error::invalid_input(format!("the value has fewer than {} bytes", Self::MIN_BYTES)).with_hint(
                "every occurrence of it in an answer is masked, and one as short as this would garble answers",
            ));
        }
        if text.len() > Self::MAX_BYTES {
            return Err(Error::limit_exceeded(format!("the value has more than {} bytes", Self::MAX_BYTES)));
        }
        if text.chars().any(char::is_control) {
            return Err(Error::invalid_input("the value contains a line break or another control character")
                .with_hint("a value must fit into one header of a request"));
        }
        Ok(value)
    }

    pub fn expose(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

impl Drop for SecretValue {
    fn drop(&mut self) {
        self.0.fill(0);
        // Without a reader the compiler may leave the line above out.
        black_box(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_must_be_safe_to_mask_and_to_send() {
        for text in ["1234567", "", "long enough\n", "long\0enough", "long\renough", "tab\tinside", "\u{9b}long enough"]
        {
            assert!(SecretValue::new(text).is_err(), "{text:?} was taken");
        }
        assert!(SecretValue::new("a".repeat(SecretValue::MAX_BYTES + 1)).is_err());
        assert_eq!(SecretValue::new("pass wörd").unwrap().expose(), "pass wörd");
    }

    #[test]
    fn a_value_cannot_be_printed() {
        let value = SecretValue::new("sk-canary-value").unwrap();
        assert!(!format!("{value:?} {:?}", Some(&value)).contains("canary"));
    }
}
