//! Process 1's program, as a descriptor to execute. No sandbox may be able to change what the next one starts
//! (CVE-2019-5736), should it ever get at the program of its own process 1.
//!
//! - A sealed file in memory cannot be written to, by whomever. But each launcher makes its own copy, and a command that
//!   lives for milliseconds spends one of them on it.
//! - So root keeps a file, for sandboxes that have a range of ids of their own. Three things stand between it and them:
//!   its owner is not mapped into their user namespace, so that nothing in there, root included, has a right or a
//!   capability over it; no mount of theirs leads to it; and it is executed through a mount of its own that is
//!   read-only. The directory is closed to everybody but root, and what lies there is looked at before it is used.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use agent::{PROGRAM, PROGRAM_HASH as HASH};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::collect;
use crate::syscall::{self, MountAttributes};

/// Process 1 executes it as a stranger, and nobody may write.
const MODE: u32 = 0o555;

#[derive(Debug)]
pub struct Program {
    pub descriptor: OwnedFd,
    /// Whether Landlock, which knows files of file systems only, must be told of it.
    pub is_file: bool,
}

/// From the directory, which only root may enter, if there is one and it can be used; otherwise from memory.
pub fn open(directory: Option<&Path>) -> io::Result<Program> {
    match directory.and_then(|directory| stored(&directory.join(HASH)).ok()) {
        Some(descriptor) => Ok(Program { descriptor, is_file: true }),
        None => Ok(Program { descriptor: sealed()?, is_file: false }),
    }
}

impl Program {
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()?, is_file: self.is_file })
    }
}

fn stored(directory: &Path) -> io::Result<OwnedFd> {
    let path = directory.join("init");
    collect::keep(directory);
    mounted(&path).or_else(|_| {
        write(directory, &path)?;
        mounted(&path)
    })
}

/// The file through a mount that is nowhere in any tree.
fn mounted(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let program = open_tree(CWD, path, flags)?;
    syscall::restrict_mount(program.as_fd(), MountAttributes { read_only: true, no_devices: true, no_exec: false })?;
    // What was opened is what is looked at: a name could mean something else the next time.
    let program = File::from(program);
    if !is_ours(&program)? || rustix::fs::fstatvfs(&program)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(program.into())
}

fn is_ours(program: &File) -> io::Result<bool> {
    let found = program.metadata()?;
    Ok(found.is_file()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o7777 == MODE
        && found.nlink() == 1
        && found.size() == PROGRAM.len() as u64)
}

/// Whole or not at all, also when the machine stops half-way.
fn write(directory: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let unfinished = directory.join(format!("new-{}", std::process::id()));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).and_then(|mut file| {
        file.write_all(PROGRAM)?;
        // Whatever the umask says.
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
        file.sync_all()
    });
    let placed = written.and_then(|()| fs::rename(&unfinished, path));
    if placed.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    placed
}

/// Sealed, so that not even process 1 itself could change what the next sandbox starts.
fn sealed() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let program = match rustix::fs::memfd_create("init", flags | MemfdFlags::EXEC) {
        // Before Linux 6.3 there is no such flag, and every such file can be executed.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create("init", flags)?,
        result => result?,
    };
    let mut rest = PROGRAM;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&program, rest)?..];
    }
    rustix::fs::fcntl_add_seals(&program, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    // Written through one description and executed through another: the first stays open for writing.
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_nobody_else_could_have_written_is_ours() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join(HASH);
        let path = directory.join("init");
        let judge = || is_ours(&File::open(&path).unwrap()).unwrap();
        let write = || write(&directory, &path).unwrap();
        write();
        assert!(judge());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!judge(), "one that can be written to");
        write();
        fs::hard_link(&path, place.path().join("other")).unwrap();
        assert!(!judge(), "one with another name");
        write();
        assert!(judge());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(7).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(MODE)).unwrap();
        assert!(!judge(), "one that was cut off");
    }

    #[test]
    fn without_a_place_for_a_file_it_comes_from_memory() {
        for directory in [None, Some(Path::new("/proc/nowhere"))] {
            let program = open(directory).unwrap().descriptor;
            assert!(rustix::fs::fcntl_get_seals(&program).unwrap().contains(SealFlags::WRITE | SealFlags::SEAL));
        }
    }
}
