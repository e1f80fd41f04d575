//! Images that a model may ask for: by name alone, and only those that the operator opened.

use std::fmt;
use std::str::FromStr;

use sandbox::{Error, Image, ImageName, Result};

use crate::call::Call;
use crate::policy::Policy;

/// Longer lists are cut where they stand in every conversation.
const PATTERNS: usize = 12;

/// A name as it is written, or the beginning of names with a `*` behind it.
///
/// Names are compared as text, so the `*` must not reach a place that changes what stands before it: `python:*` is for tags
/// of `python`, and `python:5000/tool` is in a registry of that name. Only behind a slash it stands for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePattern {
    text: String,
    is_prefix: bool,
}

impl ImagePattern {
    pub fn covers(&self, name: &ImageName) -> bool {
        if !self.is_prefix {
            return name.as_str() == self.text;
        }
        if is_internal(name) {
            return false;
        }
        let Some(rest) = name.as_str().strip_prefix(&self.text) else { return false };
        // A digest is an image of its own, whatever tag stands before it.
        self.text.is_empty() || self.text.ends_with('/') || !rest.contains(['/', '@'])
    }

    /// The machine's own tree is no name that a `*` could stand for.
    fn is_host(&self) -> bool {
        !self.is_prefix && self.text == "host"
    }
}

impl FromStr for ImagePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (start, is_prefix) = match text.strip_suffix('*') {
            Some(start) => (start, true),
            None => (text, false),
        };
        let is_name = !is_place(start) && start.parse::<ImageName>().is_ok();
        if is_name || (start.is_empty() && is_prefix) {
            return Ok(Self { text: start.to_owned(), is_prefix });
        }
        Err(Error::invalid_input(format!("{text:?} is not a pattern of image names"))
            .with_hint("write a name, or its beginning with a * at the end: debian:12, python:*, ghcr.io/owner/*"))
    }
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.is_prefix { "*" } else { "" })
    }
}

impl Policy {
    /// The image for a call that asks for this one, or does not ask.
    pub fn image(&self, asked: Option<&str>) -> Result<Image> {
        let Some(text) = asked else { return Ok(self.image.clone()) };
        let image = match text {
            "host" => Image::Host,
            text if is_place(text) => return Err(no_name(self)),
            text => match text.parse().map_err(|_| no_name(self))? {
                image @ (Image::Named(_) | Image::Saved(_)) => image,
                Image::Host | Image::Directory(_) | Image::Archive(_) => return Err(no_name(self)),
            },
        };
        let is_open = image == self.image
            || match &image {
                Image::Host => self.images.iter().any(ImagePattern::is_host),
                Image::Named(name) => self.images.iter().any(|pattern| pattern.covers(name)),
                // Saved by the owner, who had all of it before.
                Image::Saved(_) => true,
                Image::Directory(_) | Image::Archive(_) => false,
            };
        if is_open {
            return Ok(image);
        }
        Err(Error::denied(format!("the image {image} is not among those of this server")).with_hint(allowed(self)))
    }
}

/// Has an image fetched that is not there, for as long as calls wait for runs.
pub async fn provide(call: &Call, image: &Image) -> Result<()> {
    let (Image::Named(name), Some(source)) = (image, &call.images) else { return Ok(()) };
    tokio::select! {
        provided = source.provide(name, &call.progress) => provided,
        () = call.cancelled.cancelled() => Err(Error::unavailable("the request was cancelled")),
        () = tokio::time::sleep(call.policy.wait) => {
            Err(Error::unavailable(format!("the image {name} is being fetched, which takes a while"))
                .with_hint("make the same call again: the image is fetched on meanwhile"))
        }
    }
}

/// For the argument of tools.
pub fn argument(policy: &Policy) -> String {
    let default = policy.image.shown();
    if policy.images.is_empty() {
        return format!("The image to start from: always {default}, on this server, or one of save_sandbox.");
    }
    format!(
        "The image to start from, by its name. There are {}, where * stands for any ending, and those of save_sandbox. \
         Default {default}.",
        listed(&policy.images)
    )
}

/// Paths of the host are the operator's to name.
fn is_place(text: &str) -> bool {
    text.starts_with("dir:") || text.starts_with("tar:")
}

/// Whether it is under a name that only this program gives: what others saved, and steps of builds.
fn is_internal(name: &ImageName) -> bool {
    let Some((host, _)) = name.as_str().split_once('/') else { return false };
    let host = host.split_once(':').map_or(host, |(host, _)| host).to_ascii_lowercase();
    host == "invalid" || host.ends_with(".invalid")
}

fn no_name(policy: &Policy) -> Error {
    Error::invalid_input("an image is asked for by its name").with_hint(allowed(policy))
}

fn allowed(policy: &Policy) -> String {
    match policy.images.as_slice() {
        [] => "leave image out: this server has no other than its own".to_owned(),
        images => format!("leave image out, or ask for one of {}", listed(images)),
    }
}

fn listed(images: &[ImagePattern]) -> String {
    let first: Vec<String> = images.iter().take(PATTERNS).map(ToString::to_string).collect();
    match images.len().saturating_sub(PATTERNS) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_what_it_says_and_nothing_that_means_something_else() {
        for (pattern, covered, other) in [
            ("debian:12", &["debian:12"][..], &["debian:12.1", "debian", "debian:12@sha256:00", "x/debian:12"][..]),
            ("python:*", &["python:3.12", "python:latest"], &["python", "python:5000/tool", "python:3@sha256:00"]),
            (
                "python*",
                &["python", "python3", "python:3"],
                &["python.example/tool", "python/tool", "python@sha256:00"],
            ),
            (
                "ghcr.io/owner/*",
                &["ghcr.io/owner/a:1", "ghcr.io/owner/a/b@sha256:00"],
                &["ghcr.io/owner2/a", "owner/a"],
            ),
            (
                "*",
                &["debian", "ghcr.io/a/b:1", "invalid:1", "a/b.invalid/c"],
                &["saved.sandpen.invalid/1f/lab:latest", "Trees.Sandpen.INVALID:80/build/1f", "invalid/a"],
            ),
            ("saved*", &["saved-things"], &["saved.sandpen.invalid/1f/lab"]),
        ] {
            let pattern: ImagePattern = pattern.parse().unwrap();
            let covers = |name: &&&str| pattern.covers(&name.parse().unwrap());
            assert_eq!(covered.iter().find(|name| !covers(name)), None, "{pattern} leaves out");
            assert_eq!(other.iter().find(|name| covers(name)), None, "{pattern} takes in");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["", "a*b", "**", "dir:/srv", "tar:/srv/*", "/srv/*", "a b"] {
            assert!(text.parse::<ImagePattern>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_host_is_asked_for_by_its_word_alone() {
        let policy = |own: &str, images: &[&str]| Policy {
            image: own.parse().unwrap(),
            images: images.iter().map(|text| text.parse().unwrap()).collect(),
            ..Policy::default()
        };
        assert_eq!(policy("host", &[]).image(Some("host")).unwrap(), Image::Host);
        assert_eq!(policy("tool:1", &["host"]).image(Some("host")).unwrap(), Image::Host);
        assert!(policy("tool:1", &["*", "ho*"]).image(Some("host")).is_err());
        assert!(policy("dir:/srv/root", &["*"]).image(Some("dir:/srv/root")).is_err());
    }
}
