//! Other people's configuration on disk: read with care, backed up, and replaced as a whole or not at all.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sandbox::system::{self, file_of_another, private_directory, private_file};
use sandbox::{Error, Result};

use crate::{output, random};

mod backup;
#[cfg_attr(windows, path = "file/windows.rs")]
mod owner;

const MAX_BYTES: u64 = 64 << 20;

/// Editors on Windows put it before the text, and look for it again.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A configuration as it was when we looked.
#[derive(Debug)]
pub struct Configuration {
    /// As its client calls it.
    path: PathBuf,
    /// Behind all links, which dotfile managers put in its place.
    target: PathBuf,
    found: Option<Found>,
}

#[derive(Debug)]
struct Found {
    metadata: Metadata,
    text: String,
}

/// What came of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    Done {
        backup: Option<PathBuf>,
    },
    /// Somebody else was faster, and nothing was changed.
    Changed,
}

impl Configuration {
    pub fn read(path: &Path) -> Result<Self> {
        let unreadable = |cause: io::Error| {
            Error::unavailable(format!("{} cannot be read: {}", path.display(), output::reason(&cause)))
                .with_cause(cause)
        };
        let target = target_of(path).map_err(unreadable)?;
        let file = match file_of_another().read(true).open(&target) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if target.is_symlink() {
                    return Err(Error::wrong_state(format!("{} is a link to nothing", path.display()))
                        .with_hint("remove the link, or make what it leads to"));
                }
                return Ok(Self { path: path.to_owned(), target, found: None });
            }
            Err(error) => return Err(unreadable(error)),
        };
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Error::invalid_input(format!("{} is not a file", path.display())));
        }
        let mut bytes = Vec::new();
        (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Error::invalid_input(format!("{} is too large to be a configuration", path.display())));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
            Error::invalid_input(format!("{} is not UTF-8 text, from line {line} on", path.display()))
                .with_hint("nothing was changed; save the file as UTF-8 first")
        })?;
        Ok(Self { path: path.to_owned(), target, found: Some(Found { metadata, text }) })
    }

    /// What it says; nothing, if there is no file.
    pub fn text(&self) -> &str {
        let text = self.found.as_ref().map_or("", |found| found.text.as_str());
        text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
    }

    /// Replaces the text, unless somebody else has done so since it was read.
    pub fn write(&self, text: &str) -> Result<Written> {
        let unwritable = |cause: io::Error| {
            Error::unavailable(format!("{} cannot be written: {}", self.path.display(), output::reason(&cause)))
                .with_hint("nothing was changed; sandpen install --print shows what to put there by hand")
                .with_cause(cause)
        };
        if self.found.as_ref().is_some_and(|found| found.metadata.permissions().readonly()) {
            return Err(Error::denied(format!("{} is read-only", self.path.display()))
                .with_hint("another program may look after it; sandpen install --print shows what to put there"));
        }
        if self.found.as_ref().is_some_and(|found| owner::names(&found.metadata) > 1) {
            return Err(Error::unsupported(format!("{} is the same file under several names", self.path.display()))
                .with_hint(
                    "the others would keep the old text; sandpen install --print shows what to put there by hand",
                ));
        }
        let mark = self.found.as_ref().filter(|found| found.text.starts_with(BYTE_ORDER_MARK));
        let bytes = mark.map(|_| BYTE_ORDER_MARK).into_iter().collect::<String>() + text;
        let digits = random::digits()?;
        let replaced = self.prepare(bytes.as_bytes(), &digits[..8]).and_then(|prepared| match prepared {
            Some(prepared) => self.finish(prepared),
            None => Ok(Written::Changed),
        });
        replaced.map_err(unwritable)
    }

    /// All that takes time; `None` if somebody else was faster.
    fn prepare(&self, bytes: &[u8], digits: &str) -> io::Result<Option<Prepared>> {
        let directory = self.target.parent().unwrap_or(Path::new("."));
        make_directory(directory)?;
        let draft = Draft(beside(&self.target, &format!("sandpen-{digits}")));
        let file = draft.write(bytes)?;
        match &self.found {
            Some(found) => {
                fs::set_permissions(&draft.0, found.metadata.permissions())?;
                owner::keep(&draft.0, &found.metadata)?;
            }
            // Whoever is root in somebody's home makes files for that somebody.
            None => owner::keep(&draft.0, &fs::metadata(directory)?)?,
        }
        file.sync_all()?;
        drop(file);
        if !self.is_as_it_was()? {
            return Ok(None);
        }
        let backup = match &self.found {
            Some(found) => Some(backup::make(&self.path, found.text.as_bytes(), &found.metadata)?),
            None => None,
        };
        Ok(Some(Prepared { draft, backup }))
    }

    /// The copy was written to the disk meanwhile, which takes long enough for somebody else to be faster.
    fn finish(&self, Prepared { draft, backup }: Prepared) -> io::Result<Written> {
        if !self.is_as_it_was()? {
            return Ok(Written::Changed);
        }
        fs::rename(&draft.0, &self.target)?;
        system::sync_directory(self.target.parent().unwrap_or(Path::new(".")))?;
        Ok(Written::Done { backup })
    }

    fn is_as_it_was(&self) -> io::Result<bool> {
        match (fs::read(&self.target), &self.found) {
            (Ok(bytes), Some(found)) => Ok(bytes == found.text.as_bytes()),
            (Ok(_), None) => Ok(false),
            (Err(error), found) if error.kind() == io::ErrorKind::NotFound => Ok(found.is_none()),
            (Err(error), _) => Err(error),
        }
    }
}

/// A new text that only has to take the place of the old one.
struct Prepared {
    draft: Draft,
    backup: Option<PathBuf>,
}

/// A file in the making, which is gone unless it got its name.
struct Draft(PathBuf);

impl Draft {
    fn write(&self, bytes: &[u8]) -> io::Result<File> {
        let mut file = private_file().write(true).create_new(true).open(&self.0)?;
        file.write_all(bytes)?;
        Ok(file)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Where a path leads: links are followed, and a name that is not there stands for itself.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Ok(target) => Ok(target),
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path),
        Err(error) => Err(error),
    }
}

/// Those that are missing belong to whom the first that is there does.
fn make_directory(directory: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = directory.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    let present = directory.ancestors().find(|ancestor| ancestor.exists());
    private_directory().create(directory)?;
    if let Some(present) = present {
        let metadata = fs::metadata(present)?;
        missing.into_iter().try_for_each(|made| owner::keep(made, &metadata))?;
    }
    Ok(())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
