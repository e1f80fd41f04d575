//! Where secrets come from when a sandbox asks for some.

use std::borrow::Cow;

use sandbox::Result;

use super::file::SecretsFile;
use super::vault::Vault;

/// A file is read whenever a sandbox with secrets is made: a value that was changed is the next one's, and a command that
/// has nothing to do with secrets cannot fail for them.
#[derive(Clone, Debug)]
pub enum SecretSource {
    Vault(Vault),
    /// The one that somebody named.
    File(SecretsFile),
    /// The usual one, which need not exist.
    UsualFile(SecretsFile),
}

impl SecretSource {
    pub fn vault(&self) -> Result<Cow<'_, Vault>> {
        Ok(match self {
            Self::Vault(vault) => Cow::Borrowed(vault),
            Self::File(file) => Cow::Owned(file.read()?),
            Self::UsualFile(file) => Cow::Owned(file.read_if_there()?),
        })
    }
}

impl Default for SecretSource {
    fn default() -> Self {
        Self::Vault(Vault::default())
    }
}
