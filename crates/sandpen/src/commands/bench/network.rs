//! What the way out of a sandbox costs: bytes a second beside those of the host's own loopback, and a crowd of
//! connections.
//!
//! Both ends of a comparison are the same two programs; only where the client runs differs.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sandbox::{
    Error, ExecRequest, ExecStatus, HostRule, Limits, Network, OutputCaps, Owner, Result, SandboxId, SandboxService,
    SandboxSpec,
};
use serde::Serialize;

use super::report::Skipped;
use crate::config::Config;

pub const NAMES: [&str; 3] = ["network-stream", "network-streams", "network-connections"];

const STREAM_BYTES: u64 = 1 << 30;
const STREAMS: usize = 8;
const ROUNDS: usize = 3;
const CONNECTIONS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Serialize)]
pub struct Figures {
    /// Through the gateway, as a program without proxy settings.
    pub stream_bytes_per_second: Option<f64>,
    pub stream_times_loopback: Option<f64>,
    /// The same with several at once, all of them together.
    pub streams: Option<usize>,
    pub streams_bytes_per_second: Option<f64>,
    pub streams_times_loopback: Option<f64>,
    /// Open at the same time, and each of them answered.
    pub connections: Option<usize>,
    pub connections_ms: Option<f64>,
    pub memory_per_connection_bytes: Option<u64>,
}

/// What clients connect to: a listener on an address of this machine that is not a loopback one, because those mean the
/// sandbox itself inside it.
#[derive(Debug)]
pub struct Source {
    listener: TcpListener,
    address: SocketAddr,
}

impl Source {
    /// Also lets sandboxes of this process, and no others, reach it.
    pub fn open(config: &mut Config) -> Result<Self> {
        let unavailable = |cause| {
            Error::unavailable("this machine has no address but loopback ones to measure networks with")
                .with_cause(cause)
        };
        let address = own_address().map_err(unavailable)?;
        let listener = TcpListener::bind((address, 0)).map_err(unavailable)?;
        let address = listener.local_addr().map_err(unavailable)?;
        let rule: HostRule = address.to_string().parse()?;
        config.gateway.private_hosts.push(rule);
        Ok(Self { listener, address })
    }
}

pub async fn measure(
    service: &SandboxService,
    source: Result<Source>,
    wanted: impl Fn(&str) -> bool,
) -> Result<(Figures, Vec<Skipped>)> {
    let mut figures = Figures::default();
    let names: Vec<&'static str> = NAMES.into_iter().filter(|name| wanted(name)).collect();
    let source = match source {
        Ok(source) => source,
        Err(error) => return Ok((figures, names.into_iter().map(|name| Skipped::new(name, &error)).collect())),
    };
    let mut skipped = Vec::new();
    let owner = Owner::local();
    let network = Network::hosts([source.address.to_string().parse()?])?;
    let limits = Limits { cpu_millis: 2000, ..Limits::default() };
    let spec = SandboxSpec { network, limits, ..SandboxSpec::new(owner.clone()) };
    let id = service.create(&owner, spec).await?.id;
    let inside = Inside { service, owner: &owner, id: &id };
    for name in names {
        let done = match name {
            "network-stream" => figures.streams_of(&inside, &source, 1).await,
            "network-streams" => figures.streams_of(&inside, &source, STREAMS).await,
            _ => figures.crowd(&inside, &source).await,
        };
        if let Err(error) = done {
            skipped.push(Skipped::new(name, &error));
        }
    }
    service.stop(&owner, &id).await?;
    Ok((figures, skipped))
}

impl Figures {
    async fn streams_of(&mut self, inside: &Inside<'_>, source: &Source, count: usize) -> Result<()> {
        let script = download(source.address, count);
        let (mut bare, mut through) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bare.push(source.feed(count, async { on_host(&script) }).await?);
            through.push(source.feed(count, inside.run(&script)).await?);
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let (bare, through) = (median(&mut bare), median(&mut through));
        let (rate, ratio) = (STREAM_BYTES as f64 / through, bare / through);
        match count {
            1 => (self.stream_bytes_per_second, self.stream_times_loopback) = (Some(rate), Some(ratio)),
            _ => {
                self.streams = Some(count);
                (self.streams_bytes_per_second, self.streams_times_loopback) = (Some(rate), Some(ratio));
            }
        }
        Ok(())
    }

