//! From a grant to all that a sandbox needs to use its secrets.

use std::sync::{Arc, Once};

use rustls::pki_types::CertificateDer;
use sandbox::{Environment, Error, HostPattern, HostRule, Network, Ports, Result, system};

use super::inspector::Inspector;
use super::keepsake::Keepsake;
use super::source::SecretSource;
use super::trust;
use super::vault::Secret;
use crate::grant::{Grant, GuestFile};
use crate::rule::Rules;

/// The part of a pass that comes from secrets.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub environment: Environment,
    pub files: Vec<GuestFile>,
    pub keepsake: String,
    pub inspector: Arc<Inspector>,
}

/// `None` for a sandbox without secrets, which costs nothing.
pub(crate) fn prepare(
    source: &SecretSource,
    grant: &Grant,
    keepsake: Option<&str>,
    extra_roots: &[CertificateDer<'static>],
    rules: &Rules,
) -> Result<Option<Prepared>> {
    if grant.secrets.is_empty() {
        return Ok(None);
    }
    keep_out_of_core_dumps();
    let vault = source.vault()?;
    let mut secrets: Vec<Arc<Secret>> = Vec::new();
    for name in &grant.secrets {
        let secret = vault.get(name).ok_or_else(|| {
            Error::not_found(format!("there is no secret {name}"))
                .with_hint(format!("the operator can add it with sandpen secret set {name} --host HOST"))
        })?;
        if !secret.hosts().iter().any(|rule| reaches(&grant.network, rule)) {
            let hosts: Vec<String> = secret.hosts().iter().map(ToString::to_string).collect();
            let hosts = hosts.join(", ");
            return Err(Error::invalid_input(format!("the secret {name} is for {hosts}, out of the sandbox's reach"))
                .with_hint(format!("let its network include {hosts}")));
        }
        if let Some(other) = secrets.iter().find(|other| collide(other, secret)) {
            return Err(Error::invalid_input(format!(
                "the secrets {} and {name} set the same header for the same host",
                other.name()
            ))
            .with_hint("give the sandbox one of them"));
        }
        secrets.push(Arc::clone(secret));
    }
    let keepsake = Keepsake::new(&grant.id, &grant.secrets, keepsake)?;
    let mut environment = Environment::default();
    trust::variables(&mut environment)?;
    for (name, placeholder) in &keepsake.placeholders {
        environment.insert(name.as_str(), placeholder.as_str())?;
    }
    Ok(Some(Prepared {
        environment,
        files: trust::files(&keepsake.authority)?,
        keepsake: keepsake.write(),
        inspector: Arc::new(Inspector::new(secrets, keepsake, extra_roots.to_vec(), rules)),
    }))
}

/// From here on this process holds values, which a crash must not write to disk.
fn keep_out_of_core_dumps() {
    static ONCE: Once = Once::new();
    ONCE.call_once(system::keep_out_of_core_dumps);
}

/// Whether a sandbox can get to any host and port of a secret's rule.
fn reaches(network: &Network, rule: &HostRule) -> bool {
    match network {
        Network::None => false,
        Network::Internet => true,
        Network::Hosts(rules) => rules.iter().any(|allowed| {
            overlap(&allowed.pattern, &rule.pattern)
                && match rule.ports {
                    Ports::Web => allowed.ports.contain(443),
                    Ports::One(port) => allowed.ports.contain(port),
                    Ports::Any => true,
                }
        }),
    }
}

fn collide(one: &Secret, other: &Secret) -> bool {
    let same_header = one.header().zip(other.header()).is_some_and(|(one, other)| one.name() == other.name());
    same_header
        && one.hosts().iter().any(|rule| {
            other.hosts().iter().any(|other| {
                overlap(&rule.pattern, &other.pattern)
                    && match (rule.ports, other.ports) {
                        (Ports::Any, _) | (_, Ports::Any) | (Ports::Web, Ports::Web) => true,
                        (Ports::Web, Ports::One(port)) | (Ports::One(port), Ports::Web) => port == 443,
                        (Ports::One(one), Ports::One(other)) => one == other,
                    }
            })
        })
}

fn overlap(one: &HostPattern, other: &HostPattern) -> bool {
    one.covers(other) || other.covers(one)
}
