//! Untrusted archives on disk: fetched from registries or taken from files, unpacked by a path that cannot leave its
//! directory, kept in a store of images.
//!
//! Works with the rights of whoever calls it and asks for no more: it mounts nothing and knows nothing of sandboxes.
//! What a tree is used for is decided by its callers.

pub mod archive;
pub mod belongings;
pub mod config;
pub mod confined;
pub mod difference;
pub mod digest;
pub mod dockerfile;
pub mod error;
pub mod export;
pub mod hands;
pub mod import;
pub mod layer;
pub mod local;
pub mod manifest;
mod meter;
pub mod overlaid;
pub mod pack;
pub mod platform;
pub mod reference;
pub mod registry;
pub mod stamp;
pub mod store;
mod trees;
pub mod unpack;
pub mod work;
mod zstd;

pub use config::{ImageConfig, RunConfig};
pub use confined::Directory;
pub use digest::Digest;
pub use error::{Error, Result};
pub use local::Local;
pub use manifest::{Descriptor, Document, ImageLimits, Index, Manifest};
pub use platform::Platform;
pub use reference::Reference;
pub use store::{Collected, Image, ImageLayer, Named, Store, Writing};
pub use unpack::{Limits, Links, Summary, extract, unpack};
pub use work::{Progress, Step, Work};
