//! What a sandbox starts from.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::exec::ExecRequest;
use crate::tree::SavedName;

/// The read-only tree that a sandbox starts from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Image {
    /// The host's own system tree: programs and libraries, never anybody's data.
    Host,
    /// A root tree in a directory of the host. Only an operator may name one.
    Directory(PathBuf),
    /// A root tree in a plain tar file of the host. Only an operator may name one.
    Archive(PathBuf),
    /// One that the engine has under this name.
    Named(ImageName),
    /// One that the sandbox's own owner saved.
    Saved(SavedName),
}

impl Image {
    /// What a caller may know of it: where on the host it lies is the operator's affair.
    pub fn shown(&self) -> String {
        match self {
            Self::Directory(_) => "directory".to_owned(),
            Self::Archive(_) => "archive".to_owned(),
            Self::Host | Self::Named(_) | Self::Saved(_) => self.to_string(),
        }
    }
}

/// What an image is made to run, as its maker wrote it. Either part may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageProgram {
    entry_point: Vec<String>,
    /// What the entry point is given when nobody says anything else, or the whole command where there is none.
    command: Vec<String>,
}

impl ImageProgram {
    /// What is too long to be run is no program.
    pub fn new(entry_point: Vec<String>, command: Vec<String>) -> Self {
        let bytes: usize = entry_point.iter().chain(&command).map(|argument| argument.len() + 1).sum();
        if bytes > ExecRequest::MAX_ARGUMENT_BYTES { Self::default() } else { Self { entry_point, command } }
    }

    pub fn entry_point(&self) -> &[String] {
        &self.entry_point
    }

    pub fn command(&self) -> &[String] {
        &self.command
    }

    /// The entry point with these arguments in place of the image's own.
    ///
    /// Fails when nothing is left that could be run.
    pub fn argv(&self, arguments: Option<&[String]>) -> Result<Vec<String>> {
        let argv: Vec<String> = self.entry_point.iter().chain(arguments.unwrap_or(&self.command)).cloned().collect();
        if argv.is_empty() {
            return Err(Error::invalid_input("the image has no program of its own: neither entry point nor command")
                .with_hint("give a command to run in it"));
        }
        Ok(argv)
    }
}

impl FromStr for Image {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let absolute = |path: &str| -> Result<PathBuf> {
            let path = PathBuf::from(path);
            if path.is_absolute() {
                return Ok(path);
            }
            Err(Error::invalid_input(format!("the image path {} is not absolute", path.display())))
        };
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            Some(("dir", path)) => absolute(path).map(Self::Directory),
            Some(("tar", path)) => absolute(path).map(Self::Archive),
            Some(("saved", name)) => name.parse().map(Self::Saved),
            Some(_) | None => text.parse().map(Self::Named),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Directory(path) => write!(f, "dir:{}", path.display()),
            Self::Archive(path) => write!(f, "tar:{}", path.display()),
            Self::Named(name) => fmt::Display::fmt(name, f),
            Self::Saved(name) => write!(f, "saved:{name}"),
        }
    }
}

/// The name of an image as people write it: `debian:12`, `registry.example.org/team/tool@sha256:…`. Which image it means, and
/// whether it means one at all, is for the engine to say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName(String);

impl ImageName {
    /// A registry, a path, a tag and a digest, each as long as it may be.
    pub const MAX_BYTES: usize = 512;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImageName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_mark = |byte: u8| matches!(byte, b'.' | b'_' | b'-' | b'/' | b':' | b'@' | b'[' | b']');
        let mut bytes = text.bytes();
        let starts_well = bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'[');
        if starts_well
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
            && text.len() <= Self::MAX_BYTES
        {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(64).collect();
        Err(Error::invalid_input(format!("{shown:?} is not an image"))
            .with_hint("use host, dir:/path/to/root, tar:/path/to/root.tar, saved:NAME, or a name like debian:12"))
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_print_as_they_are_written() {
        for text in
            ["host", "dir:/srv/root", "tar:/srv/root.tar", "saved:lab", "debian:12", "[::1]:5000/a/b", "x@sha256:00"]
        {
            assert_eq!(text.parse::<Image>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn paths_and_odd_texts_are_no_names() {
        let long = "x".repeat(ImageName::MAX_BYTES + 1);
        for text in ["", "/srv/root", "./root", "dir:root", "-x", "a b", "a\nb", "a\0", "ä", "$(id)", &long] {
            assert!(text.parse::<Image>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn where_a_tree_lies_is_not_shown() {
        assert_eq!("dir:/srv/secret".parse::<Image>().unwrap().shown(), "directory");
        assert_eq!("tool:1".parse::<Image>().unwrap().shown(), "tool:1");
    }
}
