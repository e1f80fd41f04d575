//! From a host to a connection: resolve, check every address, dial exactly what was checked.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sandbox::{Denial, Host, HostRule, Network};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::address;
use crate::inspect::{Dial, Later, Unreached};
use crate::reach::Reach;
use crate::resolve::Resolver;
use crate::rule::Rule;

/// For all addresses of a host together.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long one address is alone before the next is tried beside it (RFC 8305).
const STAGGER: Duration = Duration::from_millis(250);

/// More addresses than this of one host are not tried.
const MOST_ADDRESSES: usize = 16;

/// Of these, so many at the same time: each holds a descriptor of the server, and a sandbox chooses the names.
const MOST_AT_ONCE: usize = 4;

/// Dials for one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    network: Network,
    private_hosts: Arc<[HostRule]>,
    reach: Arc<Reach>,
    resolver: Arc<Resolver>,
}

impl Dialer {
    pub fn new(network: Network, private_hosts: Vec<HostRule>, reach: Arc<Reach>, resolver: Arc<Resolver>) -> Self {
        Self { network, private_hosts: private_hosts.into(), reach, resolver }
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn holds(&self, rule: Rule) -> bool {
        self.reach.rules.stands(rule)
    }

    /// Whether a connection may be tried, before anything is asked of anybody.
    pub fn allows(&self, host: &Host, port: u16) -> Result<(), Denial> {
        if !self.holds(Rule::Names) {
            return Ok(());
        }
        self.network.allows(host, port).map_err(|denial| match host {
            // What nobody can allow is told as that, and not as something to ask for.
            Host::Address(address) => match address::denial(*address) {
                Some(never @ (Denial::MetadataAddress | Denial::SpecialAddress)) => never,
                Some(_) | None => denial,
            },
            Host::Name(_) => denial,
        })
    }

    /// Whether a name may be asked for.
    pub fn names(&self, host: &Host) -> bool {
        !self.holds(Rule::Names) || self.network.names(host)
    }

    /// Whether a name leads anywhere that may be reached, on some port.
    pub async fn leads_somewhere(&self, host: &Host) -> Result<(), Unreached> {
        let addresses = self.resolve(host).await?;
        let mut denial = None;
        for address in addresses {
            match self.reach.check_any_port(&self.private_hosts, host, address) {
                Ok(()) => return Ok(()),
                Err(refused) => denial = denial.or(Some(refused)),
            }
        }
        Err(denial.map_or(Unreached::NoSuchName, Unreached::Refused))
    }

    pub async fn connect(&self, host: &Host, port: u16) -> Result<TcpStream, Unreached> {
        self.allows(host, port).map_err(Unreached::Refused)?;
        let mut addresses = self.permitted(host, port).await?;
        if !self.holds(Rule::CheckedDial) {
            addresses = self.resolve(host).await?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        }
        match tokio::time::timeout(PATIENCE, self.race(host, addresses)).await {
            Ok(connected) => connected,
            Err(_) => Err(Unreached::Connect(io::ErrorKind::TimedOut.into())),
        }
    }

    /// The addresses of a host that may be dialled, families in turn. Without any, the reason of the first that may not.
    async fn permitted(&self, host: &Host, port: u16) -> Result<Vec<SocketAddr>, Unreached> {
        let mut permitted = Vec::new();
        let mut denial = None;
        for ip in self.resolve(host).await? {
            let address = SocketAddr::new(ip, port);
            match self.reach.check(&self.private_hosts, host, address) {
                Ok(()) => permitted.push(address),
                Err(refused) => denial = denial.or(Some(refused)),
            }
        }
        match (permitted.is_empty(), denial) {
            (false, _) => Ok(in_turn(permitted)),
            (true, Some(denial)) => Err(Unreached::Refused(denial)),
            (true, None) => Err(Unreached::NoSuchName),
        }
    }

    async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, Unreached> {
        match host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name) => self.resolver.addresses(name).await,
        }
    }

    /// The first to answer wins, the others are given up.
    async fn race(&self, host: &Host, addresses: Vec<SocketAddr>) -> Result<TcpStream, Unreached> {
        let mut waiting = addresses.into_iter();
        let mut attempts = JoinSet::new();
        let mut failure = Unreached::NoSuchName;
        loop {
            if attempts.len() < MOST_AT_ONCE
                && let Some(address) = waiting.next()
            {
                // The host's own place may have changed since the list was made.
                match self.reach.check(&self.private_hosts, host, address) {
                    Err(denial) if self.holds(Rule::CheckedDial) => {
                        failure = Unreached::Refused(denial);
                        continue;
                    }
                    Err(_) | Ok(()) => attempts.spawn(TcpStream::connect(address)),
                };
            }
            let ended = match waiting.len() {
                0 => attempts.join_next().await,
                _ if attempts.len() == MOST_AT_ONCE => attempts.join_next().await,
                _ => match tokio::time::timeout(STAGGER, attempts.join_next()).await {
                    Ok(ended) => ended,
                    Err(_) => continue,
                },
            };
            match ended {
                None => return Err(failure),
                Some(Ok(Ok(stream))) => {
                    // Interactive protocols must not wait for a full segment. Without it they only are slower.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Some(Ok(Err(error))) => failure = Unreached::Connect(error),
                Some(Err(error)) => failure = Unreached::Connect(io::Error::other(error)),
            }
        }
    }
}

impl Dial for Dialer {
    fn dial<'a>(&'a self, host: &'a Host, port: u16) -> Later<'a, Result<TcpStream, Unreached>> {
        Box::pin(self.connect(host, port))
    }
}

/// One of each family, again and again, so that a family that is broken here costs one stagger and no more.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::new();
    while ordered.len() < MOST_ADDRESSES {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            break;
        }
        ordered.extend(pair.into_iter().flatten());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let list = ["1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1", "[2606::1]:1"].map(address).to_vec();
        assert_eq!(in_turn(list), ["1.1.1.1:1", "[2606::1]:1", "1.1.1.2:1", "1.1.1.3:1"].map(address));
        assert_eq!(in_turn(vec![address("1.1.1.1:1"); 100]).len(), MOST_ADDRESSES);
        assert_eq!(in_turn(Vec::new()), []);
    }
}
