//! The network of a sandbox that was given none.

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use async_trait::async_trait;
use sandbox::Layer;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::Lab;
use sandpen_tests::random::unique;

pub const CHECKS: &[&dyn Check] = &[&Egress, &HostLoopback];

/// Looks for interfaces and tries to reach out.
struct Egress;

/// Addresses that are kept for documents: nobody answers there, and nothing of ours travels far.
const OUTSIDE: &[&str] =
    &["tcp", "192.0.2.1", "80", "tcp", "2001:db8::1", "80", "udp", "192.0.2.1", "53", "udp", "198.51.100.7", "443"];
/// A refusal that takes longer than this is not "at once".
const AT_ONCE_MS: i64 = 500;

#[async_trait]
impl Check for Egress {
    fn about(&self) -> About {
        About {
            id: "NW-01",
            tries: "lists interfaces and routes; TCP, UDP, ICMP, raw and rare sockets",
            stopped_by: "network namespace, seccomp for socket families",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::NetworkNamespace]), Control::Without(&[Layer::Seccomp])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let seen = sandbox.probe(&["network"]).await?.complete()?.findings;
        let mut breaches = Vec::new();
        let foreign: Vec<&str> = seen.all("interface").filter(|name| *name != "lo").collect();
        if !foreign.is_empty() {
            breaches.push(format!("interfaces {}", foreign.join(", ")));
        }
        if seen.number("routes").is_some_and(|routes| routes > 0) {
            breaches.push(format!("{:?} routes", seen.get("routes")));
        }
        for (kind, answers) in [
            ("raw", &["EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"][..]),
            ("raw6", &["EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"]),
            ("packet", &["EAFNOSUPPORT"]),
            ("vsock", &["EAFNOSUPPORT"]),
            ("alg", &["EAFNOSUPPORT"]),
            ("bluetooth", &["EAFNOSUPPORT"]),
            ("xdp", &["EAFNOSUPPORT"]),
            ("sctp", &["EAFNOSUPPORT", "EPROTONOSUPPORT"]),
        ] {
            if !seen.get(kind).is_some_and(|answer| answers.contains(&answer)) {
                breaches.push(format!("a {kind} socket answers {:?}", seen.get(kind)));
            }
        }
        // Without a network of its own the packets would really leave.
        if !lab.without.contains(&Layer::NetworkNamespace) {
            let arguments: Vec<&str> = ["connect"].iter().chain(OUTSIDE).copied().collect();
            let tried = sandbox.probe(&arguments).await?.complete()?.findings;
            for (target, answer) in &tried.0 {
                let (result, took) = answer.split_once(' ').unwrap_or((answer, "0"));
                if result == "ok" || took.parse().unwrap_or(i64::MAX) > AT_ONCE_MS {
                    breaches.push(format!("{target}: {answer}"));
                }
            }
        }
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, "loopback only, all refused at once"))
    }
}

/// Listens on the host and waits for whoever comes.
struct HostLoopback;

struct Canaries {
    tcp: Vec<TcpListener>,
    udp: UdpSocket,
    local: UnixListener,
    name: String,
}

impl Canaries {
    fn listen() -> Result<Self> {
        let mut addresses = vec!["127.0.0.1:0".to_owned(), "[::1]:0".to_owned()];
        addresses.extend(own_address().map(|address| match address {
            IpAddr::V4(address) => format!("{address}:0"),
            IpAddr::V6(address) => format!("[{address}]:0"),
        }));
        // A host without IPv6 has nothing to protect there.
        let tcp: Vec<TcpListener> = addresses.iter().filter_map(|address| TcpListener::bind(address).ok()).collect();
        for listener in &tcp {
            listener.set_nonblocking(true)?;
        }
        let udp = UdpSocket::bind("127.0.0.1:0")?;
        udp.set_nonblocking(true)?;
        let name = unique("sandpen-canary");
        let local = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes())?)?;
        local.set_nonblocking(true)?;
        Ok(Self { tcp, udp, local, name })
    }

    fn arguments(&self) -> Result<Vec<String>> {
        let mut arguments = vec!["connect".to_owned()];
        for listener in &self.tcp {
            let address = listener.local_addr()?;
            arguments.extend(["tcp".to_owned(), address.ip().to_string(), address.port().to_string()]);
        }
        let address = self.udp.local_addr()?;
        arguments.extend(["udp".to_owned(), address.ip().to_string(), address.port().to_string()]);
        arguments.extend(["abstract".to_owned(), self.name.clone(), "0".to_owned()]);
        Ok(arguments)
    }

    fn visitors(&self) -> Vec<String> {
        let mut visitors = Vec::new();
        for listener in &self.tcp {
            if listener.accept().is_ok() {
                visitors.push(format!("a connection on {:?}", listener.local_addr()));
            }
        }
        if self.udp.recv(&mut [0; 16]).is_ok() {
            visitors.push("a datagram".to_owned());
        }
        if self.local.accept().is_ok() {
            visitors.push("a connection on an abstract socket".to_owned());
        }
        visitors
    }
}

/// The address that this host would send from; nothing is sent to find out.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[async_trait]
impl Check for HostLoopback {
    fn about(&self) -> About {
        About {
            id: "NW-02",
            tries: "connects to listeners on the host: both loopbacks, its own address, a datagram, an abstract socket",
            stopped_by: "network namespace",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::NetworkNamespace])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let canaries = Canaries::listen()?;
        let sandbox = lab.sandbox().await?;
        let arguments = canaries.arguments()?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        sandbox.probe(&arguments).await?.complete()?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        sandbox.end().await?;
        let visitors = canaries.visitors();
        Ok(Finding::from_breaches(&visitors, format!("{} listeners, no visitor", canaries.tcp.len() + 2)))
    }
}
