//! Each test runs a second time, in a network of its own that it may change, by a copy of this very program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output};
use std::time::Duration;

use super::*;

const INSIDE: &str = "SANDPEN_TEST_INSIDE_A_NETWORK";

/// Run the named test inside, with what may be missing on a host.
fn inside(test: &str, tools: &[&str]) -> Option<Output> {
    let found = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    if let Some(missing) = ["unshare"].iter().chain(tools).find(|tool| !found(tool)) {
        println!("skipped: there is no {missing}");
        return None;
    }
    let program = std::env::current_exe().unwrap();
    let name = format!("network::tests::{test}");
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(program)
        .args(["--exact", &name, "--nocapture"])
        .env(INSIDE, "yes")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "the test {name} did not run inside");
    Some(ran)
}

fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn listing() -> String {
    let listed = Command::new("nft").args(["--debug=netlink", "list", "ruleset"]).output().unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

/// What is meant, in the words of the tool.
const RULES: &str = "table inet sandpen {
\tchain capture {
\t\ttype filter hook prerouting priority mangle; policy accept;
\t\tip daddr 127.0.0.0/8 accept
\t\tip6 daddr ::1 accept
\t\tmeta l4proto tcp tproxy to :3128
\t}
}
";

#[test]
fn the_packet_filter_has_the_rules_that_the_tool_would_make() {
    if !is_inside() {
        inside("the_packet_filter_has_the_rules_that_the_tool_would_make", &["nft"]);
        return;
    }
    nftables::install(Sockets::PROXY_PORT).unwrap();
    let ours = listing();
    nftables::install(Sockets::PROXY_PORT).unwrap();
    assert_eq!(listing(), ours, "a second time changes nothing");
    assert!(ours.ends_with(RULES), "{ours}");

    assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
    let mut tool = Command::new("nft").args(["-f", "-"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    tool.stdin.take().unwrap().write_all(RULES.as_bytes()).unwrap();
    assert!(tool.wait().unwrap().success());
    assert_eq!(listing(), ours);
}

#[test]
fn every_connection_lands_on_the_listener_and_says_where_it_wanted_to_go() {
    if !is_inside() {
        inside("every_connection_lands_on_the_listener_and_says_where_it_wanted_to_go", &[]);
        return;
    }
    let sockets = open().unwrap();
    let listener = TcpListener::from(sockets.streams);
    listener.set_nonblocking(false).unwrap();
    for wanted in
        ["203.0.113.7:443", "10.0.0.1:22", "198.18.0.1:80", "[2001:db8::7]:8443", "[fd00::1]:1", "127.0.0.1:3128"]
    {
        let wanted: SocketAddr = wanted.parse().unwrap();
        let mut client = TcpStream::connect_timeout(&wanted, Duration::from_secs(5)).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        let local = served.local_addr().unwrap();
        assert_eq!((local.ip().to_canonical(), local.port()), (wanted.ip(), wanted.port()));
        client.write_all(b"there").unwrap();
        served.write_all(b"back again").unwrap();
        drop(served.shutdown(std::net::Shutdown::Write));
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "back again");
    }
}

#[test]
fn programs_reach_their_own_listeners_and_nothing_else_without_us() {
    if !is_inside() {
        inside("programs_reach_their_own_listeners_and_nothing_else_without_us", &[]);
        return;
    }
    let sockets = open().unwrap();
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    TcpStream::connect(own.local_addr().unwrap()).unwrap();
    own.accept().unwrap();
    let own = TcpListener::bind("[::1]:0").unwrap();
    TcpStream::connect(own.local_addr().unwrap()).unwrap();
    own.accept().unwrap();

    let datagrams = UdpSocket::bind("0.0.0.0:0").unwrap();
    datagrams.connect("203.0.113.7:9999").unwrap();
    datagrams.send(b"?").unwrap();
    datagrams.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let refused = datagrams.recv(&mut [0; 16]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

    drop(sockets);
    let refused = TcpStream::connect("203.0.113.7:443").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "nobody listens any more");
}

#[test]
fn the_first_of_two_processes_serves_and_the_second_takes_over() {
    if !is_inside() {
        inside("the_first_of_two_processes_serves_and_the_second_takes_over", &[]);
        return;
    }
    let [first, second] = [open().unwrap(), open().unwrap()].map(Served::from);
    for _ in 0..20 {
        first.serves();
    }
    assert_eq!(second.listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(second.names.recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(first);
    for _ in 0..20 {
        second.serves();
    }
}

struct Served {
    listener: TcpListener,
    names: UdpSocket,
}

impl From<Sockets> for Served {
    fn from(sockets: Sockets) -> Self {
        Self { listener: sockets.streams.into(), names: sockets.names.into() }
    }
}

impl Served {
    /// A connection is there when its maker has it, and so is a datagram: neither side has to wait.
    fn serves(&self) {
        let client = TcpStream::connect("203.0.113.7:443").unwrap();
        assert_eq!(self.listener.accept().unwrap().1, mapped(client.local_addr().unwrap()));
        let asking = UdpSocket::bind("127.0.0.1:0").unwrap();
        asking.send_to(b"name?", "127.0.0.1:53").unwrap();
        assert_eq!(self.names.recv_from(&mut [0; 16]).unwrap(), (5, asking.local_addr().unwrap()));
    }
}

/// As a socket for both families shows it.
fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        SocketAddr::V6(_) => address,
    }
}
