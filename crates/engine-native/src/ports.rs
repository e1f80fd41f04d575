//! Connections to what programs listen on: a child of process 1 makes them inside, and hands the socket over.
//!
//! A socket holds the network that it was made in. So each is closed with its sandbox, whoever still has the stream.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use agent::dial::{PATIENCE, no_room, refused};
use async_trait::async_trait;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketType, sockopt};
use sandbox::port::takes_nobody;
use sandbox::{Connections, Error, GuestPort, GuestStream, Result, SandboxId};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::channel::Channel;
use crate::engine::NativeEngine;
use crate::live::{Live, not_found};
use crate::syscall;
use crate::wire::{FromDial, ToInit, Work};

#[async_trait]
impl Connections for NativeEngine {
    async fn connect(&self, id: &SandboxId, port: GuestPort) -> Result<GuestStream> {
        let (live, _inside) = self.shared.enter(id).await?;
        let dialled = tokio::time::timeout(PATIENCE, dial(&live, port));
        let socket = dialled.await.map_err(|_| takes_nobody(port))??;
        let socket = Socket::new(socket).map_err(|cause| no_room(port).with_cause(cause))?;
        live.sockets.add(&socket);
        if live.has_ended() {
            socket.close();
            return Err(not_found(id));
        }
        let (over, on_over) = oneshot::channel();
        tokio::spawn(close_with(live, socket.clone(), on_over));
        Ok(GuestStream::new(SocketStream { socket, _over: over }))
    }
}

async fn dial(live: &Live, port: GuestPort) -> Result<OwnedFd> {
    let gone = |cause: io::Error| not_found(live.id()).with_cause(cause);
    let (channel, theirs) = Channel::pair().map_err(|cause| no_room(port).with_cause(cause))?;
    let work = ToInit::Work(Work::Dial { port: port.number() });
    live.channel.send(&work, &[theirs.as_fd()]).await.map_err(gone)?;
    drop(theirs);
    match channel.receive().await {
        Ok(Some((FromDial::Connected, descriptors))) => {
            descriptors.into_iter().next().ok_or_else(|| Error::internal("the sandbox gave no connection"))
        }
        Ok(Some((FromDial::Refused { errno }, _))) => Err(refused(port, errno)),
        Ok(None) | Err(_) if live.has_ended() => Err(not_found(live.id())),
        Ok(None) | Err(_) => Err(no_room(port)),
    }
}

/// The stream may be with somebody who does not look at it.
async fn close_with(live: Arc<Live>, socket: Arc<Socket>, on_over: oneshot::Receiver<()>) {
    tokio::select! {
        () = live.ended() => socket.close(),
        // Its stream was dropped, and says nothing.
        _ = on_over => {}
    }
}

/// The sockets of one sandbox that are open.
#[derive(Debug, Default)]
pub struct Sockets(Mutex<Vec<Weak<Socket>>>);

impl Sockets {
    fn add(&self, socket: &Arc<Socket>) {
        let mut sockets = self.lock();
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(socket));
    }

    pub fn close(&self) {
        let sockets = std::mem::take(&mut *self.lock());
        sockets.iter().filter_map(Weak::upgrade).for_each(|socket| socket.close());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Socket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket until it is closed, and who is to be told of that.
#[derive(Debug)]
struct Socket(Mutex<State>);

#[derive(Debug)]
struct State {
    descriptor: Option<AsyncFd<OwnedFd>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Socket {
    /// What process 1 hands over is looked at: nothing but a connection is read from and written to.
    fn new(descriptor: OwnedFd) -> io::Result<Arc<Self>> {
        let family = sockopt::socket_domain(&descriptor)?;
        let is_connection = sockopt::socket_type(&descriptor)? == SocketType::STREAM
            && (family == AddressFamily::INET || family == AddressFamily::INET6);
        if !is_connection {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        // Answers of a few bytes must not wait for more. Without it they only are slower.
        let _ = sockopt::set_tcp_nodelay(&descriptor, true);
        let descriptor = Some(syscall::watch(descriptor)?);
        Ok(Arc::new(Self(Mutex::new(State { descriptor, reader: None, writer: None }))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let (descriptor, wakers) = {
            let mut state = self.state();
            (state.descriptor.take(), [state.reader.take(), state.writer.take()])
        };
        drop(descriptor);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Dropping it closes the socket.
struct SocketStream {
    socket: Arc<Socket>,
    _over: oneshot::Sender<()>,
}

impl Drop for SocketStream {
    fn drop(&mut self) {
        self.socket.close();
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let State { descriptor, reader, .. } = &mut *self.socket.state();
        let Some(descriptor) = descriptor else { return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())) };
        loop {
            let Poll::Ready(ready) = descriptor.poll_read_ready(context) else {
                *reader = Some(context.waker().clone());
                return Poll::Pending;
            };
            let mut ready = ready?;
            // Asked not to wait each time: that the socket does not is a mark on what process 1 may share.
            match syscall::receive(descriptor.get_ref().as_fd(), buffer) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let State { descriptor, writer, .. } = &mut *self.socket.state();
        let Some(descriptor) = descriptor else { return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())) };
        loop {
            let Poll::Ready(ready) = descriptor.poll_write_ready(context) else {
                *writer = Some(context.waker().clone());
                return Poll::Pending;
            };
            let mut ready = ready?;
            match rustix::net::send(descriptor.get_ref(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(descriptor) = &self.socket.state().descriptor {
            // One whose other side is gone has nothing to end.
            let _ = rustix::net::shutdown(descriptor.get_ref(), Shutdown::Write);
        }
        Poll::Ready(Ok(()))
    }
}
