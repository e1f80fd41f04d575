//! The small tree that every root starts from: made-up system files, links and mount points, written once and shared
//! read-only by all sandboxes of an image.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sandbox::Role;
use serde::{Deserialize, Serialize};

use crate::ids::ImageIds;
use crate::image::{Belongings, Bind, Fill, RootTree, User, WorkDirectory};
use crate::{collect, plan};

/// Where the parts of a sandbox's root are on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootLayout {
    pub skeleton: PathBuf,
    /// The image's own trees, below the skeleton. The highest first.
    pub lowers: Vec<PathBuf>,
    /// What the writable layer begins with.
    pub fill: Vec<Fill>,
    /// What of the image belongs to the user, where that has to be copied.
    #[serde(default)]
    pub belongings: Option<Belongings>,
    /// Modes that its first directories have had before.
    pub modes: Vec<(String, u32)>,
    pub binds: Vec<Bind>,
    /// Kept trees and where they are seen.
    pub attachments: Vec<Bind>,
    /// The directories that the image has in its root.
    pub top: Vec<String>,
    /// Whose the image's files are on disk, where they have owners and are an ordinary user's.
    #[serde(default)]
    pub image_ids: Option<ImageIds>,
    /// Whom programs run as.
    pub user: User,
    pub search_path: String,
    pub environment: Vec<(String, String)>,
    #[serde(default)]
    pub work_directory: WorkDirectory,
}

/// Sets apart what several engines in one process are writing at once.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// Write the skeleton of a tree, unless an earlier process has.
pub fn prepare(tree: RootTree, directory: &Path, work_directory: WorkDirectory, role: Role) -> io::Result<RootLayout> {
    // Over an image it is in the writable layer from the start, and here it would cover what the image has above it.
    let made = work_directory.made.iter().filter(|_| tree.lowers.is_empty()).map(|made| made.path.as_str());
    let mount_points: Vec<String> = plan::mount_points(role).chain(made).map(str::to_owned).collect();
    let mut hasher = DefaultHasher::new();
    (&tree, &mount_points).hash(&mut hasher);
    let skeleton = directory.join(format!("{:016x}", hasher.finish()));
    collect::keep(&skeleton);
    if !skeleton.exists() {
        let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        let unfinished = directory.join(format!("new-{}-{attempt}", std::process::id()));
        write(&tree, &unfinished, &mount_points)?;
        if let Err(error) = fs::rename(&unfinished, &skeleton) {
            fs::remove_dir_all(&unfinished)?;
            // Another process was faster; what it wrote is the same.
            if !skeleton.exists() {
                return Err(error);
            }
        }
    }
    let RootTree { lowers, fill, belongings, modes, binds, image_ids, top, user, search_path, environment, .. } = tree;
    Ok(RootLayout {
        skeleton,
        lowers,
        fill,
        belongings,
        modes,
        binds,
        attachments: Vec::new(),
        top,
        image_ids,
        user,
        search_path,
        environment,
        work_directory,
    })
}

fn write(tree: &RootTree, top: &Path, mount_points: &[String]) -> io::Result<()> {
    make_directory(top)?;
    let directories = tree.directories.iter().map(|path| path.to_string_lossy().into_owned());
    for path in mount_points.iter().cloned().chain(directories) {
        make_directory(&below(top, &path))?;
    }
    for (path, target) in &tree.links {
        let path = below(top, &path.to_string_lossy());
        make_parent(&path)?;
        symlink(target, path)?;
    }
    for file in &tree.files {
        let path = below(top, &file.path.to_string_lossy());
        make_parent(&path)?;
        fs::write(&path, &file.contents)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode & 0o777))?;
    }
    for bind in &tree.binds {
        let path = below(top, &bind.target.to_string_lossy());
        if bind.source.is_dir() {
            make_directory(&path)?;
        } else {
            make_parent(&path)?;
            fs::write(&path, "")?;
        }
    }
    Ok(())
}

fn below(top: &Path, path: &str) -> PathBuf {
    top.join(path.trim_start_matches('/'))
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), make_directory)
}

/// Open to all, whatever the umask: the sandbox's user reads it as a stranger.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    make_parent(path)?;
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}
