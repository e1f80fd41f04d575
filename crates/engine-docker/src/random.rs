//! Texts that nobody can guess.

use sandbox::{Error, Result};

/// In hexadecimal, two characters for each byte.
pub fn text(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random)
        .map_err(|cause| Error::internal("no random numbers from the system").with_cause(cause.to_string()))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
