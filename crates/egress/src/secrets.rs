//! Secrets that a sandbox uses and never sees.
//!
//! A sandbox gets a placeholder for each of its secrets. What it sends to a host that the secret belongs to is opened here,
//! the placeholder becomes the value, and whatever comes back is searched for the value before the sandbox sees it.

mod authority;
mod body;
mod file;
mod first;
pub mod fuzzing;
mod header;
mod inspector;
mod keepsake;
mod passage;
mod prepare;
#[cfg(test)]
mod programs_tests;
mod refusal;
mod replace;
mod request;
mod response;
mod source;
mod spelling;
#[cfg(test)]
mod stand_in;
mod trust;
mod truststore;
mod upstream;
mod value;
mod vault;

pub use file::SecretsFile;
pub(crate) use first::Replayed;
pub use header::HeaderTemplate;
pub(crate) use prepare::{Prepared, prepare};
pub use source::SecretSource;
pub use value::SecretValue;
pub use vault::{Secret, Vault};
