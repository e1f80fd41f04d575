//! The one error of this crate: a kind for programs, a sentence for people, a cause for the log.

use std::fmt;

/// What a caller can act upon. Closed on purpose: edges map every kind to their own codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request itself is wrong; repeating it cannot help.
    InvalidInput,
    /// No such thing, or it belongs to somebody else: the two are not told apart.
    NotFound,
    AlreadyExists,
    /// The thing exists but cannot do this now.
    WrongState,
    /// A limit of the owner, the sandbox or the host is used up.
    LimitExceeded,
    /// Policy or permission says no.
    Denied,
    /// This engine or host cannot do this at all.
    Unsupported,
    TimedOut,
    /// Something that is needed does not answer now; later may help.
    Unavailable,
    /// A fault of ours.
    Internal,
}

impl ErrorKind {
    const ALL: [Self; 10] = [
        Self::InvalidInput,
        Self::NotFound,
        Self::AlreadyExists,
        Self::WrongState,
        Self::LimitExceeded,
        Self::Denied,
        Self::Unsupported,
        Self::TimedOut,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The kind of that word.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::WrongState => "wrong_state",
            Self::LimitExceeded => "limit_exceeded",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::TimedOut => "timed_out",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A failed request.
///
/// `Display` prints only the public message, so a host path or a token that sits in the cause cannot reach a client
/// by way of a format string. A program that exits non-zero is not an error but an outcome.
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    cause: Option<Cause>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, cause: None }
    }

    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub fn wrong_state(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::WrongState, message)
    }

    pub fn limit_exceeded(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::LimitExceeded, message)
    }

    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Denied, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// What to do next, in words that a model or a person can follow.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What really happened, for the log only.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// A copy for one more caller. The cause stays with the first, which is the one that is logged.
    #[must_use]
    pub fn without_cause(&self) -> Self {
        Self { kind: self.kind, message: self.message.clone(), hint: self.hint.clone(), cause: None }
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The private cause. Only a log may print it.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync)> {
        self.cause.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, " (hint: {hint})")?;
        }
        if let Some(cause) = &self.cause {
            write!(f, " [cause: {cause}]")?;
        }
        Ok(())
    }
}

/// `source` stays empty: generic reporters walk it and print every level, and our cause is private.
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_printed_only_for_the_log() {
        let error = Error::internal("the file could not be read")
            .with_cause(std::io::Error::other("/home/user/secret: denied"));
        assert_eq!(error.to_string(), "the file could not be read");
        assert!(std::error::Error::source(&error).is_none());
        assert!(format!("{error:?}").contains("/home/user/secret"));
    }
}
