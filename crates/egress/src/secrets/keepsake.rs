//! What a sandbox's secrets look like from inside, and what another process needs to make them look the same.

use std::collections::BTreeMap;
use std::fmt;

use sandbox::{Error, Result, SandboxId, SecretName};
use serde::{Deserialize, Serialize};

use super::authority::Authority;

/// What stands for a secret inside one sandbox. Nobody can guess it, and it is spelled the same in a header, an address,
/// a form and JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Placeholder(String);

impl Placeholder {
    pub fn random(name: &SecretName) -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::unavailable("there is no randomness").with_cause(error.to_string()))?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(format!("sandpen-secret-{}-{digits}", name.as_str().to_ascii_lowercase())))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// All that is made for one sandbox. Holds no value of a secret.
pub(super) struct Keepsake {
    pub authority: Authority,
    pub placeholders: BTreeMap<SecretName, Placeholder>,
}

impl Keepsake {
    /// The same as before, as far as there is a before.
    pub fn new<'a>(
        id: &SandboxId,
        names: impl IntoIterator<Item = &'a SecretName>,
        before: Option<&str>,
    ) -> Result<Self> {
        let mut before = before.map(Written::read).transpose()?.unwrap_or_default();
        let authority = match before.authority {
            Some(written) => Authority::restore(&written)?,
            None => None,
        };
        let authority = match authority {
            Some(authority) => authority,
            None => Authority::new(id)?,
        };
        let mut placeholders = BTreeMap::new();
        for name in names {
            let placeholder = match before.placeholders.remove(name.as_str()) {
                Some(placeholder) => placeholder,
                None => Placeholder::random(name)?,
            };
            placeholders.insert(name.clone(), placeholder);
        }
        Ok(Self { authority, placeholders })
    }

    pub fn write(&self) -> String {
        let placeholders =
            self.placeholders.iter().map(|(name, placeholder)| (name.to_string(), placeholder.clone())).collect();
        let written = Written { authority: Some(self.authority.written().clone()), placeholders };
        serde_json::to_string(&written).expect("texts and numbers are JSON")
    }
}

/// The authority's key is in it.
impl fmt::Debug for Keepsake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keepsake({:?})", self.placeholders.keys())
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Written {
    authority: Option<super::authority::Written>,
    placeholders: BTreeMap<String, Placeholder>,
}

impl Written {
    fn read(text: &str) -> Result<Self> {
        // The cause would quote the text, and a key is in it.
        serde_json::from_str(text).map_err(|_| Error::internal("what was kept of the sandbox's secrets cannot be read"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_makes_the_same() {
        let id: SandboxId = "sb-7k2m9x4bqhtw3ecd".parse().unwrap();
        let [first, second]: [SecretName; 2] = ["API_KEY", "OTHER"].map(|name| name.parse().unwrap());
        let before = Keepsake::new(&id, [&first], None).unwrap();
        let after = Keepsake::new(&id, [&first, &second], Some(&before.write())).unwrap();
        assert_eq!(after.placeholders[&first], before.placeholders[&first]);
        assert_eq!(after.authority.certificate_pem(), before.authority.certificate_pem());
        assert!(after.placeholders.contains_key(&second));
        let other = Keepsake::new(&id, [&first], None).unwrap();
        assert_ne!(other.placeholders[&first], before.placeholders[&first]);
        assert_ne!(other.authority.certificate_pem(), before.authority.certificate_pem());
        assert!(Keepsake::new(&id, [&first], Some("{")).is_err());
        assert!(!format!("{before:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_placeholder_needs_no_escapes() {
        let placeholder = Placeholder::random(&"Api_KEY2".parse().unwrap()).unwrap();
        let rest = placeholder.as_str().strip_prefix("sandpen-secret-api_key2-").unwrap();
        assert!(rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{placeholder:?}");
    }
}
