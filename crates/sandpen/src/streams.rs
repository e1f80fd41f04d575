//! Our own stdin, stdout and stderr without a thread and without `O_NONBLOCK`.
//!
//! That flag belongs to the open file, which we share with the shell that started us: set, it would outlive this
//! process and break programs that read or write after it. So each call is preceded by a question whether it would
//! block, and writes are small enough that the answer holds for all of their bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What a pipe that is ready for writing takes without blocking (`PIPE_BUF`).
const CERTAIN_BYTES: usize = 4096;

/// One of our three streams.
#[derive(Debug)]
pub struct OurStream {
    descriptor: BorrowedFd<'static>,
    /// `None` for what epoll refuses because it never blocks: regular files and `/dev/null`.
    readiness: Option<AsyncFd<BorrowedFd<'static>>>,
    interest: PollFlags,
}

impl OurStream {
    pub fn stdin() -> io::Result<Self> {
        Self::open(rustix::stdio::stdin(), Interest::READABLE, PollFlags::IN)
    }

    pub fn stdout() -> io::Result<Self> {
        Self::open(rustix::stdio::stdout(), Interest::WRITABLE, PollFlags::OUT)
    }

    pub fn stderr() -> io::Result<Self> {
        Self::open(rustix::stdio::stderr(), Interest::WRITABLE, PollFlags::OUT)
    }

    fn open(descriptor: BorrowedFd<'static>, interest: Interest, flags: PollFlags) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "the successor asks for a promise that the type BorrowedFd<'static> has already given"
        )]
        let registered = AsyncFd::with_interest(descriptor, interest);
        let readiness = match registered {
            Ok(readiness) => Some(readiness),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        Ok(Self { descriptor, readiness, interest: flags })
    }

    /// Zero bytes are the end.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.ready().await?;
            match rustix::io::read(self.descriptor, &mut *buffer) {
                Ok(count) => return Ok(count),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.ready().await?;
            match rustix::io::write(self.descriptor, &bytes[..bytes.len().min(CERTAIN_BYTES)]) {
                Ok(count) => bytes = &bytes[count..],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn ready(&self) -> io::Result<()> {
        let Some(readiness) = &self.readiness else {
            return Ok(());
        };
        loop {
            let mut guard = match self.interest {
                PollFlags::IN => readiness.readable().await?,
                _ => readiness.writable().await?,
            };
            if would_not_block(self.descriptor.as_fd(), self.interest)? {
                return Ok(());
            }
            guard.clear_ready();
        }
    }
}

/// An end or an error counts: the call that follows reports it at once.
fn would_not_block(descriptor: BorrowedFd<'_>, flags: PollFlags) -> io::Result<bool> {
    let mut question = [PollFd::new(&descriptor, flags)];
    match poll(&mut question, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
