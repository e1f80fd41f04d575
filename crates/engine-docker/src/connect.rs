//! Where the daemon is: the places that Docker's and Podman's own clients look at, in their order.
//!
//! Deciding where to look is pure; [`Daemon::connect`] tries what was decided.
//!
//! [`Daemon::connect`]: crate::client::Daemon::connect

use std::fmt;
use std::path::{Path, PathBuf};

use sandbox::{Error, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::Flavour;

#[cfg_attr(windows, path = "connect/runtime/windows.rs")]
pub mod runtime;

/// What was asked for, before anything was looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// An address like `unix:///run/docker.sock`; goes before everything else.
    pub host: Option<String>,
    /// A context of Docker's client.
    pub context: Option<String>,
}

/// What the surroundings say: the environment and files of whoever runs us.
pub struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub read: &'a dyn Fn(&Path) -> Option<Vec<u8>>,
    /// The runtime directory that the system made for whoever runs us, where no variable names one: clients of MCP start servers
    /// with few variables.
    pub runtime: Option<&'a Path>,
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// One place where a daemon may be, and why we think so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub endpoint: Endpoint,
    pub because: String,
    /// What the daemon's own client must be told before anything else, so that it speaks to the same daemon. Whoever starts it
    /// has another shell than we had, so nothing is left out but what it does by itself in any.
    pub client: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket, or a named pipe of Windows.
    Local(PathBuf),
    Plain {
        address: String,
    },
    Tls {
        address: String,
        files: TlsFiles,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "{}", path.display()),
            Self::Plain { address } => write!(f, "tcp://{address}"),
            Self::Tls { address, .. } => write!(f, "tcp://{address} with TLS"),
        }
    }
}

impl Endpoint {
    /// As clients are told of it.
    fn address(&self) -> String {
        match self {
            Self::Local(path) => match path.to_string_lossy() {
                pipe if pipe.starts_with('\\') => format!("npipe://{}", pipe.replace('\\', "/")),
                path => format!("unix://{path}"),
            },
            Self::Plain { address } | Self::Tls { address, .. } => format!("tcp://{address}"),
        }
    }

    fn client(&self, flavour: Flavour) -> Vec<String> {
        let before = match flavour {
            Flavour::Docker => ["--host"].as_slice(),
            // Without the first word it asks no service.
            Flavour::Podman => ["--remote", "--url"].as_slice(),
        };
        let tls = match self {
            Self::Local(_) | Self::Plain { .. } => Vec::new(),
            Self::Tls { files: TlsFiles { authority, certificate, key }, .. } => {
                let named = [("--tlscacert", authority), ("--tlscert", certificate), ("--tlskey", key)];
                let named = named.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]);
                ["--tlsverify".to_owned()].into_iter().chain(named).collect()
            }
        };
        before.iter().map(|&word| word.to_owned()).chain([self.address()]).chain(tls).collect()
    }
}

/// Where to look, in order. What was named, by a setting, a variable or a context, is the only place; the usual sockets are
/// looked at only when nothing was named.
pub fn candidates(flavour: Flavour, wish: &Wish, around: &Surroundings<'_>) -> Result<Vec<Candidate>> {
    if let Some(host) = &wish.host {
        return Ok(vec![named(flavour, host, "the setting for the daemon's address", around)?]);
    }
    match flavour {
        Flavour::Docker => docker(wish, around),
        Flavour::Podman => podman(wish, around),
    }
}

fn docker(wish: &Wish, around: &Surroundings<'_>) -> Result<Vec<Candidate>> {
    let asked = match &wish.context {
        Some(name) => Some((name.clone(), "the setting for the context")),
        None => {
            if let Some(host) = around.variable("DOCKER_HOST") {
                return Ok(vec![named(Flavour::Docker, &host, "DOCKER_HOST", around)?]);
            }
            around.variable("DOCKER_CONTEXT").map(|name| (name, "DOCKER_CONTEXT"))
        }
    };
    let is_asked = asked.is_some();
    let current =
        || -> Result<_> { Ok(current_context(around)?.map(|name| (name, "the current context of Docker's client"))) };
    match asked.map_or_else(current, |asked| Ok(Some(asked)))? {
        Some((name, because)) if name != DEFAULT_CONTEXT => return Ok(vec![context(&name, because, around)?]),
        Some(_) | None => {}
    }
    // Where the default was asked for, another one may be current.
    let default = if is_asked { around.context_arguments(DEFAULT_CONTEXT) } else { Vec::new() };
    if cfg!(windows) {
        return Ok(vec![Candidate { client: default, ..usual(Flavour::Docker, r"\\.\pipe\docker_engine") }]);
    }
    // The only one that Docker's client looks at by itself.
    let mut places = vec![Candidate { client: default, ..usual(Flavour::Docker, "/var/run/docker.sock") }];
    if let Some(runtime) = around.runtime_directory() {
        places.push(usual(Flavour::Docker, runtime.join("docker.sock")));
    }
    if let Some(home) = around.directory("HOME") {
        places.push(usual(Flavour::Docker, home.join(".docker/run/docker.sock")));
    }
    Ok(places)
}

