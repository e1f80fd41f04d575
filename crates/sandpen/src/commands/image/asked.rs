//! What can be asked of every engine about its images.

use clap::Args;

/// Fetch an image from a registry
///
/// What is here already is not fetched again, and a pull that was interrupted goes on where it was.
#[derive(Args, Debug)]
pub struct Pull {
    /// The image: debian:12, ghcr.io/owner/tool:1.2, name@sha256:…
    #[arg(value_name = "IMAGE")]
    pub image: String,
}

/// List images
#[derive(Args, Debug)]
pub struct List {
    /// Print the names alone
    #[arg(long, short)]
    pub quiet: bool,
}
