//! A door without a sandbox around it, and servers to reach through it.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use egress::{Account, Arrival, Arrivals, Asked, Door, Gateway, GatewaySettings, Grant, Mark, Pass, Sockets};
use sandbox::{Owner, SandboxId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{mpsc, oneshot};

/// For anything that should take milliseconds, on a machine that may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Lab {
    pub gateway: Arc<Gateway>,
    pub door: Door,
    pub mark: Mark,
    pub proxy: SocketAddr,
    pub names: SocketAddr,
}

/// Settings in which `localhost` is a private host that may be reached.
pub fn settings() -> GatewaySettings {
    GatewaySettings { private_hosts: vec!["localhost:*".parse().unwrap()], ..GatewaySettings::default() }
}

pub fn lab(network: &str, settings: GatewaySettings) -> Lab {
    let gateway = Arc::new(Gateway::new(settings));
    let (door, proxy, names) = open(&gateway, network, &Owner::local());
    Lab { mark: door.mark(), gateway, door, proxy, names }
}

/// How connections come to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each of two programs has them come one way")]
pub enum Way {
    /// It holds the sockets.
    Sockets,
    /// Somebody else does, and carries what lands on them.
    Carried,
}

pub fn open_way(
    gateway: &Arc<Gateway>,
    pass: &Pass,
    streams: std::net::TcpListener,
    names: std::net::UdpSocket,
) -> Door {
    match crate::WAY {
        Way::Sockets => gateway.open(pass, Sockets { streams: streams.into(), names: names.into() }).unwrap(),
        Way::Carried => gateway.open_far(pass, carried(streams, names)).unwrap(),
    }
}

fn carried(streams: std::net::TcpListener, names: std::net::UdpSocket) -> Arrivals {
    streams.set_nonblocking(true).unwrap();
    names.set_nonblocking(true).unwrap();
    let (streams, names) = (TcpListener::from_std(streams).unwrap(), UdpSocket::from_std(names).unwrap());
    let (arrive, connections) = mpsc::channel(16);
    let (ask, questions) = mpsc::channel(16);
    tokio::spawn(async move {
        while let Ok((stream, _)) = streams.accept().await {
            // The only address that clients here connect to is the proxy's.
            let destination = SocketAddr::from(([127, 0, 0, 1], Sockets::PROXY_PORT));
            let arrival = Arrival { destination, stream: Box::new(Carried { stream, is_ended: false }) };
            if arrive.send(arrival).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let (names, mut packet) = (Arc::new(names), [0; 4096]);
        while let Ok((length, from)) = names.recv_from(&mut packet).await {
            let (reply, replied) = oneshot::channel();
            if ask.send(Asked { packet: packet[..length].to_vec(), reply }).await.is_err() {
                return;
            }
            let names = Arc::clone(&names);
            tokio::spawn(async move {
                if let Ok(reply) = replied.await {
                    names.send_to(&reply, from).await.unwrap();
                }
            });
        }
    });
    Arrivals { connections, questions }
}

/// A program's connection at the end of a bridge: what is dropped before its end was cut.
struct Carried {
    stream: TcpStream,
    is_ended: bool,
}

impl Drop for Carried {
    fn drop(&mut self) {
        if !self.is_ended {
            rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
        }
    }
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Carried {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.is_ended = true;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

pub fn open(gateway: &Arc<Gateway>, network: &str, owner: &Owner) -> (Door, SocketAddr, SocketAddr) {
    let (streams, names, addresses) = sockets();
    let door = open_way(gateway, &pass(gateway, network, owner), streams, names);
    (door, addresses.0, addresses.1)
}

pub fn open_again(gateway: &Arc<Gateway>, network: &str, account: Account) -> (Door, SocketAddr) {
    let (streams, names, addresses) = sockets();
    let sockets = Sockets { streams: streams.into(), names: names.into() };
    let door = gateway.open_again(&pass(gateway, network, &Owner::local()), sockets, account).unwrap();
    (door, addresses.0)
}

fn pass(gateway: &Gateway, network: &str, owner: &Owner) -> Pass {
    let grant = Grant {
        id: SandboxId::random().unwrap(),
        owner: owner.clone(),
        network: network.parse().unwrap(),
        private_hosts: Vec::new(),
        secrets: Default::default(),
    };
    gateway.prepare(grant, None).unwrap()
}

fn sockets() -> (std::net::TcpListener, std::net::UdpSocket, (SocketAddr, SocketAddr)) {
    let streams = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let names = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addresses = (streams.local_addr().unwrap(), names.local_addr().unwrap());
    (streams, names, addresses)
}

impl Lab {
    /// The refusals so far, as `host:port rule count`.
    pub fn refused(&self) -> Vec<String> {
        let activity = self.door.since(self.mark);
        let port = |port: Option<u16>| port.map_or("-".to_owned(), |port| port.to_string());
        let line = |refusal: &sandbox::Refusal| {
            format!("{}:{} {} {}", refusal.host, port(refusal.port), refusal.denial.as_str(), refusal.count)
        };
        activity.refused.iter().map(line).collect()
    }

    /// A connection through the proxy, or the answer that says why there is none.
    pub async fn connect(&self, destination: &str) -> Result<TcpStream, String> {
        connect(self.proxy, destination).await
    }
}

pub async fn connect(proxy: SocketAddr, destination: &str) -> Result<TcpStream, String> {
    let request = format!("CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n");
    let mut stream = TcpStream::connect(proxy).await.map_err(|error| error.to_string())?;
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match soon(stream.read_u8()).await {
            Ok(byte) => head.push(byte),
            Err(error) => return Err(format!("{error} after {:?}", String::from_utf8_lossy(&head))),
        }
    }
    if head.starts_with(b"HTTP/1.1 200") {
        return Ok(stream);
    }
    let mut rest = vec![0; content_length(&head)];
    soon(stream.read_exact(&mut rest)).await.unwrap();
    Err(String::from_utf8([head, rest].concat()).unwrap())
}

/// One request on a connection of its own, and everything that comes back.
pub async fn ask(proxy: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // Whoever talks nonsense may be cut off.
    let _ = soon(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// A server on loopback that treats each connection so; its port.
pub async fn serve<F, R>(treat: F) -> u16
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(treat(stream));
        }
    });
    port
}

/// Sends back what it gets, and ends when the other side ends.
pub async fn echo(mut stream: TcpStream) {
    let (mut read, mut write) = stream.split();
    let _ = tokio::io::copy(&mut read, &mut write).await;
    let _ = write.shutdown().await;
}

pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Wait until something is so. What is so only for a moment must not be waited for with this.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.split("content-length: ").nth(1).map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap())
}
