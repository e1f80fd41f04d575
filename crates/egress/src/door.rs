//! The way out of one sandbox: takes its connections, decides about each, and carries those that are let through.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandbox::{Denial, Host, Network};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::activity::Activity;
use crate::caps::Caps;
use crate::dial::Dialer;
use crate::explicit;
use crate::far::{self, Arrival};
use crate::gateway::Sockets;
use crate::inspect::{Flow, Inspect, Stream, Unreached};
use crate::meter::{Meter, Metered};
use crate::names::Names;
use crate::record::Record;
use crate::relay;
use crate::responder::{Questions, Responder};
use crate::rule::Rule;
use crate::screen::Screen;

/// Connections to the proxy that have not asked for anything yet, beyond the sandbox's allowance. They are few and short
/// in a program that means well.
const MOST_UNDECIDED: usize = 256;

/// After the process ran out of descriptors, how long before it looks again.
const BREATH: Duration = Duration::from_millis(20);

/// What the connections of one sandbox share.
#[derive(Debug)]
pub(crate) struct Doorway {
    pub dialer: Dialer,
    pub activity: Arc<Activity>,
    pub caps: Caps,
    pub inspector: Option<Arc<dyn Inspect>>,
    pub most_connections: usize,
    pub names: Arc<Mutex<Names>>,
}

/// How a connection goes on.
#[derive(Debug)]
pub(crate) enum Way {
    /// Dialled: bytes are copied.
    Through(Meter, TcpStream),
    /// Handed to the inspector, which dials itself.
    Inspected(Meter, Arc<dyn Inspect>),
}

impl Doorway {
    /// Serve until dropped, and every connection with it.
    pub async fn run(self: Arc<Self>, mut entrance: Entrance, questions: Questions) {
        let proxy_port = entrance.proxy_port();
        let responder = Arc::new(Responder {
            questions,
            dialer: self.dialer.clone(),
            names: Arc::clone(&self.names),
            activity: Arc::clone(&self.activity),
        });
        let mut resolver = JoinSet::new();
        let mut connections = JoinSet::new();
        loop {
            if resolver.is_empty() {
                resolver.spawn(Arc::clone(&responder).run());
            }
            tokio::select! {
                accepted = entrance.accept() => match accepted {
                    Ok(client) if connections.len() < self.most_connections + MOST_UNDECIDED => {
                        connections.spawn(Arc::clone(&self).take(client, proxy_port));
                    }
                    Ok(client) => self.turn_away(client),
                    Err(error) => {
                        tracing::debug!(%error, "a connection could not be taken");
                        tokio::time::sleep(BREATH).await;
                    }
                },
                Some(ended) = connections.join_next() => note_panic(ended),
                Some(ended) = resolver.join_next() => note_panic(ended),
            }
        }
    }

    async fn take(self: Arc<Self>, client: Client, proxy_port: u16) {
        match client {
            Client::Near(client) => {
                if let Ok(local) = client.local_addr() {
                    self.serve(client, local, proxy_port).await;
                }
            }
            Client::Far(Arrival { destination, stream }) => match far::pair().await {
                Ok((client, near)) => far::beside(stream, near, self.serve(client, destination, proxy_port)).await,
                Err(error) => tracing::debug!(%error, "a connection could not be taken"),
            },
        }
    }

    async fn serve(self: Arc<Self>, client: TcpStream, local: SocketAddr, proxy_port: u16) {
        // Answers of a few bytes must not wait for more. Without it they only are slower.
        let _ = client.set_nodelay(true);
        if local.ip().to_canonical().is_loopback() && local.port() == proxy_port {
            explicit::serve(self, client).await;
        } else {
            self.transparent(client, local).await;
        }
    }

    /// A program that knows nothing of us: the address it connected to says where it wants to go.
    async fn transparent(&self, client: TcpStream, destination: SocketAddr) {
        let host = self.host_at(destination);
        match self.open(&host, destination.port()).await {
            Ok(way) => self.carry(client, Bytes::new(), &host, destination.port(), way).await,
            Err(_) => relay::reset(&client),
        }
    }

    /// Decide, and dial unless somebody else will. A refusal is recorded here.
    pub async fn open(&self, host: &Host, port: u16) -> Result<Way, Unreached> {
        let opened = self.try_open(host, port).await;
        if let Err(Unreached::Refused(denial)) = &opened {
            self.activity.refuse(host, Some(port), *denial);
        }
        opened
    }

