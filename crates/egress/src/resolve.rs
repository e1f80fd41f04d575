//! Names to addresses, as the host itself would find them: its hosts file, then its name servers.
//!
//! Never by way of search domains: `api.example.com` must not become `api.example.com.corp.example`.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use sandbox::HostName;

use crate::inspect::Unreached;

/// For one name, with every repetition.
const PATIENCE: Duration = Duration::from_secs(8);

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
        // The dot at the end keeps search domains out.
        let name = Name::from_ascii(format!("{name}.")).map_err(|_| Unreached::NoSuchName)?;
        let lookup = self.lookup();
        let listed = lookup.listed(&name);
        if !listed.is_empty() {
            return Ok(listed);
        }
        let servers = lookup.servers.as_ref().ok_or(Unreached::NameServers)?;
        match tokio::time::timeout(PATIENCE, servers.lookup_ip(name)).await {
            Ok(Ok(found)) => Ok(found.iter().collect()),
            Ok(Err(error)) if error.is_no_records_found() => Err(Unreached::NoSuchName),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the name servers gave no answer");
                Err(Unreached::NameServers)
            }
            Err(_) => Err(Unreached::NameServers),
        }
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
        let servers = TokioResolver::builder_tokio().and_then(|mut builder| {
            let options = builder.options_mut();
            options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
            options.use_hosts_file = ResolveHosts::Never;
            options.timeout = options.timeout.min(PATIENCE / 2);
            options.positive_max_ttl = Some(LONGEST_BELIEF);
            options.negative_max_ttl = Some(LONGEST_ABSENCE);
            builder.build()
        });
        if let Err(error) = &servers {
            tracing::warn!(%error, "this host names no servers to resolve with");
        }
        Self { hosts: Hosts::from_system().unwrap_or_default(), servers: servers.ok() }
    }

    fn listed(&self, name: &Name) -> Vec<IpAddr> {
        let kinds = [RecordType::A, RecordType::AAAA].into_iter();
        let lookups = kinds.filter_map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        lookups
            .flat_map(|lookup| lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>())
            .collect()
    }
}

fn versions() -> [Option<SystemTime>; 2] {
    SETTINGS.map(|path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok())
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}
