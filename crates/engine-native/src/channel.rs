//! Message channels and byte streams for the server's side, on its runtime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{syscall, wire};

/// Whether there is something to read, or nothing will ever come.
pub fn has_news(descriptor: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// One end of a message channel.
#[derive(Debug)]
pub struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self(syscall::watch(descriptor)?))
    }

    /// Our end, and the other for somebody who blocks.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(ours)?, theirs))
    }

    pub async fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        // A full buffer is rare, so the message is tried first and encoded again if it must wait.
        loop {
            match wire::send(self.0.as_fd(), message, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.0.writable().await?.clear_ready(),
                result => return result,
            }
        }
    }

    /// Send without waiting, for places that cannot.
    pub fn try_send(&self, message: &impl Serialize) -> io::Result<()> {
        wire::send(self.0.as_fd(), message, &[])
    }

    pub async fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        loop {
            let mut guard = self.0.readable().await?;
            match wire::receive(self.0.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                result => return result,
            }
        }
    }

    /// Say that nothing more will be sent. What the other end has to say is still heard.
    pub fn finish(&self) {
        // One that is gone has nothing to be told.
        let _ = rustix::net::shutdown(self.0.get_ref(), Shutdown::Write);
    }

    /// Whether something has arrived, or the other end is gone.
    pub fn has_news(&self) -> bool {
        has_news(self.0.get_ref())
    }

    /// A message that has already arrived.
    pub fn try_receive<M: DeserializeOwned>(&self) -> Option<M> {
        wire::receive(self.0.as_fd()).ok().flatten().map(|(message, _)| message)
    }
}

/// One end of a pipe or a terminal.
#[derive(Debug)]
pub struct Stream(AsyncFd<OwnedFd>);

impl Stream {
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self(syscall::watch(descriptor)?))
    }

    /// What is there at this moment, whatever is known of the descriptor: nothing when it would have to be waited for.
    pub fn read_now(&self, buffer: &mut [u8]) -> usize {
        let mut read = || rustix::io::retry_on_intr(|| rustix::io::read(self.0.get_ref(), &mut *buffer));
        read().or_else(|_| read()).unwrap_or(0)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            match rustix::io::read(self.0.get_ref(), buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // A terminal whose last program is gone says so. It may have written something after the kernel had looked for
                // that, and before the kernel saw that it is gone.
                Err(rustix::io::Errno::IO) => {
                    let count = self.read_now(buffer.initialize_unfilled());
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            match rustix::io::write(self.0.get_ref(), bytes) {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
