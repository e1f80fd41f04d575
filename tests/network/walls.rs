//! Addresses: who can be reached from which network.

use async_trait::async_trait;
use egress::Rule;
use sandbox::Layer;
use sandpen_tests::Result;
use sandpen_tests::check::{About, Finding};

use crate::check::{Check, Control};
use crate::scene::{HELLO, Scene, arrivals};
use crate::world::places::{HOST, Kind, PLACES};
use crate::world::{CANARY_PORT, DATAGRAM_PORT, FIRST_PORT, name};

pub const CHECKS: &[&dyn Check] = &[&NoNetwork, &HostItself, &Addresses, &NamesOfAddresses, &PrivateByName, &NotTcp];

/// Where the host's own canaries are.
fn canaries() -> Vec<(String, u16)> {
    let own = HOST.iter().map(ToString::to_string);
    let loopback = ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"].map(str::to_owned);
    own.chain(loopback).map(|address| (address, CANARY_PORT)).collect()
}

/// Every machine of the outside that is not anybody's.
fn forbidden() -> Vec<(String, u16)> {
    let places = PLACES.iter().filter(|place| matches!(place.kind, Kind::Private | Kind::Neighbour));
    let mut targets: Vec<_> =
        places.flat_map(|place| place.addresses).map(|address| (address.to_string(), 80)).collect();
    targets.push(("::ffff:10.20.0.5".to_owned(), 80));
    targets.push(("::ffff:169.254.169.254".to_owned(), 80));
    targets
}

/// All of these, and a public place.
fn everywhere() -> Vec<(String, u16)> {
    let public = [("203.0.113.10".to_owned(), 80), ("2001:db8:10::10".to_owned(), 80), (name("public"), 80)];
    forbidden().into_iter().chain(canaries()).chain(public).collect()
}

/// A list that names every one of `targets`: a name in a list is no permission for an address that nobody may reach.
fn list_of(targets: &[(String, u16)]) -> String {
    let rules =
        targets.iter().map(|(host, _)| if host.contains(':') { format!("[{host}]:*") } else { format!("{host}:*") });
    rules.collect::<Vec<_>>().join(",")
}

/// Tries to leave a sandbox that was given nothing.
struct NoNetwork;

#[async_trait]
impl Check for NoNetwork {
    fn about(&self) -> About {
        About {
            id: "NW-01-world",
            tries: "public, private and the host's own addresses over TCP and UDP, and questions to resolvers, from a sandbox without a network",
            stopped_by: "network namespace",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::NetworkNamespace])]
    }

    /// The same from the host arrives.
    async fn instrument(&self, scene: &Scene) -> Result<Finding> {
        let targets = everywhere();
        let words: Vec<(&str, String)> = targets.iter().map(|(host, port)| (host.as_str(), port.to_string())).collect();
        let words = words.iter().flat_map(|(host, port)| [*host, port.as_str()]);
        scene.probe_on_host(&["fetch"].into_iter().chain(words).collect::<Vec<_>>(), HELLO)?;
        Ok(Finding::from_breaches(&arrivals(&scene.oracle.visits()?, |_| false), "none arrived"))
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox("none").await?;
        let targets = everywhere();
        let seen = scene.fetch(&sandbox, &targets, HELLO).await?;
        let datagram = DATAGRAM_PORT.to_string();
        sandbox.probe(&["connect", "udp", "203.0.113.10", &datagram, "udp", "203.0.113.53", "53"]).await?.complete()?;
        sandbox.end().await?;
        let slow = seen.0.iter().filter(|(_, answer)| answer.starts_with("connected"));
        let mut breaches = arrivals(&scene.oracle.visits()?, |_| false);
        breaches.extend(slow.map(|(target, answer)| format!("{target}: {answer}")));
        Ok(Finding::from_breaches(&breaches, format!("{} targets, none reached", targets.len())))
    }
}

/// The host, in every network.
struct HostItself;

