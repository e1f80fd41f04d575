//! Where Podman answers otherwise than Docker does, although it is asked in Docker's language.

use bollard::errors::Error as ClientError;

/// What is not there is a fault to it while it is being removed.
pub fn is_absence(status: u16, message: &str) -> bool {
    let missing = ["no such container", "no such image", "does not exist in database", "image not known"];
    status == 500 && missing.iter().any(|words| message.contains(words))
}

/// In a listing it has a state that Docker's language does not know, for the moment between the end of a container and its
/// being cleared away.
pub fn is_passing(error: &ClientError) -> bool {
    matches!(error, ClientError::JsonDataError { message, .. } if message.contains("unknown variant `stopped`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_is_told_from_a_fault() {
        assert!(is_absence(500, "container 72f20 does not exist in database: no such container"));
        assert!(!is_absence(500, "no space left on device"));
        assert!(!is_absence(400, "no such container"));
    }
}