fn podman(wish: &Wish, around: &Surroundings<'_>) -> Result<Vec<Candidate>> {
    if wish.context.is_some() {
        return Err(Error::invalid_input("contexts are Docker's: Podman has none")
            .with_hint("name the address of Podman's service instead"));
    }
    if let Some(host) = around.variable("CONTAINER_HOST") {
        return Ok(vec![named(Flavour::Podman, &host, "CONTAINER_HOST", around)?]);
    }
    if cfg!(windows) {
        return Ok(vec![usual(Flavour::Podman, r"\\.\pipe\podman-machine-default")]);
    }
    let mut places = Vec::new();
    if let Some(runtime) = around.runtime_directory() {
        places.push(usual(Flavour::Podman, runtime.join("podman/podman.sock")));
    }
    places.push(usual(Flavour::Podman, "/run/podman/podman.sock"));
    if let Some(home) = around.directory("HOME") {
        places.push(usual(Flavour::Podman, home.join(".local/share/containers/podman/machine/podman.sock")));
    }
    Ok(places)
}

/// What to do when nobody answers.
pub fn how_to_start(flavour: Flavour) -> &'static str {
    match (flavour, cfg!(target_os = "linux")) {
        (Flavour::Docker, true) => {
            "start it by `systemctl start docker` (or `systemctl --user start docker` for a rootless one), \
             join its group to be let in, or name another by DOCKER_HOST"
        }
        (Flavour::Docker, false) => "start Docker Desktop, or name another daemon by DOCKER_HOST",
        (Flavour::Podman, true) => {
            "start its service by `systemctl --user start podman.socket` (or `systemctl start podman.socket` as root), \
             or name another by CONTAINER_HOST"
        }
        (Flavour::Podman, false) => "run `podman machine start`, or name another service by CONTAINER_HOST",
    }
}

const DEFAULT_CONTEXT: &str = "default";

fn usual(flavour: Flavour, path: impl Into<PathBuf>) -> Candidate {
    at(flavour, Endpoint::Local(path.into()), "the usual place".to_owned())
}

fn at(flavour: Flavour, endpoint: Endpoint, because: String) -> Candidate {
    let client = endpoint.client(flavour);
    Candidate { endpoint, because, client }
}

fn named(flavour: Flavour, host: &str, because: &str, around: &Surroundings<'_>) -> Result<Candidate> {
    // Docker's variables say nothing of Podman, whose client does not know them.
    let tls = || match flavour {
        Flavour::Docker => around.tls_of_environment(),
        Flavour::Podman => Ok(None),
    };
    Ok(at(flavour, endpoint(flavour, host, because, tls)?, because.to_owned()))
}

/// What is to be known of TLS is asked for only where there can be any.
fn endpoint(
    flavour: Flavour,
    host: &str,
    because: &str,
    tls: impl FnOnce() -> Result<Option<TlsFiles>>,
) -> Result<Endpoint> {
    let wrong = |what: &str| Error::invalid_input(format!("{because} names {host:?}, {what}"));
    let (scheme, rest) = match host.split_once("://") {
        Some((scheme, rest)) => (scheme, rest),
        None if host.starts_with('/') => ("unix", host),
        None => ("tcp", host),
    };
    if rest.is_empty() {
        return Err(wrong("which says no place"));
    }
    match scheme {
        "unix" if Path::new(rest).is_absolute() => Ok(Endpoint::Local(PathBuf::from(rest))),
        "unix" => Err(wrong("whose path is not absolute")),
        "npipe" => Ok(Endpoint::Local(PathBuf::from(rest.replace('/', "\\")))),
        "tcp" | "http" | "https" => {
            let address = rest.trim_end_matches('/').to_owned();
            match tls()? {
                Some(files) => Ok(Endpoint::Tls { address, files }),
                None if scheme == "https" => Err(match flavour {
                    Flavour::Docker => wrong("which needs certificates").with_hint(
                        "set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH to a directory with ca.pem, cert.pem and key.pem",
                    ),
                    Flavour::Podman => wrong("and Podman's service speaks no TLS")
                        .with_hint("name its socket, or forward it to this machine"),
                }),
                None => Ok(Endpoint::Plain { address }),
            }
        }
        "ssh" => Err(wrong("and connections over ssh are not made by us").with_hint(
            "forward the socket yourself, for example `ssh -N -L /tmp/daemon.sock:/var/run/docker.sock HOST`, and \
             name unix:///tmp/daemon.sock",
        )),
        _ => Err(wrong("which is no address of a daemon").with_hint("use unix:///PATH or tcp://HOST:PORT")),
    }
}

