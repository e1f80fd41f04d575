//! What can go wrong with an archive: it is refused for what it holds, it is too large, or the disk says no.

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
            Self::Refused(what) | Self::LimitExceeded(what) | Self::Unsupported(what) => f.write_str(what),
            Self::Io { doing, source } => write!(f, "{source} while {doing}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(_) | Self::LimitExceeded(_) | Self::Unsupported(_) => None,
            Self::Io { source, .. } => Some(source),
        }
    }
}
