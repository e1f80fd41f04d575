//! Settings of the engines that are somebody else's daemon.

use sandbox::{Error, Image, ImageName, Result};
use tools::ImagePattern;

/// What Docker and Podman are asked for, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Where the daemon listens, when it is not where its own client would look.
    pub host: Option<String>,
    /// One of the contexts of Docker's own client.
    pub context: Option<String>,
    /// What a sandbox starts from when nothing is asked for: there is no host image on a daemon.
    pub image: ImageName,
    /// Images from registries that may bring languages along.
    pub runner_images: Vec<ImagePattern>,
    /// One of the runtimes that the daemon knows.
    pub runtime: Option<String>,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            host: None,
            context: None,
            image: "docker.io/library/python:3.13-slim".parse().expect("this is the name of an image"),
            runner_images: Vec::new(),
            runtime: None,
        }
    }
}

/// An image that a daemon can have: by its name alone.
pub fn image(text: &str) -> Result<ImageName> {
    match text.parse()? {
        Image::Named(name) => Ok(name),
        Image::Host | Image::Directory(_) | Image::Archive(_) | Image::Saved(_) => {
            Err(Error::invalid_input(format!("{text:?} is not the name of an image"))
                .with_hint("write a name like python:3.13-slim"))
        }
    }
}

/// A word that stands in a request to the daemon.
pub fn word(what: &str, text: &str) -> Result<String> {
    if !text.is_empty() && text.chars().all(|letter| letter.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(Error::invalid_input(format!("{text:?} is not {what}")))
}
