//! Directories of the engine: what must survive a reboot, and what must not.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sandbox::{Error, InstanceId, Result};

use crate::cgroup::{self, Place};

/// Where things are. All of it is closed to other users.
#[derive(Clone, Debug)]
pub struct Places {
    /// Records of persistent sandboxes.
    pub records: PathBuf,
    pub skeletons: PathBuf,
    /// Process 1's program.
    pub programs: PathBuf,
    /// The store of images.
    pub images: PathBuf,
    /// What was found out about the host's own tree, and the parts of it that are made up.
    pub host: PathBuf,
    pub state: PathBuf,
    /// Sockets of persistent sandboxes. Not below the state directory, whose path may be too long for a socket.
    pub sockets: PathBuf,
    pub id_locks: PathBuf,
    instances: PathBuf,
}

impl Places {
    pub fn prepare(state: &Path) -> Result<Self> {
        let runtime = runtime_directory();
        let places = Self {
            records: state.join("native"),
            skeletons: state.join("skeletons"),
            programs: state.join("programs"),
            images: state.join("images"),
            host: state.join("host"),
            state: state.to_owned(),
            sockets: runtime.join("sockets"),
            id_locks: runtime.join("ids"),
            instances: runtime.join("instances"),
        };
        private_directory(state)?;
        private_directory(&runtime)?;
        for directory in [&places.records, &places.skeletons, &places.sockets, &places.id_locks, &places.instances] {
            private_directory(directory)?;
        }
        Ok(places)
    }

    /// Held by a living engine; free again however it ended.
    pub fn lock_instance(&self, instance: &InstanceId) -> io::Result<File> {
        let path = self.instance_lock(instance);
        loop {
            let file = open_lock(&path)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            // Another engine that sweeps takes a lock that nobody holds yet for one of the dead, and removes it.
            let is_same = |found: &fs::Metadata, ours: &fs::Metadata| found.ino() == ours.ino();
            if fs::metadata(&path).is_ok_and(|found| file.metadata().is_ok_and(|ours| is_same(&found, &ours))) {
                return Ok(file);
            }
        }
    }

    pub fn unlock_instance(&self, instance: &InstanceId) {
        let _ = fs::remove_file(self.instance_lock(instance));
    }

    pub fn instance_lock(&self, instance: &InstanceId) -> PathBuf {
        self.instances.join(instance.as_str())
    }

    /// The lock of an engine that is no more, held, so that nobody else takes it for theirs; `None` while it is held.
    fn of_the_dead(&self, instance: &str) -> Option<File> {
        let file = OpenOptions::new().write(true).open(self.instances.join(instance)).ok()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).ok().map(|()| file)
    }

    fn is_alive(&self, instance: &str) -> bool {
        let path = self.instances.join(instance);
        path.exists() && self.of_the_dead(instance).is_none()
    }

    /// Remove what engines that are no more have left: groups without processes, and their locks. A group that still has
    /// processes belongs to a persistent sandbox and refuses to go.
    pub fn sweep(&self, groups: &[Place]) {
        for parent in groups.iter().map(|place| &place.parent) {
            for (name, group) in subdirectories(parent) {
                let Some(instance) = name.strip_prefix("sandpen-in-") else { continue };
                if self.is_alive(&format!("in-{instance}")) {
                    continue;
                }
                for (_, leaf) in subdirectories(&group) {
                    let _ = fs::remove_dir(leaf);
                }
                let _ = fs::remove_dir(group);
            }
        }
        for entry in fs::read_dir(&self.instances).into_iter().flatten().flatten() {
            let Some(_held) = entry.file_name().to_str().and_then(|name| self.of_the_dead(name)) else { continue };
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn subdirectories(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect()
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Short, emptied by a reboot, and ours.
fn runtime_directory() -> PathBuf {
    let user = rustix::process::geteuid();
    let system = PathBuf::from("/run/sandpen");
    // Under Docker, root may not be the one who owns /run.
    if user.is_root() && private_directory(&system).is_ok() {
        return system;
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(directory) if directory.is_absolute() && directory.is_dir() => directory.join("sandpen"),
        _ => std::env::temp_dir().join(format!("sandpen-{}", user.as_raw())),
    }
}

/// Make a directory that only we can enter. One that somebody else put there, in a place where anybody may, is refused.
fn private_directory(path: &Path) -> Result<()> {
    let failed = |cause: io::Error| {
        Error::unavailable("a directory for the engine's state cannot be used")
            .with_hint("choose another one by --state-dir")
            .with_cause(format!("{}: {cause}", path.display()))
    };
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(failed(io::Error::other("it is not a directory of ours alone")));
    }
    Ok(())
}

/// Remove the groups of a sandbox whose processes are gone, and then their parents if these were the last.
pub fn clear_groups(groups: &[PathBuf]) {
    for group in groups {
        let _ = cgroup::remove(group);
        if let Some(instance) = group.parent() {
            let _ = fs::remove_dir(instance);
        }
    }
}