    async fn try_open(&self, host: &Host, port: u16) -> Result<Way, Unreached> {
        self.dialer.allows(host, port).map_err(Unreached::Refused)?;
        let places = self.caps.enter().map_err(Unreached::Refused)?;
        let meter = || Meter::new(Record::begin(&self.activity, host, port), self.caps.clone(), places);
        match &self.inspector {
            Some(inspector) if inspector.wants(host, port) => Ok(Way::Inspected(meter(), Arc::clone(inspector))),
            Some(_) | None => {
                let upstream = self.dialer.connect(host, port).await?;
                Ok(Way::Through(meter(), upstream))
            }
        }
    }

    pub async fn carry(&self, client: TcpStream, first: Bytes, host: &Host, port: u16, way: Way) {
        match way {
            Way::Through(meter, upstream) => {
                relay::relay(client, first, upstream, &meter, self.screen(host, port)).await;
            }
            Way::Inspected(meter, inspector) => self.hand_over(client, host, port, meter, inspector).await,
        }
    }

    pub async fn hand_over(
        &self,
        client: impl Stream + 'static,
        host: &Host,
        port: u16,
        meter: Meter,
        inspector: Arc<dyn Inspect>,
    ) {
        let record = Arc::clone(&meter.record);
        let flow = Flow {
            host: host.clone(),
            port,
            stream: Box::new(Metered::new(client, meter)),
            dialer: Arc::new(self.dialer.clone()),
            record: Arc::clone(&record),
        };
        tokio::select! {
            served = inspector.serve(flow) => match served {
                Ok(()) => {}
                Err(Unreached::Refused(denial)) => record.refuse(denial),
                Err(error) => tracing::debug!(connection = ?record, %error, "a connection could not be made"),
            },
            () = record.idle(relay::IDLE) => {}
        }
    }

    /// Only a list of names can be got around by saying another name.
    fn screen(&self, host: &Host, port: u16) -> Option<Screen> {
        let listed = matches!(self.dialer.network(), Network::Hosts(_)) && self.dialer.holds(Rule::ServerName);
        listed.then(|| Screen { dialer: self.dialer.clone(), host: host.clone(), port })
    }

    fn host_at(&self, destination: SocketAddr) -> Host {
        let name = self.names.lock().unwrap_or_else(PoisonError::into_inner).find(destination.ip());
        name.map_or_else(|| destination.ip().into(), Host::Name)
    }

    fn turn_away(&self, client: Client) {
        let local = match client {
            Client::Near(client) => {
                relay::reset(&client);
                client.local_addr().ok()
            }
            Client::Far(arrival) => Some(arrival.destination),
        };
        if let Some(local) = local {
            let host = self.host_at(local);
            self.activity.refuse(&host, Some(local.port()), Denial::TooManyConnections);
        }
    }
}

/// Where connections of a sandbox come from.
pub(crate) enum Entrance {
    /// A socket in its network, which this process holds.
    Near(TcpListener),
    Far(mpsc::Receiver<Arrival>),
}

/// A program of the sandbox.
enum Client {
    Near(TcpStream),
    Far(Arrival),
}

impl Entrance {
    fn proxy_port(&self) -> u16 {
        match self {
            Self::Near(listener) => listener.local_addr().map_or(0, |address| address.port()),
            Self::Far(_) => Sockets::PROXY_PORT,
        }
    }

    async fn accept(&mut self) -> io::Result<Client> {
        match self {
            Self::Near(listener) => listener.accept().await.map(|(client, _)| Client::Near(client)),
            Self::Far(arrivals) => match arrivals.recv().await {
                Some(arrival) => Ok(Client::Far(arrival)),
                // Nobody comes any more, and those who are here may stay.
                None => std::future::pending().await,
            },
        }
    }
}

fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection of a sandbox ended in a fault of ours");
    }
}

/// Make sockets of the engine ones of this runtime.
pub(crate) fn adopt(sockets: Sockets) -> io::Result<(Entrance, Questions)> {
    let streams = std::net::TcpListener::from(sockets.streams);
    let names = std::net::UdpSocket::from(sockets.names);
    streams.set_nonblocking(true)?;
    names.set_nonblocking(true)?;
    Ok((Entrance::Near(TcpListener::from_std(streams)?), Questions::Near(UdpSocket::from_std(names)?)))
}
