//! Names to addresses, as the host itself would find them: its hosts file, then its name servers.
//!
//! Never by way of search domains: `api.example.com` must not become `api.example.com.corp.example`.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::config::{ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use sandbox::HostName;

use crate::inspect::Unreached;

/// For one name, with every repetition.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long the addresses of one family wait for those of the other.
const GRACE: Duration = Duration::from_millis(300);

/// Questions to one server that wait for their answers.
const MOST_AT_ONCE: usize = 1024;

/// How long an address is believed at most. It is checked again at each dial, whatever its age.
const LONGEST_BELIEF: Duration = Duration::from_secs(300);

/// How long a name that is absent stays absent at most: somebody may just be making it.
const LONGEST_ABSENCE: Duration = Duration::from_secs(10);

const SETTINGS: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Reads the host's settings again when they change, because a laptop moves between networks.
#[derive(Default)]
pub(crate) struct Resolver {
    current: Mutex<Option<Current>>,
}

struct Current {
    looked: Instant,
    versions: [Option<SystemTime>; 2],
    lookup: Arc<Lookup>,
}

struct Lookup {
    hosts: Hosts,
    /// `None` when the host names no servers that could be asked.
    servers: Option<TokioResolver>,
}

impl Resolver {
    pub async fn addresses(&self, name: &HostName) -> Result<Vec<IpAddr>, Unreached> {
        self.lookup().addresses(name).await
    }

    fn lookup(&self) -> Arc<Lookup> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &mut *current {
            if current.looked.elapsed() < LOOK_AGAIN {
                return Arc::clone(&current.lookup);
            }
            if current.versions == versions() {
                current.looked = Instant::now();
                return Arc::clone(&current.lookup);
            }
        }
        let versions = versions();
        let lookup = Arc::new(Lookup::from_host());
        *current = Some(Current { looked: Instant::now(), versions, lookup: Arc::clone(&lookup) });
        lookup
    }
}

impl Lookup {
    fn from_host() -> Self {
        let servers = || -> Result<_, NetError> {
            // What goes wrong in here has another type on each system.
            let (config, options) = system_conf::read_system_conf()?;
            asking(config, options)
        };
        let servers = servers();
        if let Err(error) = &servers {
            tracing::warn!(%error, "this host names no servers to resolve with");
        }
        Self { hosts: Hosts::from_system().unwrap_or_default(), servers: servers.ok() }
    }

    async fn addresses(&self, name: &HostName) -> Result<Vec<IpAddr>, Unreached> {
        // The dot at the end keeps search domains out.
        let name = Name::from_ascii(format!("{name}.")).map_err(|_| Unreached::NoSuchName)?;
        let listed = self.listed(&name);
        if !listed.is_empty() {
            return Ok(listed);
        }
        let servers = self.servers.as_ref().ok_or(Unreached::NameServers)?;
        let mut v4 = pin!(ask(servers, &name, RecordType::A));
        let mut v6 = pin!(ask(servers, &name, RecordType::AAAA));
        let (first, other): (_, Pin<&mut (dyn Future<Output = _> + Send)>) = tokio::select! {
            found = &mut v4 => (found, v6),
            found = &mut v6 => (found, v4),
        };
        // Some servers never answer for the family that they do not know.
        let second = match &first {
            Ok(_) => tokio::time::timeout(GRACE, other).await.unwrap_or(Err(Unreached::NameServers)),
            Err(_) => other.await,
        };
        match (first, second) {
            (Ok(first), Ok(second)) => Ok([first, second].concat()),
            (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
            (Err(Unreached::NoSuchName), Err(Unreached::NoSuchName)) => Err(Unreached::NoSuchName),
            (Err(_), Err(_)) => Err(Unreached::NameServers),
        }
    }

    fn listed(&self, name: &Name) -> Vec<IpAddr> {
        let kinds = [RecordType::A, RecordType::AAAA].into_iter();
        let lookups = kinds.filter_map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        lookups
            .flat_map(|lookup| lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>())
            .collect()
    }
}

fn asking(config: ResolverConfig, mut options: ResolverOpts) -> Result<TokioResolver, NetError> {
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = options.timeout.min(PATIENCE / 2);
    options.max_active_requests = MOST_AT_ONCE;
    options.positive_max_ttl = Some(LONGEST_BELIEF);
    options.negative_max_ttl = Some(LONGEST_ABSENCE);
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options).build()
}