    async fn crowd(&mut self, inside: &Inside<'_>, source: &Source) -> Result<()> {
        let before = own_memory();
        let (sender, receiver) = mpsc::channel();
        let listener = source.listener.try_clone().map_err(broken)?;
        let host = std::thread::spawn(move || -> std::io::Result<()> {
            let guests: Vec<TcpStream> =
                (0..CONNECTIONS).map(|_| listener.accept().map(|(guest, _)| guest)).collect::<std::io::Result<_>>()?;
            let _ = sender.send(own_memory());
            for mut guest in guests {
                guest.write_all(b"welcome\n")?;
            }
            Ok(())
        });
        let started = Instant::now();
        let answered = inside.run(&crowd(source.address)).await;
        let took = started.elapsed();
        // One that never came is what the listener may still be waiting for.
        let missing = if answered.is_err() { CONNECTIONS } else { 0 };
        for _ in 0..missing {
            if host.is_finished() || TcpStream::connect_timeout(&source.address, Duration::from_secs(1)).is_err() {
                break;
            }
        }
        let served = host.join().map_err(|_| Error::internal("the listener panicked"))?;
        answered?;
        served.map_err(broken)?;
        let during = receiver.recv().unwrap_or(before);
        self.connections = Some(CONNECTIONS);
        self.connections_ms = Some(took.as_secs_f64() * 1000.0);
        self.memory_per_connection_bytes = Some(during.saturating_sub(before) / CONNECTIONS as u64);
        Ok(())
    }
}

struct Inside<'a> {
    service: &'a SandboxService,
    owner: &'a Owner,
    id: &'a SandboxId,
}

impl Inside<'_> {
    /// A script that must succeed.
    async fn run(&self, script: &str) -> Result<()> {
        let request = ExecRequest::new(["bash", "-c", script], PATIENCE)?;
        let captured = self.service.exec(self.owner, self.id, request).await?.capture(OutputCaps::default()).await?;
        if captured.outcome.status == ExecStatus::Exited(0) {
            return Ok(());
        }
        let said = captured.stderr.to_text();
        let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
        Err(Error::unavailable(format!(
            "the client in the sandbox ended as {}: {said}",
            captured.outcome.status.as_str()
        )))
    }
}

impl Source {
    /// Seconds until `clients` have had all bytes, shared evenly among so many connections.
    async fn feed(&self, count: usize, clients: impl Future<Output = Result<()>>) -> Result<f64> {
        let mut hosts = Vec::new();
        for _ in 0..count {
            let listener = self.listener.try_clone().map_err(broken)?;
            hosts.push(std::thread::spawn(move || -> std::io::Result<()> {
                let (mut guest, _) = listener.accept()?;
                let piece = vec![0; 256 << 10];
                let mut left = STREAM_BYTES as usize / count;
                while left > 0 {
                    let size = left.min(piece.len());
                    guest.write_all(&piece[..size])?;
                    left -= size;
                }
                Ok(())
            }));
        }
        let started = Instant::now();
        let done = clients.await;
        let took = started.elapsed().as_secs_f64();
        for host in hosts {
            if done.is_err() {
                let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
            }
            let _ = host.join();
        }
        done.map(|()| took)
    }
}

/// The same program outside of any sandbox.
fn on_host(script: &str) -> Result<()> {
    let ran = Command::new("bash").args(["-c", script]).stdin(Stdio::null()).output();
    match ran {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(Error::unavailable(format!("the client on the host ended with {}", output.status))),
        Err(_) => Err(Error::not_found("bash is not installed")),
    }
}

fn download(address: SocketAddr, count: usize) -> String {
    let (host, port) = (address.ip(), address.port());
    let share = STREAM_BYTES / count as u64;
    let one = format!("[ $(cat </dev/tcp/{host}/{port} | wc -c) = {share} ]");
    let all = format!("({one}) & clients+=($!); ").repeat(count);
    format!("{all}for client in ${{clients[@]}}; do wait $client || exit 1; done")
}

/// Opens all of them, then reads an answer from each.
fn crowd(address: SocketAddr) -> String {
    let (host, port) = (address.ip(), address.port());
    format!(
        "ulimit -n $(ulimit -Hn); for ((i = 0; i < {CONNECTIONS}; i++)); do exec {{held}}<>/dev/tcp/{host}/{port} || exit 1; \
         all+=($held); done; for held in ${{all[@]}}; do read -r -t 30 line <&$held && [ $line = welcome ] || exit 2; done"
    )
}

/// The address that this machine would send from; nothing is sent to find out.
fn own_address() -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
    let address = socket.local_addr()?.ip();
    if address.is_loopback() || address.is_unspecified() {
        return Err(std::io::ErrorKind::AddrNotAvailable.into());
    }
    Ok(address)
}

/// Resident, in bytes.
fn own_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    kibibytes * 1024
}

fn broken(cause: std::io::Error) -> Error {
    Error::unavailable("the listener that clients connect to does not work").with_cause(cause)
}
