//! Secrets that a sandbox uses and never sees.
//!
//! A sandbox gets a placeholder for each of its secrets. What it sends to a host that the secret belongs to is opened here,
//! the placeholder becomes the value, and whatever comes back is searched for the value before the sandbox sees it.

mod authority;
mod file;
mod header;
mod keepsake;
mod replace;
mod spelling;
mod trust;
mod truststore;
mod value;
mod vault;

pub use file::SecretsFile;
pub use header::HeaderTemplate;
pub use value::SecretValue;
pub use vault::{Secret, Vault};
