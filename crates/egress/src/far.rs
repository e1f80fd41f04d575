//! Connections and questions of a sandbox whose sockets this process cannot hold, because they are in another kernel.
//!
//! What is served further on is a connection like any other: one end of a pair over this host's loopback, whose other end
//! is copied to and from the sandbox.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::relay;

const PORTION: usize = 64 * 1024;

/// Of each end of a pair, in the kernel, both ways.
const BUFFER: u32 = 256 * 1024;

/// Somebody else who comes to a listener before us is turned away; nobody does so for ever.
const MOST_STRANGERS: usize = 16;
const BACKLOG: u32 = 32;

/// What comes out of a sandbox, as long as somebody takes it from there.
#[derive(Debug)]
pub struct Arrivals {
    pub connections: mpsc::Receiver<Arrival>,
    pub questions: mpsc::Receiver<Asked>,
}

/// A connection that a program made.
pub struct Arrival {
    /// Where the program wanted to go.
    pub destination: SocketAddr,
    /// Shut down, its program sees an end; dropped before, the program sees that it was cut. An end before all has come is
    /// an error when it is read.
    pub stream: Box<dyn Far>,
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival").field("destination", &self.destination).finish_non_exhaustive()
    }
}

/// A stream of bytes, both ways.
pub trait Far: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Far for T {}

/// A question for a name. Dropping `reply` is to say nothing.
#[derive(Debug)]
pub struct Asked {
    pub packet: Vec<u8>,
    pub reply: oneshot::Sender<Vec<u8>>,
}

/// Two ends of a connection on this host. No other process can be at either.
pub(crate) async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let (listening, one) = (bounded()?, bounded()?);
    listening.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = listening.listen(BACKLOG)?;
    let one = one.connect(listener.local_addr()?).await?;
    for _ in 0..MOST_STRANGERS {
        let (other, from) = listener.accept().await?;
        if from == one.local_addr()? {
            one.set_nodelay(true)?;
            return Ok((one, other));
        }
    }
    Err(io::ErrorKind::ConnectionRefused.into())
}

/// With buffers that do not grow: a sandbox may make many connections, and fill each of them up.
fn bounded() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_send_buffer_size(BUFFER)?;
    socket.set_recv_buffer_size(BUFFER)?;
    Ok(socket)
}

/// Serve one end while the other is copied to and from the sandbox. Ends are passed on as ends, and cuts as cuts.
pub(crate) async fn beside(stream: Box<dyn Far>, mut near: TcpStream, served: impl Future<Output = ()>) {
    let (mut from_sandbox, mut to_sandbox) = tokio::io::split(stream);
    let (serving, mut is_served) = oneshot::channel::<()>();
    let mut served = pin!(async {
        served.await;
        drop(serving);
    });
    let was_cut = {
        let (from_host, to_host) = near.split();
        let back = async {
            tokio::select! {
                ended = pump(from_host, &mut to_sandbox) => if ended.is_ok() {
                    // The program may be gone.
                    let _ = to_sandbox.shutdown().await;
                },
                // Nobody serves it any more, and the program does not take what is left.
                () = async { let _ = (&mut is_served).await; tokio::time::sleep(relay::IDLE).await } => {}
            }
        };
        let out = async {
            let mut to_host = to_host;
            match pump(&mut from_sandbox, &mut to_host).await {
                Ok(()) => drop(to_host.shutdown().await),
                Err(Broken::Writing) => {}
                Err(Broken::Reading) => return,
            }
            // How it goes on is the other direction's to tell.
            std::future::pending().await
        };
        tokio::select! {
            _ = async { tokio::join!(&mut served, back) } => false,
            () = out => true,
        }
    };
    if was_cut {
        relay::reset(&near);
        drop(near);
        if matches!(is_served.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
            served.await;
        }
    }
}

enum Broken {
    Reading,
    Writing,
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> Result<(), Broken> {
    let mut bytes = vec![0; PORTION];
    loop {
        match from.read(&mut bytes).await {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&bytes[..count]).await.map_err(|_| Broken::Writing)?,
            Err(_) => return Err(Broken::Reading),
        }
    }
}
