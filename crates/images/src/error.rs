//! What can go wrong with images: what was asked for makes no sense or is not there, what came is refused or too large,
//! a registry or the disk says no.

use std::fmt;
use std::io;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
pub enum Error {
    /// Something in the archive could lead outside, or is not an archive at all. Nothing of it is kept.
    Refused(String),
    /// A limit would be passed. Nothing of it is kept.
    LimitExceeded(String),
    /// A format that is not read.
    Unsupported(String),
    /// What was asked for makes no sense, such as a name that is none.
    Invalid(String),
    /// Neither the store nor the registry has it.
    NotFound(String),
    /// The registry wants other credentials, or does not let these do this.
    Denied(String),
    /// The registry does not answer, or not as one would, or what is packed changes meanwhile; later may help.
    Unavailable(String),
    /// Whoever asked does not want it any more.
    Cancelled,
    /// The host's file system, with what was being done to what.
    Io { doing: String, source: io::Error },
}

impl Error {
    /// For `map_err`: says what was being done, in words that continue "while …".
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(what)
            | Self::LimitExceeded(what)
            | Self::Unsupported(what)
            | Self::Invalid(what)
            | Self::NotFound(what)
            | Self::Denied(what)
            | Self::Unavailable(what) => f.write_str(what),
            Self::Cancelled => f.write_str("it was given up"),
            Self::Io { doing, source } => write!(f, "{source} while {doing}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(_)
            | Self::LimitExceeded(_)
            | Self::Unsupported(_)
            | Self::Invalid(_)
            | Self::NotFound(_)
            | Self::Denied(_)
            | Self::Unavailable(_)
            | Self::Cancelled => None,
            Self::Io { source, .. } => Some(source),
        }
    }
}
