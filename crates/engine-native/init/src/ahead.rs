//! A pipe in the place of a script that is not known yet: a program that was begun ahead reads there until the script comes.
//!
//! What it reads is the script as a file would have it, and by then there is a file of that name. So nothing in the program
//! can tell, but for the time that its start took.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::exec::MOST_START_SECONDS;
use crate::{exec, identity, syscall};

/// A script must fit in at once, or we would wait for the program. Scripts that travel with a request are half of this.
const LEAST_PIPE_BYTES: usize = 32 * 1024;

/// Both ends of the pipe are ours too, so that neither the program nor we ever wait for the other to open it.
#[derive(Debug)]
pub struct Ahead {
    path: Vec<u8>,
    /// What will lie there: made while nobody waits, and empty.
    beside: Vec<u8>,
    account: Option<(u32, u32)>,
    pipe: OwnedFd,
    file: OwnedFd,
}

impl Ahead {
    pub fn new(path: &[u8], account: Option<(u32, u32)>) -> rustix::io::Result<Self> {
        let beside = [path, b"~"].concat();
        as_program(account, || {
            exec::write_script(&beside, b"")?;
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        })?;
        let open = |path: &[u8], access| {
            let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            identity::as_user(account, || rustix::fs::open(path, flags, Mode::empty()))
        };
        let (pipe, file) = (open(path, OFlags::RDWR)?, open(&beside, OFlags::WRONLY)?);
        let ahead = Self { path: path.to_vec(), beside, account, pipe, file };
        // A user who has many pipes gets small ones.
        if rustix::pipe::fcntl_getpipe_size(&ahead.pipe)? < LEAST_PIPE_BYTES {
            ahead.remove();
            return Err(Errno::NOBUFS);
        }
        Ok(ahead)
    }

    /// Put the script in the place of the pipe, and then into it: whoever has opened the pipe reads the same there, and its
    /// end when we are dropped.
    pub fn hand_over(&self, script: &[u8]) -> rustix::io::Result<()> {
        exec::write_all(&self.file, script)?;
        identity::as_user(self.account, || rustix::fs::rename(&self.beside, &self.path))?;
        exec::write_all(&self.pipe, script)
    }

    /// Nobody will have it.
    pub fn remove(self) {
        // Where it cannot be removed, nobody can write there any more, and is told so.
        let _ = as_program(self.account, || {
            let _ = rustix::fs::unlink(&self.beside);
            rustix::fs::unlink(&self.path)
        });
    }
}

/// Do something with the rights of programs, and make files that are theirs, group and all.
fn as_program(account: Option<(u32, u32)>, mut work: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    let mut done = Err(Errno::CANCELED);
    let mut become_and_work = || {
        done = identity::become_user(account).and_then(|()| {
            rustix::process::umask(Mode::from_raw_mode(0o022));
            work()
        });
    };
    syscall::end_after(MOST_START_SECONDS);
    let pid = syscall::run_in_borrowed_memory(&mut become_and_work);
    syscall::end_after(0);
    let pid = pid.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let _ = syscall::reap(pid);
    done
}
