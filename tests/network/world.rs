//! The world that a host lives in: an outside of our own, behind one cable, in network namespaces.
//!
//! Runs in the process that began the test, as root. The checks run in another, which lives on the host's side and asks
//! by way of the oracle who came.

pub mod authority;
pub mod echo;
pub mod namespace;
pub mod oracle;
pub mod places;
pub mod repository;
pub mod resolver;
pub mod search;
pub mod visits;
pub mod web;

use std::fs;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sandpen_tests::{Result, Trouble};
use tempfile::TempDir;
use tokio::net::{TcpListener, UdpSocket};

use self::authority::Authority;
use self::namespace::Namespace;
use self::places::{DOMAIN, GATEWAY, HOST, Kind, PLACES, RESOLVER};
use self::visits::{VisitKind, Visits};
use self::web::{Speaks, Web};

/// Where programs that are no web servers listen, in every place.
pub const FIRST_PORT: u16 = 7000;
/// Where the canaries of the host listen, on all its addresses.
pub const CANARY_PORT: u16 = 4444;
/// Datagrams that arrive there have left the sandbox.
pub const DATAGRAM_PORT: u16 = 9999;

pub struct World {
    pub host: Namespace,
    /// Certificates, the resolver's settings, files that the places serve, the oracle's socket.
    pub directory: TempDir,
    _outside: Namespace,
}

impl World {
    pub fn start() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-world-").tempdir()?;
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let (outside, host) = (Namespace::new()?, Namespace::new()?);
        connect(&outside, &host)?;
        let authority = Arc::new(Authority::new()?);
        write_settings(directory.path(), &authority)?;
        let files = directory.path().join("files");
        fs::create_dir(&files)?;
        repository::make(&files)?;
        if !repository::library(&files) {
            println!("MISSING: requests cannot be installed from an index: what Python does with it is skipped");
        }
        let visits = Visits::default();
        let web = Web { visits: visits.clone(), authority, files };
        for (port, speaks) in
            [(80, Speaks::Http), (8080, Speaks::Http), (443, Speaks::Https), (FIRST_PORT, Speaks::First)]
        {
            web.serve(listen(&outside, everywhere(port))?, speaks);
        }
        web.serve(listen(&host, everywhere(CANARY_PORT))?, Speaks::Http);
        // An answer must come from the address that was asked, so this one does not listen everywhere.
        let resolver = SocketAddr::new(RESOLVER, 53);
        resolver::serve(datagrams(&outside, resolver)?, listen(&outside, resolver)?, visits.clone());
        for namespace in [&outside, &host] {
            count_datagrams(datagrams(namespace, everywhere(DATAGRAM_PORT))?, visits.clone());
        }
        oracle::serve(oracle::listen(directory.path())?, visits, outside.clone());
        Ok(Self { host, directory, _outside: outside })
    }
}

/// One cable, with the gateway and a neighbour at the other end of it; everything else lies behind the gateway.
fn connect(outside: &Namespace, host: &Namespace) -> Result<()> {
    let host_path = host.path();
    let mut commands = vec![
        "link set lo up".to_owned(),
        format!("link add name cable0 type veth peer name cable1 netns {}", host_path.display()),
        "link set cable0 up".to_owned(),
    ];
    for place in PLACES {
        for address in place.addresses {
            match (place.kind, address.is_ipv4()) {
                (Kind::Host, _) => {}
                (Kind::Neighbour, true) => commands.push(format!("address add {address}/24 dev cable0")),
                (Kind::Neighbour, false) => commands.push(format!("address add {address}/64 dev cable0 nodad")),
                (Kind::Public | Kind::Private, true) => commands.push(format!("address add {address}/32 dev lo")),
                (Kind::Public | Kind::Private, false) => commands.push(format!("address add {address}/128 dev lo")),
            }
        }
    }
    commands.push(format!("address add {RESOLVER}/32 dev lo"));
    outside.ip(&commands)?;
    let [v4, v6] = HOST;
    let [gateway, gateway_v6] = GATEWAY;
    host.ip(&[
        "link set lo up".to_owned(),
        "link set cable1 up".to_owned(),
        format!("address add {v4}/24 dev cable1"),
        format!("address add {v6}/64 dev cable1 nodad"),
        format!("route add default via {gateway}"),
        format!("-6 route add default via {gateway_v6}"),
    ])
}

/// What is put over the host's own files, for its processes only.
fn write_settings(directory: &Path, authority: &Authority) -> Result<()> {
    fs::write(directory.join("resolv.conf"), format!("nameserver {RESOLVER}\noptions timeout:2 attempts:2\n"))?;
    let certificates = directory.join("certificates");
    let copied = Command::new("cp").args(["--archive", "/etc/ssl/certs"]).arg(&certificates).output()?;
    if !copied.status.success() {
        return Err(Trouble(String::from_utf8_lossy(&copied.stderr).into_owned()));
    }
    let bundle = certificates.join("ca-certificates.crt");
    let trusted = fs::read_to_string(&bundle)?;
    fs::write(&bundle, format!("{trusted}\n{}", authority.pem))?;
    fs::write(directory.join("authority.pem"), &authority.pem)?;
    Ok(())
}

/// On every address of both families.
fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)
}

fn listen(namespace: &Namespace, address: SocketAddr) -> Result<TcpListener> {
    let listener = namespace.enter(move || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })?;
    Ok(TcpListener::from_std(listener)?)
}

fn datagrams(namespace: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    let socket = namespace.enter(move || {
        let socket = std::net::UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    })?;
    Ok(UdpSocket::from_std(socket)?)
}

fn count_datagrams(socket: UdpSocket, visits: Visits) {
    tokio::spawn(async move {
        let mut bytes = [0; 64];
        while let Ok((length, _)) = socket.recv_from(&mut bytes).await {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            visits.add(SocketAddr::new(RESOLVER, DATAGRAM_PORT), VisitKind::Datagram, text);
        }
    });
}

/// The full name of a place.
pub fn name(place: &str) -> String {
    format!("{place}.{DOMAIN}")
}