/// Addresses of one family, at least one.
async fn ask(servers: &TokioResolver, name: &Name, kind: RecordType) -> Result<Vec<IpAddr>, Unreached> {
    let found = match tokio::time::timeout(PATIENCE, servers.lookup(name.clone(), kind)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) if error.is_no_records_found() => return Err(Unreached::NoSuchName),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the name servers gave no answer");
            return Err(Unreached::NameServers);
        }
        Err(_) => return Err(Unreached::NameServers),
    };
    let addresses: Vec<IpAddr> = found.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
    if addresses.is_empty() { Err(Unreached::NoSuchName) } else { Ok(addresses) }
}

fn versions() -> [Option<SystemTime>; 2] {
    SETTINGS.map(|path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok())
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::config::NameServerConfig;
    use hickory_resolver::proto::op::{Message, ResponseCode};
    use hickory_resolver::proto::rr::{RData, Record};
    use tokio::net::UdpSocket;

    use super::*;

    /// What a server does with a question of one kind.
    #[derive(Clone, Copy)]
    enum Manner {
        Says(&'static str),
        Denies,
        Fails,
        IsSilent,
    }

    /// A lookup whose only server treats questions for IPv4 and IPv6 addresses so.
    async fn lookup(v4: Manner, v6: Manner) -> Lookup {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut packet = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut packet).await {
                let question = Message::from_vec(&packet[..length]).unwrap();
                let query = question.queries[0].clone();
                let manner = if query.query_type == RecordType::A { v4 } else { v6 };
                let mut answer = question.into_response();
                answer.edns = None;
                match manner {
                    Manner::Says(address) => {
                        let address: IpAddr = address.parse().unwrap();
                        answer.add_answer(Record::from_rdata(query.name, 60, RData::from(address)));
                    }
                    Manner::Denies => answer.metadata.response_code = ResponseCode::NXDomain,
                    Manner::Fails => answer.metadata.response_code = ResponseCode::ServFail,
                    Manner::IsSilent => continue,
                }
                socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
            }
        });
        let mut server = NameServerConfig::udp(address.ip());
        server.connections[0].port = address.port();
        let config = ResolverConfig::from_name_servers(vec![server]);
        Lookup { hosts: Hosts::default(), servers: Some(asking(config, ResolverOpts::default()).unwrap()) }
    }

    async fn found(v4: Manner, v6: Manner) -> Result<Vec<IpAddr>, Unreached> {
        lookup(v4, v6).await.addresses(&"a.example".parse().unwrap()).await
    }

    #[tokio::test]
    async fn both_families_are_found_and_one_is_enough() {
        let (v4, v6) = (Manner::Says("203.0.113.5"), Manner::Says("2001:db8::5"));
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let mut both = found(v4, v6).await.unwrap();
        both.sort();
        assert_eq!(both, addresses(&["203.0.113.5", "2001:db8::5"]));
        for other in [Manner::Denies, Manner::Fails, Manner::IsSilent] {
            assert_eq!(found(v4, other).await.unwrap(), addresses(&["203.0.113.5"]));
            assert_eq!(found(other, v6).await.unwrap(), addresses(&["2001:db8::5"]));
        }
    }

    #[tokio::test]
    async fn a_name_that_is_absent_is_told_from_servers_that_fail() {
        assert!(matches!(found(Manner::Denies, Manner::Denies).await, Err(Unreached::NoSuchName)));
        assert!(matches!(found(Manner::Fails, Manner::Fails).await, Err(Unreached::NameServers)));
        assert!(matches!(found(Manner::Fails, Manner::Denies).await, Err(Unreached::NameServers)));
    }
}
