//! The tokens that a server knows right now: those of the file, as it is at this moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use sandbox::Result;
use sandbox::private::Stamp;

use super::Principal;
use super::token::{Shown, TokenFile, Tokens};

/// Looks at the file with every question, so that a token that was revoked is refused from then on.
#[derive(Debug)]
pub struct Keyring {
    file: TokenFile,
    read: Mutex<Read>,
}

#[derive(Debug)]
struct Read {
    stamp: Option<Stamp>,
    /// Those that were in the file when it had the stamp; none when it could not be understood.
    tokens: Arc<Tokens>,
}

impl Keyring {
    pub fn open(file: TokenFile) -> Result<Self> {
        let stamp = file.file().stamp()?;
        let tokens = Arc::new(file.read()?);
        Ok(Self { file, read: Mutex::new(Read { stamp, tokens }) })
    }

    pub fn is_empty(&self) -> bool {
        self.tokens().is_empty()
    }

    /// Whose token this is. It takes as long for one that is wrong as for one that is not known.
    pub fn admit(&self, shown: &Shown, now: SystemTime) -> Option<Principal> {
        let tokens = self.tokens();
        let known = shown.id.as_ref().and_then(|id| tokens.get(id));
        let is_right = known.map_or(shown.digest, |known| known.digest).is(&shown.digest);
        let known = known.filter(|known| is_right && !known.is_over(now))?;
        Some(Principal { owner: known.owner.clone(), scopes: known.scopes })
    }

    fn tokens(&self) -> Arc<Tokens> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        // What cannot be looked at may have changed.
        let stamp = self.file.file().stamp().ok().flatten();
        if stamp != read.stamp || stamp.is_none() {
            let tokens = self.file.read().unwrap_or_else(|error| {
                tracing::error!(?error, "the tokens cannot be read, and nobody is let in by one");
                Tokens::default()
            });
            *read = Read { stamp, tokens: Arc::new(tokens) };
        }
        read.tokens.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::auth::scope::Scope;
    use crate::auth::token::NewToken;

    fn new(owner: &str, lives: Option<Duration>) -> NewToken {
        NewToken { name: None, owner: owner.parse().unwrap(), scope: Scope::Read, lives }
    }

    #[test]
    fn a_token_counts_from_when_it_is_made_until_it_is_revoked_or_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = TokenFile::of_state_directory(directory.path());
        let keyring = Keyring::open(file.clone()).unwrap();
        assert!(keyring.is_empty());
        let now = SystemTime::now();
        let (token, id, _) = file.create(new("alice", None), now).unwrap();
        let (brief, ..) = file.create(new("bob", Some(Duration::from_secs(60))), now).unwrap();
        let found = keyring.admit(&Shown::new(token.reveal()), now).unwrap();
        assert_eq!(found.owner.as_str(), "alice");
        assert!(found.scopes.allow(Scope::Read) && !found.scopes.allow(Scope::Run));
        assert_eq!(keyring.admit(&Shown::new(brief.reveal()), now).unwrap().owner.as_str(), "bob");
        assert_eq!(keyring.admit(&Shown::new(brief.reveal()), now + Duration::from_secs(61)), None);
        file.revoke(&[id]).unwrap();
        assert_eq!(keyring.admit(&Shown::new(token.reveal()), now), None);
        assert!(keyring.admit(&Shown::new(brief.reveal()), now).is_some());
    }

    #[test]
    fn one_that_is_nearly_right_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let file = TokenFile::of_state_directory(directory.path());
        let (token, ..) = file.create(new("alice", None), SystemTime::now()).unwrap();
        let keyring = Keyring::open(file).unwrap();
        let right = token.reveal();
        let flipped = |at: usize| {
            let mut bytes = right.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'a' { b'b' } else { b'a' };
            String::from_utf8(bytes).unwrap()
        };
        assert!(keyring.admit(&Shown::new(right), SystemTime::now()).is_some());
        for wrong in [
            String::new(),
            right[..right.len() - 1].to_owned(),
            format!("{right}A"),
            format!(" {right}"),
            format!("{right}\0"),
            right.to_uppercase(),
            "x".repeat(1 << 20),
        ]
        .into_iter()
        .chain((0..right.len()).map(flipped))
        {
            assert_eq!(keyring.admit(&Shown::new(&wrong), SystemTime::now()), None, "{wrong:.80}");
        }
    }

    #[test]
    fn a_file_that_became_unreadable_lets_nobody_in() {
        let directory = tempfile::tempdir().unwrap();
        let file = TokenFile::of_state_directory(directory.path());
        let (token, ..) = file.create(new("alice", None), SystemTime::now()).unwrap();
        let keyring = Keyring::open(file.clone()).unwrap();
        std::fs::write(file.file().path(), "[").unwrap();
        assert_eq!(keyring.admit(&Shown::new(token.reveal()), SystemTime::now()), None);
        std::fs::remove_file(file.file().path()).unwrap();
        assert_eq!(keyring.admit(&Shown::new(token.reveal()), SystemTime::now()), None);
    }
}
