//! The engine's own directory: who this installation is, which of its processes live, and what is kept of its sandboxes.
//!
//! ```text
//! docker/installation         who we are, on every daemon
//! docker/instances/           a lock of each process
//! docker/daemons/…/           what belongs to sandboxes of one daemon
//! ```
//!
//! Several installations may use one daemon, and must leave each other's containers alone. Processes of one installation
//! clear away what the dead among them left; a lock that is held says that its holder lives. One installation may use several
//! daemons as well, and each of them knows of its own sandboxes only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::{Error, ErrorKind, InstanceId, Result};

use crate::keepsakes::Keepsakes;
use crate::random;

/// Whoever looks whether an engine lives holds its lock for a moment. One that is held longer is somebody's.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub struct Places {
    pub installation: String,
    pub keepsakes: Keepsakes,
    /// Of each sandbox, in a directory that is called as it is.
    pub checkpoints: PathBuf,
    instances: PathBuf,
}

/// Held by a living engine; free again however it ended.
#[derive(Debug)]
pub struct InstanceLock {
    path: PathBuf,
    _held: File,
}

impl Places {
    pub fn prepare(state: &Path, daemon: &str) -> Result<Self> {
        let directory = state.join("docker");
        let instances = directory.join("instances");
        let unusable = |cause: io::Error| {
            Error::unavailable("a directory for the engine's state cannot be used")
                .with_hint("choose another one by --state-dir")
                .with_cause(format!("{}: {cause}", directory.display()))
        };
        fs::create_dir_all(&instances).map_err(unusable)?;
        close_to_others(&directory).map_err(unusable)?;
        let installation = installation(&directory, &random::text(8)?).map_err(unusable)?;
        let kept = directory.join("daemons").join(daemon);
        let keepsakes = Keepsakes::prepare(&kept).map_err(unusable)?;
        let checkpoints = kept.join("checkpoints");
        fs::create_dir_all(&checkpoints).map_err(unusable)?;
        Ok(Self { installation, keepsakes, checkpoints, instances })
    }

    pub fn lock(&self, instance: &InstanceId) -> Result<InstanceLock> {
        let path = self.instances.join(instance.as_str());
        let taken = |cause: String| {
            Error::new(ErrorKind::AlreadyExists, "another engine runs under this instance id").with_cause(cause)
        };
        let mut attempts_left = ATTEMPTS;
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
            let file = file.map_err(|cause| taken(cause.to_string()))?;
            let locked = file.try_lock();
            // Another engine that sweeps takes a lock that nobody holds yet for one of the dead, and removes it.
            if locked.is_ok() && is_at(&file, &path) {
                return Ok(InstanceLock { path, _held: file });
            }
            attempts_left -= 1;
            if attempts_left == 0 {
                return Err(taken(
                    locked.err().map_or("it was removed again and again".to_owned(), |cause| cause.to_string()),
                ));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// One whose lock is not there has ended in good order, or was swept after its death. Where that cannot be found out, one
    /// lives: what a living engine has must not be removed.
    pub fn is_alive(&self, instance: &str) -> bool {
        if instance.parse::<InstanceId>().is_err() {
            return false;
        }
        match File::open(self.instances.join(instance)) {
            Ok(file) => file.try_lock_shared().is_err(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Remove the locks of the dead. Called when nothing of theirs is left. Each is held meanwhile, so that nobody takes it
    /// for theirs.
    pub fn forget_the_dead(&self) {
        for entry in fs::read_dir(&self.instances).into_iter().flatten().flatten() {
            let Ok(file) = File::open(entry.path()) else { continue };
            if file.try_lock().is_ok() && is_at(&file, &entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Written whole under another name first: two processes may begin at once, and the first wins.
fn installation(directory: &Path, new: &str) -> io::Result<String> {
    let path = directory.join("installation");
    if let Ok(found) = fs::read_to_string(&path) {
        return checked(found);
    }
    let draft = directory.join(format!("installation-{new}"));
    File::create_new(&draft).and_then(|mut file| file.write_all(new.as_bytes()))?;
    let linked = fs::hard_link(&draft, &path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => checked(fs::read_to_string(&path)?),
    }
}

fn checked(text: String) -> io::Result<String> {
    if text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text);
    }
    Err(io::Error::other("the name of the installation makes no sense"))
}

/// Whether a file is still the one that has this name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |found: &fs::Metadata, ours: &fs::Metadata| (found.dev(), found.ino()) == (ours.dev(), ours.ino());
    fs::metadata(path).is_ok_and(|found| file.metadata().is_ok_and(|ours| same(&found, &ours)))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(unix)]
fn close_to_others(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
}

#[cfg(not(unix))]
fn close_to_others(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keepsakes::Keepsake;

    #[test]
    fn an_installation_keeps_its_name_and_two_have_two() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = Places::prepare(one.path(), "one").unwrap().installation;
        assert_eq!(Places::prepare(one.path(), "one").unwrap().installation, first);
        assert_ne!(Places::prepare(two.path(), "one").unwrap().installation, first);
    }

    #[test]
    fn what_is_kept_for_one_daemon_is_not_seen_on_another() {
        let state = tempfile::tempdir().unwrap();
        let (one, two) = (Places::prepare(state.path(), "one").unwrap(), Places::prepare(state.path(), "two").unwrap());
        assert_eq!(one.installation, two.installation);
        let id = sandbox::SandboxId::random().unwrap();
        one.keepsakes.write(&id, &Keepsake::default()).unwrap();
        assert_eq!(two.keepsakes.all(), []);
        two.keepsakes.forget(&id);
        assert_eq!(one.keepsakes.all(), [id]);
        assert_ne!(one.checkpoints, two.checkpoints);
    }

    #[test]
    fn a_lock_says_who_lives() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::prepare(state.path(), "one").unwrap();
        let instance = InstanceId::random().unwrap();
        assert!(!places.is_alive(instance.as_str()), "nobody has this name");
        let held = places.lock(&instance).unwrap();
        assert!(places.is_alive(instance.as_str()));
        assert!(places.lock(&instance).is_err(), "nobody else may take it");
        places.forget_the_dead();
        assert!(places.is_alive(instance.as_str()), "the living are not forgotten");
        drop(held);
        assert!(!places.is_alive(instance.as_str()));
        assert!(!places.is_alive("../installation"));
    }

    #[test]
    #[cfg(unix)]
    fn one_whose_lock_cannot_be_looked_at_lives() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::prepare(state.path(), "one").unwrap();
        let instance = InstanceId::random().unwrap();
        let path = places.instances.join(instance.as_str());
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(places.is_alive(instance.as_str()));
        places.forget_the_dead();
        assert!(fs::symlink_metadata(&path).is_ok());
    }

    #[test]
    fn a_lock_that_is_taken_while_others_sweep_is_there() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::prepare(state.path(), "one").unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    places.forget_the_dead();
                }
            });
            let lost = (0..500).find(|_| {
                let instance = InstanceId::random().unwrap();
                let held = places.lock(&instance);
                held.is_err() || !places.instances.join(instance.as_str()).exists()
            });
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(lost, None);
        });
    }

    #[test]
    fn the_locks_of_the_dead_are_forgotten() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::prepare(state.path(), "one").unwrap();
        let path = places.instances.join(InstanceId::random().unwrap().as_str());
        File::create_new(&path).unwrap();
        places.forget_the_dead();
        assert!(!path.exists());
    }
}
