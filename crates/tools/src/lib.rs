//! What a model can ask for: our tools, each one typed value, and the resources and prompts that go with them.
//!
//! Knows nothing of MCP libraries and transports, nothing of engines, and has no state of its own: what lasts is the
//! service's.

pub mod call;
pub mod catalog;
pub mod content;
pub mod direct;
mod displays;
pub mod error;
pub mod export;
pub mod image;
pub mod instructions;
pub mod network;
pub mod packages;
pub mod policy;
pub mod profile;
pub mod prompts;
pub mod resources;
pub mod schema;
pub mod select;
pub mod tool;

pub mod mime;
mod results;
mod text;
mod uri;
mod words;

pub use call::{Call, Copied, HostEntry, HostFiles, ImageSource, Links, Preview, Previews, Progress, Silent};
pub use catalog::Catalog;
pub use content::{Body, Content, Embedded, Output, ResourceLink};
pub use error::tell;
pub use export::Exporter;
pub use image::ImagePattern;
pub use policy::{Ceiling, Policy, Secret};
pub use profile::{Identity, Offers, Profile, ProfileName, ProfileOption, ProfileOptions};
pub use select::{Selection, Toolset};
pub use tool::{Hints, Reason, Rejection, Tool};