#[async_trait]
impl Check for HostItself {
    fn about(&self) -> About {
        About {
            id: "NW-02-world",
            tries: "listeners on both loopbacks and on the host's own addresses, from every kind of network, also one that names them all",
            stopped_by: "rules for addresses",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Addresses])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let mut targets = canaries();
        let mut breaches = Vec::new();
        let list = format!("{},{}:*,{}:*", list_of(&targets), name("loopback"), name("host"));
        targets.push((name("loopback"), CANARY_PORT));
        targets.push((name("host"), CANARY_PORT));
        let mut refused = 0;
        for network in ["none", "internet", &list] {
            let sandbox = scene.sandbox(network).await?;
            scene.fetch(&sandbox, &targets, HELLO).await?;
            let port = CANARY_PORT;
            let mut told = Vec::new();
            if network != "none" {
                for host in [
                    "127.0.0.1",
                    "[::1]",
                    "localhost",
                    "192.0.2.2",
                    "[2001:db8:aaaa::2]",
                    &name("loopback"),
                    &name("host"),
                ] {
                    let asked = format!(
                        "GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
                    );
                    told.push(scene.ask_proxy(&sandbox, &asked).await?);
                    let asked = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n{HELLO}");
                    told.push(scene.ask_proxy(&sandbox, &asked).await?);
                }
            }
            refused += told.len();
            sandbox.end().await?;
            let came = scene.oracle.visits()?;
            breaches.extend(
                arrivals(&came, |visit| visit.port != CANARY_PORT).iter().map(|what| format!("{network:.20}: {what}")),
            );
        }
        let tried = targets.len() * 3 + refused;
        Ok(Finding::from_breaches(&breaches, format!("{tried} attempts in three networks, no visitor")))
    }
}

/// Everything that is not public, and one that is.
struct Addresses;

#[async_trait]
impl Check for Addresses {
    fn about(&self) -> About {
        About {
            id: "NW-04",
            tries: "private, shared, link-local, metadata, unique local, neighbouring, translated, multicast and broadcast addresses, and a public one, in both families",
            stopped_by: "rules for addresses",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Addresses])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let mut targets = forbidden();
        let never = ["224.0.0.251", "255.255.255.255", "192.0.2.255", "ff02::fb", "240.0.0.1", "fe80::1", "100::1"];
        targets.extend(never.map(|address| (address.to_owned(), 80)));
        let list = list_of(&targets);
        let mut breaches = Vec::new();
        for network in ["internet", &list] {
            let sandbox = scene.sandbox(network).await?;
            scene.fetch(&sandbox, &targets, HELLO).await?;
            breaches.extend(arrivals(&scene.oracle.visits()?, |visit| scene.is_public(visit)));
            if network == "internet" {
                let public =
                    [("203.0.113.10".to_owned(), 80), ("2001:db8:10::10".to_owned(), 80), (name("public"), FIRST_PORT)];
                let seen = scene.fetch(&sandbox, &public, HELLO).await?;
                let came = scene.oracle.visits()?.iter().filter(|visit| visit.place == "public").count();
                if came < 4 {
                    return Err(format!("only {came} visits to the public place: {:?}", seen.0).into());
                }
            }
            sandbox.end().await?;
        }
        Ok(Finding::from_breaches(
            &breaches,
            format!("{} addresses refused twice, the public one reached", targets.len()),
        ))
    }
}

/// The same by their names.
struct NamesOfAddresses;

#[async_trait]
impl Check for NamesOfAddresses {
    fn about(&self) -> About {
        About {
            id: "NW-04-names",
            tries: "names that answer with private addresses, by an alias, beside public ones, and redirects to them",
            stopped_by: "rules for addresses, asked for the address that is dialled",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Addresses])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let places = PLACES.iter().filter(|place| matches!(place.kind, Kind::Private | Kind::Neighbour));
        let mut names: Vec<String> = places.map(|place| name(place.name)).collect();
        names.extend(["alias", "mixed", "mapped", "loopback", "host"].map(name));
        let targets: Vec<_> = names.iter().map(|name| (name.clone(), 80)).collect();
        let list = list_of(&targets);
        let mut breaches = Vec::new();
        for network in ["internet", &list] {
            let sandbox = scene.sandbox(network).await?;
            scene.fetch(&sandbox, &targets, HELLO).await?;
            for host in &names {
                let asked = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                scene.ask_proxy(&sandbox, &asked).await?;
            }
            sandbox.end().await?;
            breaches.extend(arrivals(&scene.oracle.visits()?, |visit| scene.is_public(visit)));
        }
        Ok(Finding::from_breaches(&breaches, format!("{} names, no private place reached", names.len())))
    }
}

