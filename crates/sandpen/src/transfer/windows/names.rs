//! Names of files as bytes, as sandboxes have them, and as Windows has them, which means something by many of them.

use std::ffi::{OsStr, OsString};

use sandbox::{Error, Result};

/// Names that are devices, whatever directory they are in and whatever ending they have.
const DEVICES: [&str; 8] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$", "COM0"];

/// A name that a sandbox has chosen, as a single one of this machine. One that would mean something else here is refused:
/// a stream of another file, a device, a path.
pub fn here(name: &[u8]) -> Result<OsString> {
    let refused = || {
        Error::unsupported("a file of the sandbox has a name that Windows cannot give to one")
            .with_hint("rename it, or pack the directory into an archive in the sandbox and copy that")
    };
    let text = std::str::from_utf8(name).map_err(|_| refused())?;
    let is_special = text.chars().any(|letter| letter < ' ' || r#"\/:*?"<>|"#.contains(letter));
    let stem = text.split('.').next().unwrap_or_default().trim_end_matches(' ').to_ascii_uppercase();
    let is_numbered = (stem.starts_with("COM") || stem.starts_with("LPT")) && stem.chars().count() == 4;
    if text.is_empty() || is_special || text.ends_with(['.', ' ']) || is_numbered || DEVICES.contains(&stem.as_str()) {
        return Err(refused());
    }
    Ok(text.into())
}

/// Where a link of a sandbox leads; none is made here.
pub fn target(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// A name or path of this machine, as a sandbox gets it.
pub fn inside(name: &OsStr) -> Result<&[u8]> {
    let text = name.to_str().ok_or_else(|| Error::invalid_input(format!("{} is not text", name.display())))?;
    Ok(text.as_bytes())
}

/// At the first colon that does not belong to a drive.
pub fn split(text: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let text = text.to_str()?;
    let colon = text.match_indices(':').map(|(at, _)| at).find(|at| !is_of_drive(text, *at))?;
    Some((OsStr::new(&text[..colon]), OsStr::new(&text[colon + 1..])))
}

/// At the last colon that does not belong to a drive.
pub fn split_last(text: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let text = text.to_str()?;
    let colon = text.rmatch_indices(':').map(|(at, _)| at).find(|at| !is_of_drive(text, *at))?;
    Some((OsStr::new(&text[..colon]), OsStr::new(&text[colon + 1..])))
}

/// `C:\…` and `C:/…`, at the beginning or behind a colon.
fn is_of_drive(text: &str, colon: usize) -> bool {
    let (before, behind) = (&text[..colon], &text[colon + 1..]);
    let start = before.rfind(':').map_or(0, |at| at + 1);
    let letter = &before[start..];
    letter.len() == 1
        && letter.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && behind.starts_with(['\\', '/'])
}
