//! Names that nobody can guess and nobody else has.

use sandbox::{Error, Result};

/// 32 hexadecimal digits.
pub fn digits() -> Result<String> {
    Ok(bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub fn bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut random = [0; COUNT];
    getrandom::fill(&mut random).map_err(|cause| Error::internal("there are no random numbers").with_cause(cause))?;
    Ok(random)
}