/// What an operator may allow by name, and what not even an operator may.
struct PrivateByName;

#[async_trait]
impl Check for PrivateByName {
    fn about(&self) -> About {
        About {
            id: "NW-04-operator",
            tries: "a private host that the operator named, its neighbours, its address, another port, and metadata that the operator named too",
            stopped_by: "rules for addresses",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Forgetting(&[Rule::Addresses])]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let private = format!("{}:80,{}:*,{}:*", name("intranet"), name("metadata"), name("benchmark"));
        let scene = scene.allowing(&private).await?;
        let sandbox = scene.sandbox("internet").await?;
        let reached = scene.fetch(&sandbox, &[(name("intranet"), 80)], HELLO).await?;
        if !scene.oracle.visits()?.iter().any(|visit| visit.place == "intranet") {
            return Err(format!("the host that the operator named is not reached: {:?}", reached.0).into());
        }
        let targets = [
            (name("intranet"), FIRST_PORT),
            ("10.20.0.8".to_owned(), 80),
            (name("ten"), 80),
            (name("metadata"), 80),
            ("169.254.169.254".to_owned(), 80),
            (name("benchmark"), 80),
            (name("loopback"), CANARY_PORT),
        ];
        scene.fetch(&sandbox, &targets, HELLO).await?;
        sandbox.end().await?;
        let breaches = arrivals(&scene.oracle.visits()?, |visit| scene.is_public(visit));
        Ok(Finding::from_breaches(&breaches, "one port of one host, and nothing beside it"))
    }
}

/// Whatever is not a TCP connection.
struct NotTcp;

#[async_trait]
impl Check for NotTcp {
    fn about(&self) -> About {
        About {
            id: "NW-04-datagrams",
            tries: "datagrams, questions to other resolvers, raw and rare sockets, from a sandbox with the internet",
            stopped_by: "a network without a route out of it; seccomp for socket families",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, scene: &Scene) -> Result<Finding> {
        let sandbox = scene.sandbox("internet").await?;
        let kinds = sandbox.probe(&["network"]).await?.complete()?.findings;
        let mut breaches: Vec<String> = ["raw", "raw6", "packet", "vsock", "sctp"]
            .iter()
            .filter(|kind| kinds.get(kind) == Some("ok"))
            .map(|kind| format!("a {kind} socket can be made"))
            .collect();
        let foreign = kinds.all("interface").filter(|interface| *interface != "lo");
        breaches.extend(foreign.map(|interface| format!("an interface {interface}")));
        let port = DATAGRAM_PORT.to_string();
        let mut arguments = vec!["connect"];
        for address in DATAGRAM_TARGETS {
            arguments.extend(["udp", *address, &port, "udp", *address, "53"]);
        }
        sandbox.probe(&arguments).await?.complete()?;
        sandbox.end().await?;
        breaches.extend(arrivals(&scene.oracle.visits()?, |_| false));
        Ok(Finding::from_breaches(&breaches, "no datagram arrived, no raw socket"))
    }

    /// The same datagrams from the host arrive.
    async fn instrument(&self, scene: &Scene) -> Result<Finding> {
        let port = DATAGRAM_PORT.to_string();
        let mut arguments = vec!["connect"];
        for address in DATAGRAM_TARGETS {
            arguments.extend(["udp", *address, &port]);
        }
        scene.probe_on_host(&arguments, "")?;
        Ok(Finding::from_breaches(&arrivals(&scene.oracle.visits()?, |_| false), "none arrived"))
    }
}

const DATAGRAM_TARGETS: &[&str] =
    &["203.0.113.10", "203.0.113.53", "2001:db8:10::10", "192.0.2.1", "192.0.2.2", "10.20.0.5"];
