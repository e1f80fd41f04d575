//! Names that nobody can guess and nobody else has.

use sandbox::{Error, Result};

/// 32 hexadecimal digits.
pub fn digits() -> Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|cause| Error::internal("there are no random numbers").with_cause(cause))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
