//! Paths inside a sandbox. Host paths are `std::path::Path`; the two never mix.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// An absolute path in a sandbox, free of `.`, `..`, empty components and NUL.
///
/// Kept as bytes, because names that sandboxed code makes need not be UTF-8. It says where to look, not what is there:
/// links are resolved inside the sandbox, by the engine, never by comparing text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestPath(Vec<u8>);

impl GuestPath {
    /// PATH_MAX counts the final NUL.
    pub const MAX_BYTES: usize = 4095;
    pub const MAX_COMPONENT_BYTES: usize = 255;

    pub fn root() -> Self {
        Self(b"/".to_vec())
    }

    /// Where code runs and files are kept unless asked otherwise.
    pub fn workspace() -> Self {
        Self(b"/workspace".to_vec())
    }

    /// Where everybody may write, wherever programs start.
    pub fn scratch() -> Self {
        Self(b"/tmp".to_vec())
    }

    /// A path as a person or a model writes it: relative ones start at `base`, `.` and doubled slashes vanish.
    ///
    /// `..` is refused instead of resolved: what it means depends on links that only the sandbox can see.
    pub fn resolve(base: &GuestPath, path: &[u8]) -> Result<Self> {
        if path.is_empty() {
            return Err(Error::invalid_input("a path may not be empty"));
        }
        let mut joined = if path[0] == b'/' { Self::root() } else { base.clone() };
        for component in path.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    return Err(Error::invalid_input(format!("{:?} goes up with `..`", Shown(path)))
                        .with_hint("write the path from the root of the sandbox, for example /workspace/data.csv"));
                }
                name => joined.push(name)?,
            }
        }
        Ok(joined)
    }

    pub fn join(&self, name: &[u8]) -> Result<Self> {
        Self::resolve(self, name)
    }

    fn push(&mut self, name: &[u8]) -> Result<()> {
        if name.contains(&0) {
            return Err(Error::invalid_input("a path may not contain a NUL byte"));
        }
        if name.len() > Self::MAX_COMPONENT_BYTES {
            return Err(Error::invalid_input(format!(
                "a file name may have {} bytes, this one has {}",
                Self::MAX_COMPONENT_BYTES,
                name.len()
            )));
        }
        if self.0.len() > 1 {
            self.0.push(b'/');
        }
        self.0.extend_from_slice(name);
        if self.0.len() > Self::MAX_BYTES {
            return Err(Error::invalid_input(format!("a path may have {} bytes", Self::MAX_BYTES)));
        }
        Ok(())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_root(&self) -> bool {
        self.0 == b"/"
    }

    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|component| !component.is_empty())
    }

    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().last()
    }

    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        match self.0.iter().rposition(|&byte| byte == b'/') {
            None | Some(0) => Some(Self::root()),
            Some(end) => Some(Self(self.0[..end].to_vec())),
        }
    }

    /// Compared by component: `/data` contains `/data/x` but not `/database`.
    pub fn contains(&self, other: &GuestPath) -> bool {
        let mut theirs = other.components();
        self.components().all(|component| theirs.next() == Some(component))
    }

    /// The path with bytes that are not UTF-8 replaced, for showing.
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

/// A path as somebody wrote it, before it is known where relative ones start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AskedPath(Vec<u8>);

impl AskedPath {
    /// What no work directory could make right is refused.
    pub fn new(path: &[u8]) -> Result<Self> {
        GuestPath::resolve(&GuestPath::root(), path)?;
        Ok(Self(path.to_owned()))
    }

    pub fn below(&self, work_directory: &GuestPath) -> Result<GuestPath> {
        GuestPath::resolve(work_directory, &self.0)
    }
}

impl From<GuestPath> for AskedPath {
    fn from(path: GuestPath) -> Self {
        Self(path.0)
    }
}

impl FromStr for AskedPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text.as_bytes())
    }
}

impl FromStr for GuestPath {
    type Err = Error;

    /// Relative paths start in [`GuestPath::workspace`]; where a sandbox may work elsewhere, see [`AskedPath`].
    fn from_str(text: &str) -> Result<Self> {
        Self::resolve(&Self::workspace(), text.as_bytes())
    }
}

struct Shown<'a>(&'a [u8]);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0[..self.0.len().min(256)].escape_ascii())
    }
}

impl fmt::Debug for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.0).fmt(f)
    }
}

/// Control characters and invalid UTF-8 are escaped: a file name must not be able to drive a terminal.
impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character.is_control() {
                    write!(f, "{}", character.escape_default())?;
                } else {
                    write!(f, "{character}")?;
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> GuestPath {
        text.parse().unwrap()
    }

    #[test]
    fn relative_paths_start_in_the_workspace() {
        assert_eq!(path("a//./b/").as_bytes(), b"/workspace/a/b");
        assert_eq!(path("/etc/hosts").as_bytes(), b"/etc/hosts");
        assert_eq!(path("/").as_bytes(), b"/");
        assert_eq!(path(".").as_bytes(), b"/workspace");
    }

    #[test]
    fn what_could_lead_outside_is_refused() {
        for text in ["", "..", "a/../b", "/..", "a\0b", "../../etc/passwd"] {
            assert!(text.parse::<GuestPath>().is_err(), "{text:?} was taken");
        }
        assert!("x".repeat(256).parse::<GuestPath>().is_err());
        assert!("y/".repeat(3000).parse::<GuestPath>().is_err());
    }

    #[test]
    fn odd_but_legal_names_keep_their_bytes() {
        for name in ["...", "~", "-rf", "a b", "ｅｖｉｌ／..", "con", "a\\..\\b"] {
            assert_eq!(path(name).file_name(), name.rsplit('/').next().map(str::as_bytes));
        }
        let raw = GuestPath::workspace().join(b"\xff\n").unwrap();
        assert_eq!(raw.to_string(), "/workspace/\\xff\\n");
    }

    #[test]
    fn containment_goes_by_component() {
        assert!(path("/data").contains(&path("/data/x")));
        assert!(path("/data").contains(&path("/data")));
        assert!(!path("/data").contains(&path("/database")));
        assert!(path("/").contains(&path("/x")));
    }

    #[test]
    fn parents_end_at_the_root() {
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(path("/")));
        assert_eq!(path("/").parent(), None);
    }
}
