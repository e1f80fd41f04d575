//! Where packages come from on this machine: as pip, uv and npm are set up for the person who runs us.
//!
//! Builders get addresses, never logins. A login becomes a secret of the gateway, which sets it on requests to that index,
//! over TLS, where no code of a package can see it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use egress::{Gateway, Secret, SecretValue};
use engine_docker::DockerEngine;
use sandbox::{Error, HostRule, Image, Owner, PackageHost, PackageIndex, PackageLanguage, Result};

use self::url::{IndexUrl, Login};
use crate::config::Config;

#[cfg_attr(not(target_os = "linux"), path = "packages/no_identity.rs")]
mod identity;
mod ini;
mod npm;
mod pip;
mod url;
mod uv;

const PYPI: &str = "https://pypi.org/simple";
/// Where the links of the usual index lead.
const PYPI_FILES: &str = "files.pythonhosted.org:443";
const NPM: &str = "https://registry.npmjs.org/";

const MOST_CERTIFICATE_BYTES: u64 = 2 << 20;

/// What this machine knows of packages and images.
pub struct Machine {
    gateway: Arc<Gateway>,
    images: Images,
    /// Named by the operator, besides those that the settings of clients name.
    hosts: Vec<HostRule>,
    surroundings: Surroundings,
}

/// Where the images are that packages are for.
#[derive(Clone, Debug)]
pub enum Images {
    /// On this machine, in a state directory of ours.
    Here(PathBuf),
    Daemon(Arc<DockerEngine>),
}

impl Machine {
    pub fn new(config: &Config, gateway: &Arc<Gateway>, images: Images) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            images,
            hosts: config.packages.hosts.clone(),
            surroundings: Surroundings::of_process(),
        }
    }
}

#[async_trait]
impl PackageHost for Machine {
    fn index(&self, language: PackageLanguage) -> Result<PackageIndex> {
        let found = match language {
            PackageLanguage::Python => Found::python(&self.surroundings)?,
            PackageLanguage::JavaScript => npm::read(&self.surroundings)?,
        };
        let (mut index, secrets) = found.into_index(language)?;
        index.hosts.extend(self.hosts.iter().cloned());
        for secret in secrets {
            self.gateway.entrust(secret);
        }
        Ok(index)
    }

    async fn identity(&self, owner: &Owner, image: &Image) -> Result<String> {
        match &self.images {
            Images::Here(state_dir) => identity::identity(state_dir, owner, image),
            Images::Daemon(engine) => engine.identity(owner, image).await,
        }
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

type Variables = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Where settings of clients are looked for.
struct Surroundings {
    variables: Box<Variables>,
    home: Option<PathBuf>,
    /// The usual `/`; another in tests.
    root: PathBuf,
}

impl Surroundings {
    fn of_process() -> Self {
        let variables = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self { variables: Box::new(variables), home: std::env::home_dir(), root: PathBuf::from("/") }
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(name)
    }

    fn in_home(&self, path: &str) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(path))
    }

    fn in_config(&self, path: &str) -> Option<PathBuf> {
        match self.variable("XDG_CONFIG_HOME") {
            Some(directory) => Some(Path::new(&directory).join(path)),
            None => self.in_home(".config").map(|directory| directory.join(path)),
        }
    }

    fn in_root(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file that is not there, or not for us, says nothing.
    fn read(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }
}

/// What the settings of a client say.
#[derive(Debug, Default)]
struct Found {
    /// The usual one first.
    urls: Vec<IndexUrl>,
    scopes: Vec<(String, IndexUrl)>,
    /// Logins that are not part of a URL, by the beginning of the URLs that they are for, without the scheme.
    logins: Vec<(String, Login)>,
    trusted_hosts: Vec<String>,
    certificates: Option<PathBuf>,
    /// Nobody named an index, so it is the usual one.
    is_usual: bool,
}

impl Found {
    /// What uv is told goes before what pip is told: whoever has set up uv uses it.
    fn python(surroundings: &Surroundings) -> Result<Self> {
        let mut found = match uv::read(surroundings)? {
            Some(found) => found,
            None => pip::read(surroundings)?,
        };
        if found.urls.is_empty() {
            found.urls.push(PYPI.parse()?);
            found.is_usual = true;
        }
        Ok(found)
    }

