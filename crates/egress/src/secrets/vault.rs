//! Secrets by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};
use sandbox::{Error, Host, HostRule, Ports, Result, SecretName};

use super::header::HeaderTemplate;
use super::value::SecretValue;

/// A value and where it may go.
#[derive(Debug)]
pub struct Secret {
    name: SecretName,
    value: SecretValue,
    hosts: Vec<HostRule>,
    header: Option<(HeaderTemplate, HeaderValue)>,
    purpose: Purpose,
}

/// What a value may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Anything,
    /// What can only be asked for, and not changed.
    Reading,
}

impl Secret {
    pub fn new(
        name: SecretName,
        value: SecretValue,
        hosts: Vec<HostRule>,
        header: Option<HeaderTemplate>,
    ) -> Result<Self> {
        if hosts.is_empty() {
            return Err(Error::invalid_input(format!("the secret {name} has no host"))
                .with_hint("name the host that it is for, like api.example.com"));
        }
        let header = match header {
            Some(template) => {
                let filled = template.fill(&value)?;
                Some((template, filled))
            }
            None => None,
        };
        Ok(Self { name, value, hosts, header, purpose: Purpose::Anything })
    }

    /// The same, for `GET` and `HEAD` alone: a sandbox that has it can ask its hosts for nothing else.
    pub fn for_reading(self) -> Self {
        Self { purpose: Purpose::Reading, ..self }
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub fn name(&self) -> &SecretName {
        &self.name
    }

    pub fn value(&self) -> &SecretValue {
        &self.value
    }

    pub fn hosts(&self) -> &[HostRule] {
        &self.hosts
    }

    pub fn header(&self) -> Option<&HeaderTemplate> {
        self.header.as_ref().map(|(template, _)| template)
    }

    /// The header with the value in it.
    pub(super) fn filled_header(&self) -> Option<(&HeaderName, &HeaderValue)> {
        self.header.as_ref().map(|(template, filled)| (template.name(), filled))
    }

    /// Whether the value may be sent there. A host without a port means 443: the value never goes out unencrypted.
    pub fn belongs_to(&self, host: &Host, port: u16) -> bool {
        self.hosts.iter().any(|rule| {
            rule.pattern.matches(host)
                && match rule.ports {
                    Ports::Web => port == 443,
                    Ports::One(_) | Ports::Any => rule.ports.contain(port),
                }
        })
    }

    /// Whether answers from there must be masked.
    pub fn may_come_from(&self, host: &Host, port: u16) -> bool {
        self.hosts.iter().any(|rule| rule.pattern.matches(host) && rule.ports.contain(port))
    }
}

/// The secrets that this process may put in. Copies share the values.
#[derive(Clone, Debug, Default)]
pub struct Vault {
    secrets: BTreeMap<SecretName, Arc<Secret>>,
}

impl Vault {
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    pub fn get(&self, name: &SecretName) -> Option<&Arc<Secret>> {
        self.secrets.get(name)
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Secret>> {
        self.secrets.values()
    }

    /// The one that had this name before.
    pub fn insert(&mut self, secret: Secret) -> Option<Arc<Secret>> {
        self.secrets.insert(secret.name.clone(), Arc::new(secret))
    }

    pub fn remove(&mut self, name: &SecretName) -> Option<Arc<Secret>> {
        self.secrets.remove(name)
    }
}
