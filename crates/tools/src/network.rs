//! The network of a sandbox in a model's hands: how it is asked for, and what is told of what was refused.

use std::borrow::Cow;
use std::fmt::Write;

use sandbox::{Denial, HostPattern, HostRule, Network, NetworkActivity, Ports, Refusal, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::words;

/// Refusals that are listed in an object.
const LISTED: usize = 32;
/// Refusals that are named in a line.
const NAMED: usize = 8;
/// A network that takes more is not repeated in full.
const SPELLED_OUT: usize = 400;

/// What a call asks for. The schema says text, written as everywhere else; a list of the parts is taken too, because that
/// is what comes to mind for hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected text: none, internet, or hosts with commas between them")]
pub enum NetworkArgument {
    Text(String),
    List(Vec<String>),
}

impl NetworkArgument {
    pub fn parse(&self) -> Result<Network> {
        match self {
            Self::Text(text) => text.parse(),
            Self::List(parts) if parts.is_empty() => Ok(Network::None),
            Self::List(parts) => parts.join(",").parse(),
        }
    }
}

impl JsonSchema for NetworkArgument {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// What happened on the network of a run, in results of tools and of the command line.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NetworkObject {
    pub connections: u64,
    /// That the sandbox got.
    pub bytes_in: u64,
    /// That the sandbox sent.
    pub bytes_out: u64,
    /// What was asked for and not given.
    pub refused: Vec<RefusalObject>,
    /// Refusals that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(default)]
    pub refused_left_out: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RefusalObject {
    pub host: String,
    /// Absent when only the name was looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The rule that stopped it.
    pub rule: &'static str,
    /// What the rule means.
    pub description: &'static str,
    pub count: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl From<&NetworkActivity> for NetworkObject {
    fn from(activity: &NetworkActivity) -> Self {
        let listed = activity.refused.iter().take(LISTED).map(|refusal| RefusalObject {
            host: refusal.host.to_string(),
            port: refusal.port,
            rule: refusal.denial.as_str(),
            description: refusal.denial.description(),
            count: refusal.count,
        });
        let more: u64 = activity.refused.iter().skip(LISTED).map(|refusal| refusal.count).sum();
        Self {
            connections: activity.usage.connections,
            bytes_in: activity.usage.bytes_in,
            bytes_out: activity.usage.bytes_out,
            refused: listed.collect(),
            refused_left_out: activity.refused_left_out + more,
        }
    }
}

/// What was refused, by rule: `a.example:443, b.example:22 (host_not_allowed: …); …`. `None` when nothing was.
pub fn refusals(activity: &NetworkActivity) -> Option<String> {
    let named = &activity.refused[..activity.refused.len().min(NAMED)];
    let rules = Denial::ALL.iter().filter_map(|denial| {
        let spelled: Vec<String> = named.iter().filter(|one| one.denial == *denial).map(spelled).collect();
        let listed = spelled.join(", ");
        (!spelled.is_empty()).then(|| format!("{listed} ({}: {})", denial.as_str(), denial.description()))
    });
    let mut text = rules.collect::<Vec<_>>().join("; ");
    let more = activity.refused.len() - named.len();
    if more > 0 || activity.refused_left_out > 0 {
        text += " and more";
    }
    (!text.is_empty()).then_some(text)
}

fn spelled(refusal: &Refusal) -> String {
    match refusal.port {
        Some(port) => format!("{}:{port}", refusal.host),
        None => refusal.host.to_string(),
    }
}

/// What could be asked for, so that what was refused goes through the next time.
#[derive(Debug, PartialEq, Eq)]
pub struct Wish {
    /// What the sandbox had and what it lacked, as far as that may be asked for. `None` when nothing may.
    pub network: Option<Network>,
    /// What it lacked, of that.
    pub lacking: Vec<HostRule>,
    /// What may not be asked for.
    pub forbidden: Vec<HostRule>,
}

impl Wish {
    /// After a run in a sandbox that had `network`, where at most `ceiling` can be had.
    pub fn after(activity: &NetworkActivity, network: &Network, ceiling: &Network) -> Self {
        let admits = |rule: &HostRule| match Network::hosts([rule.clone()]) {
            Ok(asked) => ceiling.admit(asked).is_ok(),
            Err(_) => false,
        };
        let (mut lacking, mut forbidden) = (Vec::new(), Vec::new());
        for refusal in activity.refused.iter().take(NAMED).filter(|refusal| is_for_asking(refusal.denial)) {
            let rules = [Ports::Web, refusal.port.map_or(Ports::Web, Ports::One)]
                .map(|ports| HostRule { pattern: HostPattern::from(&refusal.host), ports });
            let [web, exact] = &rules;
            let fits = refusal.port.is_none_or(|port| Ports::Web.contain(port));
            match [web, exact].into_iter().skip(usize::from(!fits)).find(|rule| admits(rule)) {
                Some(rule) => lacking.push(rule.clone()),
                None => forbidden.push(exact.clone()),
            }
        }
        for rules in [&mut lacking, &mut forbidden] {
            rules.sort();
            rules.dedup();
        }
        let had = match network {
            Network::None | Network::Internet => &[][..],
            Network::Hosts(rules) => rules,
        };
        let wider = Network::hosts(had.iter().chain(&lacking).cloned()).ok();
        Self { network: wider.filter(|_| !lacking.is_empty()), lacking, forbidden }
    }

    /// The whole of it, or what is to be added when that would be long.
    pub fn spelled(&self) -> Option<String> {
        let whole = self.network.as_ref()?.to_string();
        Some(if whole.len() <= SPELLED_OUT { whole } else { format!("…,{}", list(&self.lacking)) })
    }
}

pub fn list(rules: &[HostRule]) -> String {
    rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Whether a wider network would have let it through.
fn is_for_asking(denial: Denial) -> bool {
    match denial {
        Denial::NoNetwork | Denial::HostNotAllowed | Denial::PortNotAllowed => true,
        Denial::PrivateAddress
        | Denial::MetadataAddress
        | Denial::SpecialAddress
        | Denial::ServerItself
        | Denial::TooManyConnections
        | Denial::BytesUsedUp
        | Denial::NotHttp
        | Denial::Malformed => false,
    }
}

/// What to do about a refusal that no wider network would have helped.
fn remedy(denial: Denial) -> Option<&'static str> {
    match denial {
        Denial::NoNetwork | Denial::HostNotAllowed | Denial::PortNotAllowed | Denial::Malformed => None,
        Denial::PrivateAddress => Some("private hosts can be reached only when the operator of this server names them"),
        Denial::MetadataAddress | Denial::SpecialAddress | Denial::ServerItself => {
            Some("such addresses are never let through")
        }
        Denial::TooManyConnections => Some("close connections before you open more"),
        Denial::BytesUsedUp => Some("no more data can be moved; only the operator of this server can allow more"),
        Denial::NotHttp => Some("use HTTP or HTTPS with this host"),
    }
}

/// One line for a model: what was refused, by which rule, and what to do about it.
pub fn told(activity: &NetworkActivity, network: &Network, ceiling: &Network, how: Asking) -> Option<String> {
    let mut line = format!("[network: refused {}", refusals(activity)?);
    let wish = Wish::after(activity, network, ceiling);
    if let Some(asked) = wish.spelled() {
        let _ = match how {
            Asking::SameTool => write!(line, "; to reach it, call again with network \"{asked}\""),
            Asking::NewSandbox => {
                write!(line, "; to reach it, call create_sandbox with network \"{asked}\" and run there")
            }
        };
    }
    if !wish.forbidden.is_empty() {
        let _ = write!(line, "; only the operator of this server can allow {}", list(&wish.forbidden));
    }
    for denial in Denial::ALL {
        if activity.refused.iter().any(|refusal| refusal.denial == *denial)
            && let Some(remedy) = remedy(*denial)
            && !line.contains(remedy)
        {
            let _ = write!(line, "; {remedy}");
        }
    }
    line.push(']');
    Some(line)
}

/// What programs say when they look for a network and there is none.
const CUT_OFF: [&str; 9] = [
    "ould not resolve host",
    "nable to resolve host",
    "failure in name resolution",
    "Name or service not known",
    "etwork is unreachable",
    "EAI_AGAIN",
    "ENETUNREACH",
    "UnknownHostException",
    "on 127.0.0.1:53",
];

/// Whether a program says that it misses a network. A sandbox without one has nobody inside who could count what was
/// tried, so the words of the program are all there is.
pub fn is_missed_in(output: &[u8]) -> bool {
    CUT_OFF.iter().any(|words| output.windows(words.len()).any(|window| window == words.as_bytes()))
}

/// One line for a model whose program missed a network in a sandbox that has none.
pub fn missed(ceiling: &Network, how: Asking) -> String {
    let most = words::shortened(ceiling);
    match (ceiling, how) {
        (Network::None, _) => {
            "[network: this sandbox has none; only the operator of this server can allow one]".to_owned()
        }
        (Network::Hosts(_) | Network::Internet, Asking::SameTool) => {
            format!("[network: this sandbox has none; call again with network, for at most {most}]")
        }
        (Network::Hosts(_) | Network::Internet, Asking::NewSandbox) => {
            format!("[network: this sandbox has none; call create_sandbox with network, for at most {most}]")
        }
    }
}

/// Where another network can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// The sandbox was made for the run, and the next one can be made otherwise.
    SameTool,
    /// The sandbox stays as it was made.
    NewSandbox,
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
