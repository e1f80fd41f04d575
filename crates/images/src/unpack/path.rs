//! Paths in archives: what they may be, and how they are shown.

use std::fmt;

use super::Limits;
use crate::confined::Name;
use crate::error::{Error, Result};

/// A path in an archive, component by component. Empty stands for the root itself.
pub fn parse<'a>(path: &'a [u8], limits: &Limits) -> Result<Vec<Name<'a>>> {
    let refuse = |why: &str| Err(Error::Refused(format!("{} {why}", Shown(path))));
    if path.len() > limits.path_bytes {
        return Err(Error::LimitExceeded(format!("a path has {} bytes", path.len())));
    }
    if path.first() == Some(&b'/') {
        return refuse("is an absolute path");
    }
    let mut names = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return refuse("goes up"),
            name => match Name::new(name) {
                Some(name) => names.push(name),
                None => return refuse("is not a path"),
            },
        }
    }
    if names.len() > limits.depth {
        return Err(Error::LimitExceeded(format!("a path is {} directories deep", names.len())));
    }
    Ok(names)
}

/// Where an entry goes.
pub struct Place<'a> {
    pub path: &'a [u8],
    pub parents: &'a [Name<'a>],
    pub name: Name<'a>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Shown(self.path), f)
    }
}

/// A name from an archive, shortened, and unable to drive a terminal.
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0[..self.0.len().min(128)].escape_ascii())
    }
}

/// Whether a link that lies `depth` directories below the top can only lead to what is below the top.
///
/// `..` may only stand at the beginning, where it goes up real directories; after a name it would go up from wherever
/// that name leads, and `a/..` is not `.` if `a` is a link itself.
pub fn stays_inside(target: &[u8], depth: usize) -> bool {
    let mut components = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).peekable();
    let mut up = 0;
    while components.next_if(|part| *part == b"..").is_some() {
        up += 1;
    }
    target.first() != Some(&b'/') && up <= depth && components.all(|part| part != b"..")
}