/// The parts of Docker's own files that say where its daemon is.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConfig {
    current_context: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContextFile {
    name: String,
    endpoints: ContextEndpoints,
}

#[derive(Deserialize)]
struct ContextEndpoints {
    docker: Option<ContextEndpoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContextEndpoint {
    #[serde(default)]
    host: String,
    #[serde(default, rename = "SkipTLSVerify")]
    skip_tls_verify: bool,
}

fn current_context(around: &Surroundings<'_>) -> Result<Option<String>> {
    let Some(directory) = around.client_directory() else { return Ok(None) };
    let Some(text) = (around.read)(&directory.join("config.json")) else { return Ok(None) };
    let config: ClientConfig = serde_json::from_slice(&text).map_err(|cause| {
        Error::invalid_input("the config.json of Docker's client is not in order").with_cause(cause)
    })?;
    Ok(config.current_context.filter(|name| !name.is_empty()))
}

fn context(name: &str, because: &str, around: &Surroundings<'_>) -> Result<Candidate> {
    let shown: String = name.chars().take(64).collect();
    let unknown = || {
        Error::not_found(format!("{because} names {shown:?}, which Docker's client does not know"))
            .with_hint("`docker context ls` shows those that there are")
    };
    let contexts = around.client_directory().ok_or_else(unknown)?.join("contexts");
    // Docker's client keeps each under the digest of its name, so that a name can hold anything.
    let key: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let text = (around.read)(&contexts.join("meta").join(&key).join("meta.json")).ok_or_else(unknown)?;
    let broken = || Error::invalid_input(format!("the context {shown:?} of Docker's client is not in order"));
    let found: ContextFile = serde_json::from_slice(&text).map_err(|cause| broken().with_cause(cause))?;
    let Some(place) = found.endpoints.docker.filter(|place| found.name == name && !place.host.is_empty()) else {
        return Err(broken());
    };
    let tls = TlsFiles::in_directory(&contexts.join("tls").join(&key).join("docker"));
    let has_tls = (around.read)(&tls.authority).is_some();
    // Whoever has a certificate for the daemon does not mean to talk to it in the open.
    let is_half = !has_tls && [&tls.certificate, &tls.key].into_iter().any(|file| (around.read)(file).is_some());
    if place.skip_tls_verify || is_half {
        return Err(unverified(&format!("the context {shown:?}")));
    }
    let because = format!("{because} ({shown})");
    let endpoint = endpoint(Flavour::Docker, &place.host, &because, || Ok(has_tls.then_some(tls)))?;
    Ok(Candidate { endpoint, because, client: around.context_arguments(name) })
}

fn unverified(who: &str) -> Error {
    Error::denied(format!("{who} does not verify the daemon, so anybody on the way could be it"))
        .with_hint("give the authority's certificate as ca.pem, and let it be verified")
}

impl TlsFiles {
    fn in_directory(directory: &Path) -> Self {
        Self {
            authority: directory.join("ca.pem"),
            certificate: directory.join("cert.pem"),
            key: directory.join("key.pem"),
        }
    }
}

impl Surroundings<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn directory(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    fn runtime_directory(&self) -> Option<PathBuf> {
        self.directory("XDG_RUNTIME_DIR").or_else(|| self.runtime.map(Path::to_owned))
    }

    fn client_directory(&self) -> Option<PathBuf> {
        let home = || self.directory(if cfg!(windows) { "USERPROFILE" } else { "HOME" });
        self.directory("DOCKER_CONFIG").or_else(|| home().map(|home| home.join(".docker")))
    }

    /// How Docker's client is told of one of its contexts, which it may know by a configuration elsewhere.
    fn context_arguments(&self, name: &str) -> Vec<String> {
        let configuration = self.directory("DOCKER_CONFIG").map(|directory| directory.display().to_string());
        let configuration = configuration.into_iter().flat_map(|directory| ["--config".to_owned(), directory]);
        configuration.chain(["--context".to_owned(), name.to_owned()]).collect()
    }

    /// The certificates that Docker's variables ask for; `None` when they ask for no TLS.
    fn tls_of_environment(&self) -> Result<Option<TlsFiles>> {
        if self.variable("DOCKER_TLS_VERIFY").is_none() {
            return match self.variable("DOCKER_TLS") {
                Some(_) => Err(unverified("DOCKER_TLS without DOCKER_TLS_VERIFY")),
                None => Ok(None),
            };
        }
        let directory = self.directory("DOCKER_CERT_PATH").or_else(|| self.client_directory());
        let directory = directory.ok_or_else(|| {
            Error::invalid_input("DOCKER_TLS_VERIFY is set, and there is no place for certificates")
                .with_hint("set DOCKER_CERT_PATH to a directory with ca.pem, cert.pem and key.pem")
        })?;
        Ok(Some(TlsFiles::in_directory(&directory)))
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
