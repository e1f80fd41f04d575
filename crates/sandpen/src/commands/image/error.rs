//! Errors of the library of images as ours.

use images::Error as ImageError;
use sandbox::Error;

/// What went wrong with an image, in the words of the command line.
pub fn image_error(error: ImageError) -> Error {
    match &error {
        ImageError::Refused(what) => Error::invalid_input(format!("the image is refused: {what}")),
        ImageError::LimitExceeded(what) => Error::limit_exceeded(format!("the image is too large: {what}")),
        ImageError::Unsupported(what) => Error::unsupported(what.clone()),
        ImageError::Invalid(what) => Error::invalid_input(what.clone()),
        ImageError::NotFound(what) => Error::not_found(what.clone()).with_hint("sandpen image ls shows what is here"),
        ImageError::Denied(what) => {
            Error::denied(what.clone()).with_hint("log in with docker login, or check the name of the image")
        }
        ImageError::Unavailable(what) => Error::unavailable(what.clone())
            .with_hint("a registry that is not encrypted has to be named with --insecure-registry"),
        ImageError::Cancelled => Error::unavailable("it was given up"),
        ImageError::Io { doing, source } => {
            Error::unavailable(format!("{} while {doing}", crate::output::reason(source)))
        }
    }
}
