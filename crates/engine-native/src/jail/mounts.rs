//! The sandbox's file tree: built beside the host's, entered by pivot, and the host's dropped.
//!
//! Every target is opened below the new root without following a link, and mounted on by descriptor: an image that has a
//! link where a mount belongs cannot send it elsewhere.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use images::unpack::Owners;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::{Jail, StepError, skeleton};
use crate::image::Fill;
use crate::plan::{Directory, DirectoryOwner, Mount, Plan, Root, SKELETON, Scratch};
use crate::syscall::{self, MountAttributes};

/// Covered by the writable layer while the tree is being built; any directory that every host has will do.
const STAGE: &str = "/tmp";

/// All that programs can change, in the writable layer.
const UPPER: &str = "upper";

/// What of the image is the user's, in the writable layer as well.
pub(crate) const BELONGINGS: &str = "belongings";

/// What the kernel takes as one value of a mount's option.
const LONGEST_OPTION: usize = 255;

pub(super) const READ_ONLY: MountAttributes = MountAttributes { read_only: true, no_devices: true, no_exec: false };

/// Nothing on it can be a device or be executed.
const CLOSED: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

impl Jail {
    /// Nothing that we mount may appear on the host, and nothing mounted there later may appear here.
    pub(super) fn private_mounts(&mut self) -> Result<(), StepError> {
        // From here on mounts are moved and the root is changed: never those of the host.
        if self.plan.namespaces & libc::CLONE_NEWNS as u64 == 0 {
            return Err(Errno::PERM.into());
        }
        Ok(rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
    }

    /// A launcher with the right to has opened them already. Otherwise it is done here, where a user namespace gives
    /// the right, and while we are still the user who may go to where they are.
    pub(super) fn open_sources(&mut self) -> Result<(), StepError> {
        let opened = match self.held.sources.take() {
            Some(opened) => opened,
            None => open_sources(&self.plan)?,
        };
        self.sources = opened.into_iter().map(Some).collect();
        let open = |layer: &Fill| {
            File::open(&layer.path).map_err(|error| StepError::with(layer.path.display().to_string(), error))
        };
        self.fill = self.plan.fill.iter().map(open).collect::<Result<_, _>>()?;
        self.belongings = self.plan.belongings.as_ref().map(open).transpose()?;
        Ok(())
    }

    pub(super) fn writable_layer(&mut self) -> Result<(), StepError> {
        let Scratch { bytes, inodes } = self.plan.scratch;
        let mut options = vec![("mode", "0755".to_owned())];
        options.extend(bytes.map(|bytes| ("size", bytes.to_string())));
        options.extend(inodes.map(|inodes| ("nr_inodes", inodes.to_string())));
        let made = file_system("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NODEV)?;
        // A mount that is in a tree goes with it, and cannot be copied for another sandbox any more. Before Linux 6.15
        // one that is in none cannot be copied either.
        let (scratch, kept) = match clone_tree(&made, "") {
            Ok(copy) => {
                attach(&copy, CWD, STAGE)?;
                (copy, made)
            }
            Err(StepError { error, .. }) if error.raw_os_error() == Some(libc::EINVAL) => {
                attach(&made, CWD, STAGE)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::openat(&made, ".", flags, Mode::empty())?;
                (made, directory)
            }
            Err(error) => return Err(error),
        };
        rustix::fs::mkdirat(&scratch, UPPER, Mode::from_raw_mode(0o755))?;
        for directory in &self.plan.directories {
            let make = self.make_directory(&scratch, directory);
            make.map_err(|failure| StepError::with(directory.path.clone(), failure.error))?;
        }
        (self.scratch, self.kept_scratch) = (Some(scratch), Some(kept));
        Ok(())
    }

    /// With the directories above it, which are root's and open to all.
    fn make_directory(&self, scratch: &OwnedFd, directory: &Directory) -> Result<(), StepError> {
        let mut path = UPPER.to_owned();
        let names: Vec<&str> = directory.path.split('/').filter(|name| !name.is_empty()).collect();
        for (index, name) in names.iter().enumerate() {
            path = format!("{path}/{name}");
            let mode = if index + 1 == names.len() { directory.mode } else { 0o755 };
            match rustix::fs::mkdirat(scratch, &path, Mode::from_raw_mode(mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let owner = match directory.owner {
            DirectoryOwner::Root => None,
            DirectoryOwner::User => Some(self.plan.user),
            DirectoryOwner::Somebody(owner) => Some(owner),
        };
        if let Some(owner) = owner {
            let (user, group) = (Uid::from_raw(owner.id), Gid::from_raw(owner.group));
            rustix::fs::chownat(scratch, &path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Nothing of it is followed, whoever made it, and nothing is mounted here yet that it could reach.
    pub(super) fn fill_layer(&mut self) -> Result<(), StepError> {
        for (file, layer) in std::mem::take(&mut self.fill).into_iter().zip(&self.plan.fill) {
            self.unpack(file, layer, UPPER)?;
        }
        Ok(())
    }

    /// Beside the layer that programs write to, so that what they change of it is a change.
    pub(super) fn unpack_belongings(&mut self) -> Result<(), StepError> {
        if let (Some(file), Some(layer)) = (self.belongings.take(), &self.plan.belongings) {
            rustix::fs::mkdirat(self.scratch()?, BELONGINGS, Mode::from_raw_mode(0o755))?;
            self.unpack(file, layer, BELONGINGS)?;
        }
        Ok(())
    }

    fn unpack(&self, file: File, layer: &Fill, name: &str) -> Result<(), StepError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = images::Directory::from(rustix::fs::openat(self.scratch()?, name, flags, Mode::empty())?);
        // What fits is for the file system to say.
        let limits = images::Limits { bytes: u64::MAX, ..images::Limits::default() };
        images::unpack::unpack_layer(file, layer.digest, &directory, &limits, Owners::Mapped).map_err(from_images)?;
        Ok(())
    }

    pub(super) fn build_root(&mut self) -> Result<(), StepError> {
        let scratch = self.scratch()?.try_clone()?;
        rustix::fs::mkdirat(&scratch, "root", Mode::from_raw_mode(0o755))?;
        let root = match self.plan.root.clone() {
            Root::ReadOnly { source } => self.take_read_only(source)?,
            Root::Overlay { sources } => self.overlay(&scratch, &sources)?,
        };
        attach(&root, &scratch, "root")?;
        self.root = Some(rustix::fs::openat(&scratch, "root", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
        Ok(())
    }

    fn overlay(&mut self, scratch: &OwnedFd, sources: &[usize]) -> Result<OwnedFd, StepError> {
        let mut lowers = Vec::new();
        let frozen = self.inherited.iter_mut().flat_map(|inherited| inherited.layers.iter_mut().enumerate().rev());
        for (index, layer) in frozen {
            let name = format!("frozen-{index}");
            rustix::fs::mkdirat(scratch, &name, Mode::from_raw_mode(0o755))?;
            attach(&layer.mounted.take().ok_or(Errno::BADF)?, scratch, &name)?;
            lowers.push(format!("{STAGE}/{name}"));
        }
        for source in sources {
            let name = source.to_string();
            rustix::fs::mkdirat(scratch, &name, Mode::from_raw_mode(0o755))?;
            match (self.plan.copies_skeleton, *source) {
                (true, SKELETON) => skeleton::copy(&self.take(SKELETON)?, scratch, &name)?,
                _ => attach(&self.take_read_only(*source)?, scratch, &name)?,
            }
            lowers.push(format!("{STAGE}/{name}"));
            if *source == SKELETON && self.plan.belongings.is_some() {
                lowers.push(format!("{STAGE}/{BELONGINGS}"));
            }
        }
        rustix::fs::mkdirat(scratch, "work", Mode::from_raw_mode(0o755))?;
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let all = lowers.join(":");
        if all.len() <= LONGEST_OPTION {
            fsconfig_set_string(&context, "lowerdir", all)?;
        } else {
            for lower in lowers {
                // Linux 6.7 was the first to know it.
                fsconfig_set_string(&context, "lowerdir+", lower).map_err(StepError::about("lowerdir+"))?;
            }
        }
        fsconfig_set_string(&context, "upperdir", format!("{STAGE}/{UPPER}"))?;
        fsconfig_set_string(&context, "workdir", format!("{STAGE}/work"))?;
        fsconfig_set_flag(&context, "userxattr")?;
        fsconfig_create(&context).map_err(StepError::about("overlay"))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    }

    pub(super) fn build_mounts(&mut self) -> Result<(), StepError> {
        for mount in &std::mem::take(&mut self.plan.mounts) {
            let (target, result) = match mount {
                Mount::Bind { source, target } | Mount::Tree { source, target } => (target, self.bind(*source, target)),
                Mount::Writable { target } => (target, self.writable(target)),
                Mount::Private { target } => (target, self.private(target)),
                Mount::Processes { target } => (target, self.processes(target)),
                Mount::Devices { target, nodes } => (target, self.devices(target, nodes)),
                Mount::Hidden { target } => (target, self.hidden(target)),
                Mount::ReadOnly { target } => (target, self.read_only(target)),
            };
            result.map_err(|failure| StepError::with(format!("{target} {}", failure.subject), failure.error))?;
        }
        Ok(())
    }

    pub(super) fn pivot(&mut self) -> Result<(), StepError> {
        rustix::process::fchdir(self.root()?)?;
        rustix::process::pivot_root(".", ".")?;
        // The old root now lies over the new one; taking it away takes the whole host tree out of reach.
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")?;
        self.root = None;
        self.scratch = None;
        Ok(())
    }

    fn root(&self) -> Result<&OwnedFd, StepError> {
        Ok(self.root.as_ref().ok_or(Errno::BADF)?)
    }

    fn scratch(&self) -> Result<&OwnedFd, StepError> {
        Ok(self.scratch.as_ref().ok_or(Errno::BADF)?)
    }

    fn take(&mut self, source: usize) -> Result<OwnedFd, StepError> {
        Ok(self.sources.get_mut(source).and_then(Option::take).ok_or(Errno::BADF)?)
    }

    fn take_read_only(&mut self, source: usize) -> Result<OwnedFd, StepError> {
        let tree = self.take(source)?;
        syscall::restrict_mount(tree.as_fd(), READ_ONLY)?;
        Ok(tree)
    }

    fn target(&self, path: &str) -> Result<OwnedFd, StepError> {
        open_beneath(self.root()?, path.trim_start_matches('/'))
    }

    fn bind(&mut self, source: usize, target: &str) -> Result<(), StepError> {
        let tree = self.take_read_only(source)?;
        attach_on(&tree, &self.target(target)?)
    }

    fn writable(&mut self, target: &str) -> Result<(), StepError> {
        let directory = open_beneath(self.scratch()?, &format!("{UPPER}{target}"))?;
        attach_on(&clone_tree(&directory, "")?, &self.target(target)?)
    }

    fn private(&mut self, target: &str) -> Result<(), StepError> {
        let directory = self.beside_upper(target.trim_start_matches('/'), 0o700)?;
        self.take_logs_over(self.scratch()?)?;
        attach_on(&directory, &self.target(target)?)
    }

    /// A new directory of the writable layer that is no part of the tree, as a mount of its own.
    fn beside_upper(&self, name: &str, mode: u32) -> Result<OwnedFd, StepError> {
        let scratch = self.scratch()?;
        rustix::fs::mkdirat(scratch, name, Mode::from_raw_mode(mode))?;
        clone_tree(scratch, name)
    }

    fn processes(&mut self, target: &str) -> Result<(), StepError> {
        let processes = file_system("proc", &[], CLOSED)?;
        self.bound_kernel_objects(&processes)?;
        attach_on(&processes, &self.target(target)?)
    }

    fn devices(&mut self, target: &str, nodes: &[usize]) -> Result<(), StepError> {
        let options = [("mode", "0755".to_owned()), ("size", "64k".to_owned()), ("nr_inodes", "64".to_owned())];
        let devices = file_system("tmpfs", &options, CLOSED)?;
        attach_on(&devices, &self.target(target)?)?;
        let names: Vec<String> = nodes
            .iter()
            .filter_map(|&node| self.plan.sources.get(node)?.file_name()?.to_str().map(str::to_owned))
            .collect();
        for name in &names {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&devices, name.as_str(), flags, Mode::from_raw_mode(0o644))?;
        }
        for name in ["pts", "shm"] {
            rustix::fs::mkdirat(&devices, name, Mode::from_raw_mode(0o755))?;
        }
        let links = [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ];
        for (name, points_to) in links {
            rustix::fs::symlinkat(points_to, &devices, name)?;
        }
        let closed = MountAttributes { read_only: true, no_devices: true, no_exec: true };
        syscall::restrict_mount(devices.as_fd(), closed)?;
        for (&node, name) in nodes.iter().zip(&names) {
            let tree = self.take(node)?;
            let usable = MountAttributes { read_only: false, no_devices: false, no_exec: true };
            syscall::restrict_mount(tree.as_fd(), usable)?;
            attach(&tree, &devices, name)?;
        }
        let options = [("ptmxmode", "0666".to_owned()), ("mode", "0620".to_owned())];
        attach(&file_system("devpts", &options, MountAttrFlags::MOUNT_ATTR_NOEXEC)?, &devices, "pts")?;
        let shared = self.beside_upper("shm", 0o1777)?;
        attach(&shared, &devices, "shm")
    }

    fn hidden(&mut self, target: &str) -> Result<(), StepError> {
        let Some(target) = present(self.target(target))? else { return Ok(()) };
        let stat = rustix::fs::fstat(&target)?;
        let cover = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => "mnt",
            _ => "dev/null",
        };
        let cover = clone_tree(self.root()?, cover)?;
        let closed = MountAttributes { read_only: true, no_devices: true, no_exec: true };
        syscall::restrict_mount(cover.as_fd(), closed)?;
        attach_on(&cover, &target)
    }

    fn read_only(&mut self, target: &str) -> Result<(), StepError> {
        let Some(place) = present(self.target(target))? else { return Ok(()) };
        let tree = clone_tree(self.root()?, target.trim_start_matches('/'))?;
        syscall::restrict_mount(tree.as_fd(), READ_ONLY)?;
        attach_on(&tree, &place)
    }
}

/// Copies of the plan's trees that are mounted nowhere yet.
pub(crate) fn open_sources(plan: &Plan) -> Result<Vec<OwnedFd>, StepError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let open = |path: &PathBuf| open_tree(CWD, path, flags).map_err(StepError::about(path.display().to_string()));
    plan.sources.iter().map(open).collect()
}

fn from_images(error: images::Error) -> StepError {
    let subject = error.to_string();
    match error {
        images::Error::Io { source, .. } => StepError::with(subject, source),
        images::Error::LimitExceeded(_) => StepError::with(subject, io::Error::from_raw_os_error(libc::E2BIG)),
        images::Error::Refused(_)
        | images::Error::Unsupported(_)
        | images::Error::Invalid(_)
        | images::Error::NotFound(_)
        | images::Error::Denied(_)
        | images::Error::Unavailable(_)
        | images::Error::Cancelled => StepError::with(subject, io::Error::from_raw_os_error(libc::EIO)),
    }
}

fn present(found: Result<OwnedFd, StepError>) -> Result<Option<OwnedFd>, StepError> {
    match found {
        Err(StepError { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

fn file_system(kind: &str, options: &[(&str, String)], extra: MountAttrFlags) -> Result<OwnedFd, StepError> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(StepError::about(kind))?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, value.as_str()).map_err(StepError::about(format!("{kind} {key}")))?;
    }
    fsconfig_create(&context).map_err(StepError::about(kind))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | extra;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(StepError::about(kind))
}

fn open_beneath(directory: &OwnedFd, path: &str) -> Result<OwnedFd, StepError> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

pub(super) fn clone_tree(directory: &OwnedFd, path: &str) -> Result<OwnedFd, StepError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, path, flags).map_err(StepError::about(path))
}

fn attach(mount: &OwnedFd, directory: impl AsFd, path: &str) -> Result<(), StepError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(mount, "", directory, path, flags).map_err(StepError::about(path))
}

fn attach_on(mount: &OwnedFd, target: &OwnedFd) -> Result<(), StepError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}
