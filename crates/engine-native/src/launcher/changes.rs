//! What a sandbox has changed, told by a child that joins its user namespace: the server itself never walks its tree.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use images::Directory;
use rustix::fs::{Mode, OFlags};
use rustix::process::PidfdGetfdFlags;
use serde::{Deserialize, Serialize};

use super::inherit::{Owners, layer_for, path_for};
use super::pack::{become_insider, join_user};
use super::{FromLauncher, Helper, Launcher, failed};
use crate::changed;
use crate::jail::{BELONGINGS, Failure};
use crate::syscall::{self, Forked};
use crate::wire::{self, INIT_SCRATCH};

/// What to compare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookRequest {
    /// How many frozen layers the sandbox has, and how many of them, the lowest, are what it is compared with.
    pub frozen: usize,
    pub below: usize,
    /// The skeleton and the image, the highest first.
    pub paths: Vec<PathBuf>,
    /// Directories that the sandbox was given, without a slash at either end.
    pub made: Vec<Vec<u8>>,
    /// Those of the sandbox's namespaces that are its own.
    pub namespaces: u64,
    pub most: usize,
}

impl Launcher {
    /// Answered by the child, or, when it ends without an answer, by whoever collects it.
    pub(super) fn look(&mut self, id: String, request: &LookRequest, process: &OwnedFd, pipe: &OwnedFd) {
        let opened = self.open_layers(request, process);
        let forked = opened.and_then(|layers| Ok((layers, syscall::fork()?)));
        match forked {
            Ok((_, Forked::Parent(pid))) => {
                self.helpers.insert(pid, Helper::Looking { id });
            }
            Ok((layers, Forked::Child)) => {
                syscall::reset_signals();
                // A reader that goes away is an error, which ends us in order.
                syscall::ignore_signal(libc::SIGPIPE);
                let mut kept: Vec<i32> = [&self.channel, process, pipe].map(AsRawFd::as_raw_fd).to_vec();
                kept.extend(layers.frozen.iter().chain(&layers.image).map(AsRawFd::as_raw_fd));
                syscall::close_all_but(3, &mut kept);
                let message = match tell_changes(request, layers, process, pipe) {
                    Ok(truncated) => FromLauncher::Looked { id, truncated },
                    Err(error) => FromLauncher::NotLooked { id, failure: failed("look")(error) },
                };
                syscall::exit_now(i32::from(wire::send(self.channel.as_fd(), &message, &[]).is_err()));
            }
            Err(error) => {
                let failure: Failure = failed("look")(error);
                self.tell(&FromLauncher::NotLooked { id, failure }, &[]);
            }
        }
    }

    fn open_layers(&self, request: &LookRequest, process: &OwnedFd) -> io::Result<Layers> {
        let owners = Owners::of_layers(self.privileged, request.namespaces);
        let frozen = (0..request.frozen).map(|index| layer_for(process, index, owners));
        let image = request.paths.iter().map(|path| path_for(process, path, owners));
        Ok(Layers { frozen: frozen.collect::<io::Result<_>>()?, image: image.collect::<io::Result<_>>()? })
    }
}

struct Layers {
    /// The lowest first.
    frozen: Vec<OwnedFd>,
    /// The highest first.
    image: Vec<OwnedFd>,
}

/// Whether there was more than was wanted.
fn tell_changes(request: &LookRequest, layers: Layers, process: &OwnedFd, pipe: &OwnedFd) -> io::Result<bool> {
    let own = rustix::fs::open("/proc/self", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    join_user(request.namespaces, process)?;
    become_insider(&own)?;
    let scratch = rustix::process::pidfd_getfd(process, INIT_SCRATCH, PidfdGetfdFlags::empty())?;
    let upper = directory(&scratch, "upper")?;
    let mut frozen = layers.frozen.iter().rev().map(|layer| directory(layer, ".")).collect::<io::Result<Vec<_>>>()?;
    let mut below = frozen.split_off(request.frozen.saturating_sub(request.below));
    let mut image = layers.image.iter().map(|layer| directory(layer, ".")).collect::<io::Result<Vec<_>>>()?;
    match directory(&scratch, BELONGINGS) {
        // Where it lies when the root is built: below the skeleton, and above the image.
        Ok(own) => image.insert(image.len().min(1), own),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    below.extend(image);
    let tops = [upper].into_iter().chain(frozen).collect();
    let mut writer = io::BufWriter::new(std::fs::File::from(pipe.try_clone()?));
    let (mut count, mut truncated) = (0, false);
    // Frozen layers have them as they were.
    let made = if request.below == 0 { &request.made[..] } else { &[] };
    changed::compare(tops, below, made, &mut |changed| {
        if count == request.most {
            truncated = true;
            return Ok(false);
        }
        count += 1;
        let bytes = postcard::to_stdvec(&changed).map_err(io::Error::other)?;
        writer.write_all(&(bytes.len() as u32).to_le_bytes())?;
        writer.write_all(&bytes)?;
        Ok(true)
    })?;
    writer.flush()?;
    Ok(truncated)
}

pub(super) fn directory(parent: &OwnedFd, path: &str) -> io::Result<Directory> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(Directory::from(rustix::fs::openat(parent, path, flags, Mode::empty())?))
}
