//! A directory of the host for one export, gone with it.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sandbox::{Error, ErrorKind, Result};
use tokio::io::AsyncRead;

use crate::random;

/// Readable by its maker alone, until it is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn new(parent: &Path) -> Result<Self> {
        let path = parent.join(random::digits()?);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(cannot_write)?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write_dockerfile(&self, text: &str) -> Result<()> {
        std::fs::write(self.path.join("Dockerfile"), text).map_err(cannot_write)
    }

    /// What was there for a while and is not to be kept.
    pub fn leave_out(&self, name: &str) {
        let _ = std::fs::remove_dir_all(self.path.join(name));
    }

    /// To a place that was not there, on whichever file system it is.
    pub fn move_to(self, place: &Path) -> Result<()> {
        if place.symlink_metadata().is_ok() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} is there already", place.display()))
                .with_hint("name a directory that is not there yet"));
        }
        // From here on it is whoever's who asked for it.
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(0o755)).map_err(cannot_write)?;
        match std::fs::rename(&self.path, place) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                copy(&self.path, place).map_err(cannot_write)
            }
            Err(error) => Err(cannot_write(error)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After a move there is nothing to remove.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// All of it as a tar stream. It is packed to a file without a name first, because readers are slow and the directory ends
/// with this call.
pub async fn archive(scratch: Scratch) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
    let packing = tokio::task::spawn_blocking(move || -> io::Result<std::fs::File> {
        let place = scratch.path.with_extension("tar");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&place)?;
        std::fs::remove_file(&place)?;
        let mut builder = tar::Builder::new(file);
        builder.follow_symlinks(false);
        builder.append_dir_all(".", &scratch.path)?;
        let mut file = builder.into_inner()?;
        io::Seek::rewind(&mut file)?;
        Ok(file)
    });
    let packed = packing.await.map_err(|cause| Error::internal("packing ended unexpectedly").with_cause(cause))?;
    Ok(Box::new(tokio::fs::File::from_std(packed.map_err(cannot_write)?)))
}

/// A context has directories and regular files only.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
            let times = std::fs::FileTimes::new().set_modified(entry.metadata()?.modified()?);
            std::fs::File::options().append(true).open(&target).and_then(|file| file.set_times(times)).or_else(
                // One that nobody may write to keeps the time of its copy.
                |error| if error.kind() == io::ErrorKind::PermissionDenied { Ok(()) } else { Err(error) },
            )?;
        }
    }
    std::fs::set_permissions(to, from.metadata()?.permissions())
}

fn cannot_write(cause: io::Error) -> Error {
    Error::unavailable(format!("the export cannot be written: {}", crate::output::reason(&cause))).with_cause(cause)
}
