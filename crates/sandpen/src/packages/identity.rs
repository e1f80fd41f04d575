//! What tells one state of an image from every other.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use images::{Reference, Store};
use sandbox::{Error, Image, Owner, Result};

use crate::commands::image::image_error;

/// Where an image's programs are looked for first, and those that packages depend on.
const DIRECTORIES: [&str; 3] = ["usr/local/bin", "usr/bin", "bin"];
const PROGRAMS: [&str; 6] = ["python3", "python", "uv", "node", "npm", "pip3"];

pub fn identity(state_dir: &Path, owner: &Owner, image: &Image) -> Result<String> {
    match image {
        Image::Host => Ok(host()),
        // Links of a tree of somebody else's lead where they like; here they are only looked at.
        Image::Directory(path) => {
            let directories: Vec<PathBuf> = DIRECTORIES.iter().map(|directory| path.join(directory)).collect();
            Ok(format!("directory {}\n{}", path.display(), programs(&directories, Links::Read)))
        }
        Image::Archive(path) => Ok(format!("archive {}\n{}", path.display(), seen(path, Links::Follow))),
        Image::Named(name) => {
            let reference = name.as_str().parse().map_err(image_error)?;
            stored(state_dir, &reference).map(|digest| format!("image {digest}"))
        }
        Image::Saved(name) => {
            let reference = images::local::saved(owner.as_str(), name.as_str()).map_err(image_error)?;
            // It may lie over the host's own tree, and does not say so here.
            stored(state_dir, &reference).map(|digest| format!("saved {owner} {digest}\n{}", host()))
        }
    }
}

fn stored(state_dir: &Path, reference: &Reference) -> Result<String> {
    let missing = || {
        Error::not_found("the image that packages are for is not here").with_hint("sandpen image ls shows what is here")
    };
    let directory = state_dir.join("images");
    if !directory.is_dir() {
        return Err(missing());
    }
    let found = Store::open(&directory).and_then(|store| store.find(reference)).map_err(image_error)?;
    found.map(|named| named.manifest.digest.qualified()).ok_or_else(missing)
}

#[derive(Clone, Copy)]
enum Links {
    Follow,
    Read,
}

fn host() -> String {
    format!("host\n{}", programs(&on_path(std::env::var_os("PATH")), Links::Follow))
}

/// The host's tree has interpreters of our own search path too, wherever they live.
fn on_path(variable: Option<OsString>) -> Vec<PathBuf> {
    let own: Vec<PathBuf> = variable.as_deref().map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let usual = DIRECTORIES.iter().map(|directory| Path::new("/").join(directory));
    own.into_iter().filter(|directory| directory.is_absolute()).chain(usual).collect()
}

fn programs(directories: &[PathBuf], links: Links) -> String {
    let mut text = String::new();
    for directory in directories {
        for program in PROGRAMS {
            let path = directory.join(program);
            let seen = seen(&path, links);
            if !seen.is_empty() {
                let _ = writeln!(text, "{} {seen}", path.display());
            }
        }
    }
    text
}

/// Where it really is, and what changes when it is replaced.
fn seen(path: &Path, links: Links) -> String {
    let (target, metadata) = match links {
        Links::Follow => match path.canonicalize() {
            Ok(target) => {
                let metadata = target.metadata();
                (target, metadata)
            }
            Err(_) => return String::new(),
        },
        Links::Read => {
            let target = std::fs::read_link(path).unwrap_or_else(|_| PathBuf::from("."));
            // What `python3` beside it usually is: a file of the same directory.
            let beside = path.parent().filter(|_| target.components().count() == 1).map(|parent| parent.join(&target));
            let metadata = beside.filter(|_| target != Path::new(".")).unwrap_or_else(|| path.to_owned());
            (target, metadata.symlink_metadata())
        }
    };
    match metadata {
        Ok(metadata) => {
            let (mtime, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
            format!("{} {mtime}.{nanoseconds} {} {}", target.display(), metadata.size(), metadata.ino())
        }
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_interpreter_is_another_image() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("usr/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("python3.11"), "one").unwrap();
        std::os::unix::fs::symlink("python3.11", bin.join("python3")).unwrap();
        let image = Image::Directory(root.path().to_owned());
        let identity = || identity(root.path(), &Owner::local(), &image).unwrap();
        let before = identity();
        assert_eq!(identity(), before);
        std::fs::write(bin.join("python3.11"), "another").unwrap();
        let upgraded = identity();
        assert_ne!(upgraded, before);
        std::fs::write(bin.join("python3.12"), "another").unwrap();
        std::fs::remove_file(bin.join("python3")).unwrap();
        std::os::unix::fs::symlink("python3.12", bin.join("python3")).unwrap();
        assert_ne!(identity(), upgraded);
    }

    #[test]
    fn an_image_that_is_not_here_is_missed() {
        let state = tempfile::tempdir().unwrap();
        let error = identity(state.path(), &Owner::local(), &"debian:12".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), sandbox::ErrorKind::NotFound);
    }

    #[test]
    fn this_machine_has_an_identity_that_stays() {
        let of = || identity(Path::new("/nowhere"), &Owner::local(), &Image::Host).unwrap();
        assert_eq!(of(), of());
    }
}
