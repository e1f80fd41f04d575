//! Errors as a model reads them.

use sandbox::Error;

/// What went wrong and what to do next. The cause stays behind.
pub fn tell(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("{} ({}): {hint}", error.message(), error.kind().as_str()),
        None => format!("{} ({})", error.message(), error.kind().as_str()),
    }
}
