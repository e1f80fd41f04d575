//! Copies of a file as it was before we changed it. The first is never removed, and of the others a few are kept.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::{Draft, beside, owner};

const ENDING: &str = "sandpen-backup";

/// How many there may be besides the first.
const MOST: usize = 9;

/// The copy that holds these bytes now, which may be one that was there.
pub fn make(path: &Path, bytes: &[u8], metadata: &Metadata) -> io::Result<PathBuf> {
    let first = beside(path, ENDING);
    let later = later(path)?;
    let newest = later.last().map_or(&first, |(_, newest)| newest);
    if fs::read(newest).is_ok_and(|kept| kept == bytes) {
        return Ok(newest.clone());
    }
    let next = later.last().map_or(2, |(number, _)| number.saturating_add(1));
    let place = if first.is_symlink() || first.exists() { beside(path, &format!("{ENDING}-{next}")) } else { first };
    let copy = Draft(place.clone());
    let file = copy.write(bytes)?;
    fs::set_permissions(&place, metadata.permissions())?;
    owner::keep(&place, metadata)?;
    file.sync_all()?;
    copy.keep();
    for (_, oldest) in later.iter().take((later.len() + 1).saturating_sub(MOST)) {
        fs::remove_file(oldest)?;
    }
    Ok(place)
}

/// Those that have a number, oldest first.
fn later(path: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let beginning = beside(path, &format!("{ENDING}-"));
    let Some((directory, beginning)) = beginning.parent().zip(beginning.file_name()) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().zip(beginning.to_str()).and_then(|(name, beginning)| name.strip_prefix(beginning));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, directory.join(&name)));
        }
    }
    found.sort_unstable();
    Ok(found)
}
