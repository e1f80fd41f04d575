//! The most that one owner may have, and owners for whom that is another.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::str::FromStr;

use egress::Allowance;
use sandbox::{ByteSize, Error, Owner, PerMinute, Quota, Result};

use super::{Config, cpu_millis, gateway, number, unknown_word};

/// All bounds of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerLimits {
    pub quota: Quota,
    /// Of all requests over HTTP. `None`: no bound.
    pub requests: Option<PerMinute>,
    pub network: Allowance,
}

/// `OWNER:LIMIT=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    owner: Owner,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Sandboxes(usize),
    CpuMillis(u64),
    Memory(ByteSize),
    Disk(ByteSize),
    SavedImages(usize),
    Runs(PerMinute),
    Requests(PerMinute),
    NetworkConnections(usize),
    NetworkBytes(u64),
    NetworkRate(u64),
}

impl Limit {
    /// As the options of all owners are called, without their `owner_`.
    const NAMES: &'static [&'static str] = &[
        "sandboxes",
        "cpus",
        "memory",
        "disk",
        "saved_images",
        "runs",
        "requests",
        "network_connections",
        "network_bytes",
        "network_rate",
    ];

    fn read(name: &str, value: &str) -> Result<Self> {
        Ok(match name {
            "sandboxes" => Self::Sandboxes(number(value)?),
            "cpus" => Self::CpuMillis(cpu_millis(value)?.into()),
            "memory" => Self::Memory(value.parse()?),
            "disk" => Self::Disk(value.parse()?),
            "saved_images" => Self::SavedImages(number(value)?),
            "runs" => Self::Runs(per_minute(value)?),
            "requests" => Self::Requests(per_minute(value)?),
            "network_connections" => Self::NetworkConnections(gateway::connections(value)?),
            "network_bytes" => Self::NetworkBytes(gateway::bytes(value)?),
            "network_rate" => Self::NetworkRate(gateway::bytes(value)?),
            _ => return Err(unknown_word("a limit of an owner", name, Self::NAMES)),
        })
    }

    fn apply(self, limits: &mut OwnerLimits) {
        let OwnerLimits { quota, requests, network } = limits;
        match self {
            Self::Sandboxes(count) => quota.sandboxes = count,
            Self::CpuMillis(millis) => quota.cpu_millis = Some(millis),
            Self::Memory(size) => quota.memory = Some(size),
            Self::Disk(size) => quota.disk = Some(size),
            Self::SavedImages(count) => quota.saved_images = count,
            Self::Runs(rate) => quota.runs = Some(rate),
            Self::Requests(rate) => *requests = Some(rate),
            Self::NetworkConnections(count) => network.connections = count,
            Self::NetworkBytes(bytes) => network.bytes = Some(bytes),
            Self::NetworkRate(bytes) => network.rate = Some(bytes),
        }
    }
}

impl FromStr for Exception {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // An owner may have colons in its name, and a limit has none.
        let parts = text.split_once('=').and_then(|(left, value)| Some((left.rsplit_once(':')?, value)));
        let ((owner, name), value) = parts.ok_or_else(|| {
            Error::invalid_input(format!("{text:?} is not a limit of an owner"))
                .with_hint("write OWNER:LIMIT=VALUE, for example alice:sandboxes=5")
        })?;
        Ok(Self { owner: owner.parse()?, limit: Limit::read(name, value)? })
    }
}

impl Config {
    /// Of owners of whom nothing else is said.
    pub fn usual_limits(&self) -> OwnerLimits {
        OwnerLimits { quota: self.quota, requests: self.requests, network: self.gateway.of_owner }
    }

    /// Of owners of whom something else is said.
    pub fn limits_of_owners(&self) -> BTreeMap<Owner, OwnerLimits> {
        let mut owners = BTreeMap::new();
        for Exception { owner, limit } in &self.exceptions {
            limit.apply(owners.entry(owner.clone()).or_insert_with(|| self.usual_limits()));
        }
        owners
    }
}

pub fn per_minute(text: &str) -> Result<PerMinute> {
    let count: u32 = number(text)?;
    NonZeroU32::new(count).map(PerMinute).ok_or_else(|| Error::invalid_input("with 0 in a minute nothing is left"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Key, Origin, Written};

    #[test]
    fn an_exception_changes_one_limit_of_one_owner() {
        let mut written = Written::new(Origin::Flags);
        for (key, value) in [
            (Key::OwnerSandboxes, "3"),
            (Key::OwnerCpus, "1.5"),
            (Key::OwnerRuns, "60"),
            (Key::OwnerLimit, "alice:sandboxes=9"),
            (Key::OwnerLimit, "oidc:https://id.example:7:runs=600"),
            (Key::OwnerLimit, "alice:network_bytes=1G"),
        ] {
            written.push(key, value);
        }
        let config = Config::resolve([written]).unwrap();
        let usual = config.usual_limits();
        assert_eq!((usual.quota.sandboxes, usual.quota.cpu_millis), (3, Some(1500)));
        let owners = config.limits_of_owners();
        let alice = owners[&"alice".parse().unwrap()];
        assert_eq!((alice.quota.sandboxes, alice.quota.runs), (9, usual.quota.runs));
        assert_eq!((alice.network.bytes, usual.network.bytes), (Some(1 << 30), None));
        let other = owners[&"oidc:https://id.example:7".parse().unwrap()];
        assert_eq!((other.quota.sandboxes, other.quota.runs), (3, Some(per_minute("600").unwrap())));
    }

    #[test]
    fn a_wrong_one_is_refused_with_what_was_meant() {
        let refused = |text: &str| text.parse::<Exception>().unwrap_err();
        assert_eq!(refused("alice:sandboxs=1").hint(), Some("did you mean sandboxes?"));
        for text in ["", "alice", "alice=1", "alice:sandboxes", ":sandboxes=1", "alice:runs=0", "alice:memory=much"] {
            refused(text);
        }
    }
}