    fn into_index(self, language: PackageLanguage) -> Result<(PackageIndex, Vec<Secret>)> {
        let mut index = PackageIndex { trusted_hosts: self.trusted_hosts.clone(), ..PackageIndex::default() };
        let mut logins: Vec<(HostRule, Login)> = Vec::new();
        for url in self.urls.iter().chain(self.scopes.iter().map(|(_, url)| url)) {
            self.check_scheme(language, url)?;
            let host = url.host_rule()?;
            let listed = self.logins.iter().find(|(start, _)| url.begins_with(start)).map(|(_, login)| login);
            if let Some(login) = url.login.as_ref().or(listed) {
                if !url.is_encrypted() {
                    return Err(Error::denied(format!("the index {url} has a login and is not encrypted"))
                        .with_hint("use https, or take the login out of the settings of the client"));
                }
                match logins.iter().find(|(other, _)| *other == host) {
                    Some((_, other)) if other != login => {
                        return Err(Error::unsupported(format!("{host} has two indexes with different logins"))
                            .with_hint("leave one of them to a host name of its own"));
                    }
                    Some(_) => {}
                    None => logins.push((host.clone(), login.clone())),
                }
            }
            if !index.hosts.contains(&host) {
                index.hosts.push(host.clone());
            }
            // Somebody wrote it into their settings, so it may be near.
            if !self.is_usual && !index.private_hosts.contains(&host) {
                index.private_hosts.push(host);
            }
        }
        if self.urls.iter().any(|url| url.host == "pypi.org") {
            index.hosts.push(PYPI_FILES.parse()?);
        }
        index.urls = self.urls.iter().map(ToString::to_string).collect();
        index.scopes = self.scopes.iter().map(|(scope, url)| (scope.clone(), url.to_string())).collect();
        index.certificates = self.certificates.as_deref().map(read_certificates).transpose()?;
        let secrets = logins
            .into_iter()
            .enumerate()
            .map(|(number, (host, login))| login.secret(language, number, host))
            .collect::<Result<Vec<_>>>()?;
        index.secrets = secrets.iter().map(|secret| secret.name().clone()).collect::<BTreeSet<_>>();
        Ok((index, secrets))
    }

    /// Only where the client itself would go.
    fn check_scheme(&self, language: PackageLanguage, url: &IndexUrl) -> Result<()> {
        let is_trusted = match language {
            PackageLanguage::Python => {
                url.is_loopback()
                    || self.trusted_hosts.iter().any(|host| *host == url.host || *host == url.host_and_port())
            }
            // npm asks no questions.
            PackageLanguage::JavaScript => true,
        };
        if url.is_encrypted() || is_trusted {
            return Ok(());
        }
        Err(Error::denied(format!("the index {url} is not encrypted, and pip is not told to trust it"))
            .with_hint(format!("use https, or set trusted-host to {}", url.host)))
    }
}

impl Login {
    fn secret(self, language: PackageLanguage, number: usize, host: HostRule) -> Result<Secret> {
        let name = format!("SANDPEN_INDEX_{}_{number}", language.as_str().to_ascii_uppercase()).parse()?;
        let (header, value) = match self {
            Login::Basic { user, password } => {
                ("Authorization: Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
            Login::Encoded(value) => ("Authorization: Basic {}", value),
            Login::Token(token) => ("Authorization: Bearer {}", token),
        };
        let value = SecretValue::new(value)
            .map_err(|error| Error::invalid_input(format!("the login of {host} cannot be used: {error}")))?;
        Secret::new(name, value, vec![host], Some(header.parse()?))
    }
}

fn read_certificates(path: &Path) -> Result<Vec<u8>> {
    let unreadable = || Error::invalid_input("the certificates that pip or npm is told to trust cannot be read");
    let size = std::fs::metadata(path).map_err(|cause| unreadable().with_cause(cause))?.len();
    if size > MOST_CERTIFICATE_BYTES {
        return Err(Error::limit_exceeded("the file of certificates is too large"));
    }
    std::fs::read(path).map_err(|cause| unreadable().with_cause(cause))
}

#[cfg(test)]
#[path = "packages/tests.rs"]
mod tests;
