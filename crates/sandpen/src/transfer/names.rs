//! Names of files as bytes, as sandboxes have them, and as this machine has them: the same thing on Unix.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use sandbox::{Error, Result};

/// A name that a sandbox has chosen, as a single one of this machine.
pub fn here(name: &[u8]) -> Result<OsString> {
    if name.contains(&0) || name.contains(&b'/') || name == b".." || name == b"." {
        return Err(Error::internal("the sandbox sent a name that leads outside of the directory"));
    }
    Ok(OsStr::from_bytes(name).to_owned())
}

/// Where a link of a sandbox leads.
pub fn target(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_owned()
}

/// A name or path of this machine, as a sandbox gets it.
pub fn inside(name: &OsStr) -> Result<&[u8]> {
    Ok(name.as_bytes())
}

/// At the first colon.
pub fn split(text: &OsStr) -> Option<(&OsStr, &OsStr)> {
    cut(text, text.as_bytes().iter().position(|&byte| byte == b':')?)
}

/// At the last colon.
pub fn split_last(text: &OsStr) -> Option<(&OsStr, &OsStr)> {
    cut(text, text.as_bytes().iter().rposition(|&byte| byte == b':')?)
}

fn cut(text: &OsStr, colon: usize) -> Option<(&OsStr, &OsStr)> {
    let bytes = text.as_bytes();
    Some((OsStr::from_bytes(&bytes[..colon]), OsStr::from_bytes(&bytes[colon + 1..])))
}
