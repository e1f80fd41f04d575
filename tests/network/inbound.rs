//! The other direction: who gets into a sandbox, and who can sit where its gateway sits.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use egress::Rule;
use sandbox::Layer;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Finding};
use sandpen_tests::lab::Sandbox;

use crate::check::{Check, Control};
use crate::scene::{HELLO, Scene, arrivals};
use crate::world::places::HOST;
use crate::world::{CANARY_PORT, name};

pub const CHECKS: &[&dyn Check] = &[&Visitors, &GatewaySockets, &OwnPort];

const PORT: u16 = 8123;

/// Wants to visit a listener inside: from outside, from the host and from another sandbox.
struct Visitors;

#[async_trait]
impl Check for Visitors {
    fn about(&self) -> About {
        About {
            id: "NW-06",
            tries: "connects to a listener in a sandbox from outside, from the host and from another sandbox of the same owner, in every kind of network",
            stopped_by: "network namespace",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::NetworkNamespace])]
    }

    async fn instrument(&self, scene: &Scene) -> Result<Finding> {
        visited_on_host(scene).await
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let networks: &[&str] = match scene.has(Layer::NetworkNamespace) {
            true => &["none", "internet", "public.example.com"],
            false => &["none"],
        };
        let mut breaches = Vec::new();
        for network in networks {
            let host = scene.sandbox(network).await?;
            let mut listening = host.start(&["visitors", &PORT.to_string()]).await?;
            let ready = listening.line().await?;
            if ready != "listening\tok" {
                return Err(format!("the listener does not stand: {ready}").into());
            }
            let guest = scene.sandbox(network).await?;
            knock(scene, &guest).await?;
            guest.end().await?;
            let said = listening.finish().await?.complete()?.findings;
            if said.get("visitors") != Some("0") {
                breaches.push(format!("{network}: {:?} visitors", said.get("visitors")));
            }
            host.end().await?;
        }
        scene.oracle.visits()?;
        Ok(Finding::from_breaches(&breaches, "no visitor came"))
    }
}

/// A listener with nothing around it.
async fn visited_on_host(scene: &Scene) -> Result<Finding> {
    let place = tempfile::tempdir()?;
    let mut command = Command::new(sandpen_tests::lab::probe_on_host(place.path())?);
    command.args(["visitors", &PORT.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut listening = command.spawn()?;
    let mut lines = BufReader::new(listening.stdout.take().ok_or("no output")?).lines();
    let ready = lines.next().ok_or("it says nothing")??;
    if ready != "listening\tok" {
        return Err(format!("the listener does not stand: {ready}").into());
    }
    let guest = scene.sandbox("none").await?;
    knock(scene, &guest).await?;
    guest.end().await?;
    drop(listening.stdin.take());
    let said = lines.collect::<std::io::Result<Vec<String>>>()?;
    listening.wait()?;
    scene.oracle.visits()?;
    let visitors = said.iter().filter(|line| line.starts_with("visitors\t") && *line != "visitors\t0");
    Ok(Finding::from_breaches(&visitors.cloned().collect::<Vec<_>>(), "no visitor came"))
}

async fn knock(scene: &Scene, guest: &Sandbox) -> Result<()> {
    let addresses = HOST.iter().map(ToString::to_string).chain(["127.0.0.1", "::1"].map(str::to_owned));
    let mut targets: Vec<(String, u16)> = addresses.map(|address| (address, PORT)).collect();
    for (address, port) in &targets {
        let address = SocketAddr::new(address.parse().map_err(|_| "not an address")?, *port);
        let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        let from = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let _ = UdpSocket::bind(from).and_then(|socket| socket.send_to(b"knock", address));
        if !address.ip().is_loopback() {
            scene.oracle.can_dial(address)?;
        }
    }
    targets.push(("sandbox".to_owned(), PORT));
    targets.push(("198.18.0.1".to_owned(), PORT));
    scene.fetch(guest, &targets, HELLO).await?;
    Ok(())
}

/// Wants to be asked instead of the gateway.
struct GatewaySockets;

#[async_trait]
impl Check for GatewaySockets {
    fn about(&self) -> About {
        About {
            id: "NW-06-sockets",
            tries: "binds to the ports of the proxy and of the resolver inside, beside them if they can be shared",
            stopped_by: "sockets of another user, on ports that are theirs",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox("internet").await?;
        let tried = sandbox.probe(&["take-ports"]).await?.complete()?.findings;
        sandbox.end().await?;
        let breaches: Vec<String> =
            tried.0.iter().filter(|(_, answer)| answer == "ok").map(|(place, _)| place.clone()).collect();
        Ok(Finding::from_breaches(&breaches, format!("{} places, none free", tried.0.len())))
    }

    /// Where there is no gateway, its port can be had.
    async fn instrument(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox("none").await?;
        let tried = sandbox.probe(&["take-ports"]).await?.complete()?.findings;
        sandbox.end().await?;
        let breaches: Vec<String> =
            tried.0.iter().filter(|(_, answer)| answer == "ok").map(|(place, _)| place.clone()).collect();
        Ok(Finding::from_breaches(&breaches, "none free"))
    }
}

/// A port that this process listens on, where the operator has allowed everything else of the host.
struct OwnPort;

#[async_trait]
impl Check for OwnPort {
    fn about(&self) -> About {
        About {
            id: "NW-05",
            tries: "the server's own port on every address of the host, by name, address and proxy, where the operator allows the host itself as a private one",
            stopped_by: "rules for what the server listens on",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::ServerItself])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let scene =
            scene.allowing("host.example.com:*,loopback.example.com:*,192.0.2.2:*,[2001:db8:aaaa::2]:*").await?;
        let sandbox = scene.sandbox("internet").await?;
        let hosts = [name("host"), name("loopback"), "192.0.2.2".to_owned(), "2001:db8:aaaa::2".to_owned()];
        let targets: Vec<(String, u16)> = hosts.iter().map(|host| (host.clone(), CANARY_PORT)).collect();
        let reached = scene.fetch(&sandbox, &targets, HELLO).await?;
        if arrivals(&scene.oracle.visits()?, |_| false).is_empty() {
            return Err(format!("what the operator allows is not reached: {:?}", reached.0).into());
        }
        for listener in ["0.0.0.0", "::"] {
            scene.lab.gateway.protect(SocketAddr::new(listener.parse().map_err(|_| "not an address")?, CANARY_PORT));
        }
        scene.fetch(&sandbox, &targets, HELLO).await?;
        for (host, port) in &targets {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let asked = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n{HELLO}");
            scene.ask_proxy(&sandbox, &asked).await?;
        }
        sandbox.end().await?;
        let breaches = arrivals(&scene.oracle.visits()?, |_| false);
        Ok(Finding::from_breaches(&breaches, "reached before it was ours, and not after"))
    }
}
