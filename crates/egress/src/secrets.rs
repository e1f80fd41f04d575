//! Secrets that a sandbox uses and never sees.

/// The secrets that this process may put in, by name.
#[derive(Clone, Debug, Default)]
pub struct Vault {}
