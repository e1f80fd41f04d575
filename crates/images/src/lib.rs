//! Untrusted archives on disk: fetched from registries or taken from files, unpacked by a path that cannot leave its
//! directory, kept in a store of images.
//!
//! Works with the rights of whoever calls it and asks for no more: it mounts nothing and knows nothing of sandboxes.
//! What a tree is used for is decided by its callers.
//!
//! The trees are those of the embedded engine, so all that touches them is for Linux. Names, documents and logins are
//! understood everywhere.

#[cfg(target_os = "linux")]
pub mod archive;
#[cfg(target_os = "linux")]
pub mod belongings;
pub mod config;
#[cfg(target_os = "linux")]
pub mod confined;
mod credentials;
#[cfg(target_os = "linux")]
pub mod difference;
pub mod digest;
pub mod dockerfile;
pub mod error;
#[cfg(target_os = "linux")]
pub mod export;
#[cfg(target_os = "linux")]
pub mod hands;
#[cfg(target_os = "linux")]
pub mod import;
#[cfg(target_os = "linux")]
pub mod layer;
mod limits;
#[cfg(target_os = "linux")]
pub mod local;
pub mod manifest;
#[cfg(target_os = "linux")]
mod meter;
mod mirror;
#[cfg(target_os = "linux")]
pub mod overlaid;
#[cfg(target_os = "linux")]
pub mod pack;
pub mod platform;
pub mod reference;
#[cfg(target_os = "linux")]
pub mod registry;
#[cfg(target_os = "linux")]
pub mod stamp;
#[cfg(target_os = "linux")]
pub mod store;
#[cfg(target_os = "linux")]
mod trees;
#[cfg(target_os = "linux")]
pub mod unpack;
pub mod work;
#[cfg(target_os = "linux")]
mod zstd;

pub use config::{ImageConfig, RunConfig};
#[cfg(target_os = "linux")]
pub use confined::Directory;
pub use credentials::{Credentials, Login};
pub use digest::Digest;
pub use error::{Error, Result};
pub use limits::Limits;
#[cfg(target_os = "linux")]
pub use local::Local;
pub use manifest::{Descriptor, Document, ImageLimits, Index, Manifest};
pub use mirror::Mirror;
pub use platform::Platform;
pub use reference::Reference;
#[cfg(target_os = "linux")]
pub use store::{Collected, Image, ImageLayer, Named, Store, Writing};
#[cfg(target_os = "linux")]
pub use unpack::{Links, Summary, extract, unpack};
pub use work::{Progress, Step, Work};
