//! Every setting, resolved: flag over variable over file over default.
//!
//! What was written stays text until here, so that each value is understood in one place and a wrong one is reported
//! with the place where it stands.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sandbox::{Error, HostRule, Image, Insistence, Layer, PerMinute, Quota, Result};
use tools::{Ceiling, ImagePattern, ProfileName, ProfileOptions, Selection, Toolset};

pub use self::code::CodeConfig;
pub use self::code_runner::CodeRunnerConfig;
pub use self::daemon::DaemonConfig;
pub use self::gateway::GatewayConfig;
pub use self::http::HttpConfig;
pub use self::key::Key;
use self::key::Shape;
pub use self::limits::OwnerLimits;
pub use self::oauth::OAuthConfig;
pub use self::places::base_directory;
use self::places::{usual_files, usual_state_dir};
pub use self::registries::RegistryConfig;
pub use self::reread::Reread;
pub use self::sandboxes::SandboxConfig;
pub use self::written::{Origin, Written};
use crate::attach::Screen;
use crate::transfer::roots::OpenedPath;
use crate::{suggest, time};

mod code;
pub mod code_runner;
pub mod daemon;
mod engines;
pub mod env;
pub mod file;
pub mod flags;
pub mod gateway;
mod given;
pub mod http;
pub mod key;
mod limits;
pub mod oauth;
mod places;
mod profiles;
pub mod registries;
mod reread;
pub mod sandboxes;
pub mod written;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub engine: EngineChoice,
    pub daemon: DaemonConfig,
    state_dir: Option<PathBuf>,
    pub allow_missing: BTreeSet<Layer>,
    /// A file of languages to add to the built-in ones.
    pub runners: Option<PathBuf>,
    pub json: bool,
    pub color: Color,
    pub verbose: bool,
    pub sandbox: SandboxConfig,
    pub gateway: GatewayConfig,
    pub server: ServerConfig,
    pub http: HttpConfig,
    pub oauth: OAuthConfig,
    /// What one of the older servers had besides.
    pub code_runner: CodeRunnerConfig,
    pub registries: RegistryConfig,
    pub packages: PackageConfig,
    /// The most that one owner may have.
    pub quota: Quota,
    /// How often one owner may ask over HTTP.
    requests: Option<PerMinute>,
    /// What is different for some owners.
    exceptions: Vec<limits::Exception>,
    /// All that was written, for reading it again with another profile's wishes before it.
    places: Vec<Written>,
    /// The file that a flag named.
    named_file: Option<PathBuf>,
}

/// Packages that are installed for sandboxes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackageConfig {
    /// Whether clients of a server may ask for some.
    pub allowed: bool,
    /// Hosts that installations may reach besides the index.
    pub hosts: Vec<HostRule>,
}

/// What a server offers, and what it tells of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// The older server that is spoken for instead of ours.
    pub profile: Option<ProfileName>,
    pub profile_options: ProfileOptions,
    pub code: CodeConfig,
    pub selection: Selection,
    /// The most that a client may ask for.
    pub ceiling: Ceiling,
    /// Whether interpreters are started ahead of demand.
    pub warm: bool,
    /// Directories of the host that clients may copy from and to.
    pub opened: Vec<OpenedPath>,
    /// Images that clients may ask for.
    pub images: Vec<ImagePattern>,
    pub log: LogLevel,
    pub log_format: LogFormat,
    /// Where to write down what is done, besides the log.
    pub audit_log: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: EngineChoice::USUAL,
            daemon: DaemonConfig::default(),
            state_dir: None,
            allow_missing: BTreeSet::new(),
            runners: None,
            json: false,
            color: Color::Auto,
            verbose: false,
            sandbox: SandboxConfig::default(),
            gateway: GatewayConfig::default(),
            server: ServerConfig {
                profile: None,
                profile_options: ProfileOptions::default(),
                code: CodeConfig::default(),
                selection: Selection::default(),
                ceiling: Ceiling::default(),
                warm: true,
                opened: Vec::new(),
                images: Vec::new(),
                log: LogLevel::Warn,
                log_format: LogFormat::Text,
                audit_log: None,
            },
            http: HttpConfig::default(),
            oauth: OAuthConfig::default(),
            code_runner: CodeRunnerConfig::default(),
            registries: RegistryConfig::default(),
            packages: PackageConfig::default(),
            quota: Quota::default(),
            requests: None,
            exceptions: Vec::new(),
            places: Vec::new(),
            named_file: None,
        }
    }
}

impl Config {
    /// The settings of this process: the file that `named` or the usual places give, then `SANDPEN_*`, then flags.
    pub fn load(flags: Written, named: Option<PathBuf>) -> Result<Self> {
        let lookup = variable;
        let told = named.clone().or_else(|| lookup("SANDPEN_CONFIG").map(PathBuf::from));
        let file = file::read(told.as_deref(), &usual_files(lookup))?;
        let mut config = Self::resolve(file.into_iter().chain([env::read(lookup)?, flags]))?;
        config.named_file = named;
        if config.state_dir.is_none() {
            config.state_dir = usual_state_dir(lookup);
        }
        Ok(config)
    }

    /// Later places win.
    pub fn resolve(places: impl IntoIterator<Item = Written>) -> Result<Self> {
        let mut config = Self::default();
        let places: Vec<Written> = places.into_iter().collect();
        for written in &places {
            let lists: BTreeSet<Key> =
                written.values.iter().map(|(key, _)| *key).filter(|key| key.shape() == Shape::List).collect();
            lists.into_iter().for_each(|key| config.clear(key));
            for (key, value) in &written.values {
                config.set(*key, value).map_err(|error| written.origin.point_at(*key, &error))?;
            }
        }
        for Written { origin, values } in &places {
            for (key, _) in values {
                engines::check(config.engine, *key).map_err(|error| origin.point_at(*key, &error))?;
            }
        }
        let is_wish = |key: Key| {
            let last = places.iter().rev().find(|written| written.values.iter().any(|(known, _)| *known == key));
            last.is_some_and(|written| matches!(written.origin, Origin::Profile(_)))
        };
        profiles::bound(&mut config.sandbox, &config.server.ceiling, is_wish);
        config.sandbox.insistence = match is_wish(Key::ContainerUser) {
            true => Insistence::IfPossible,
            false => Insistence::Must,
        };
        config.sandbox.limits = config.sandbox.limits.check()?;
        // The bounds are for callers; what those get who name no time is the operator's own word.
        let (quota, idle) = (&mut config.quota, config.sandbox.lifetime.idle);
        quota.exec_timeout = quota.exec_timeout.max(config.sandbox.timeout(Screen::Streams));
        quota.persistent_idle_lifetime = quota.persistent_idle_lifetime.max(idle);
        // A profile's own wish is for what somebody asked to keep.
        if !is_wish(Key::Idle) {
            quota.idle_lifetime = quota.idle_lifetime.max(idle);
        }
        config.places = places;
        Ok(config)
    }

    /// For a server, which may speak for an older one: the profile's own settings before everybody's.
    pub fn serving(self) -> Result<Self> {
        self.serving_with(variable)
    }

    fn serving_with(self, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let Some(profile) = self.server.profile else { return Ok(self) };
        let grants = profiles::grants(profile, self.is_written(Key::AllowImage));
        let first = [profiles::wishes(profile), grants, profiles::variables(profile, &lookup)?];
        let mut config = self.read_with(first, Some(profiles::over_the_file(profile, &lookup)?))?;
        profiles::ease(profile, &mut config.sandbox);
        if profile == ProfileName::CodeRunner {
            config.code_runner = CodeRunnerConfig::read(lookup)?;
        }
        Ok(config)
    }

    /// The same settings for one of the older servers that this one speaks for besides.
    pub fn as_profile(&self, profile: ProfileName) -> Result<Self> {
        let mut config = self.read_with([profiles::wishes(profile)], None)?;
        config.server.profile = Some(profile);
        // What one of several wishes for changes nobody's bounds.
        config.quota = self.quota;
        config.sandbox.timeout = config.sandbox.timeout.map(|wish| wish.min(self.quota.exec_timeout));
        profiles::ease(profile, &mut config.sandbox);
        if profile == ProfileName::CodeRunner {
            // Who thinks that it is guarded must not be wrong.
            config.code_runner.token = CodeRunnerConfig::token(variable);
        }
        Ok(config)
    }

    /// Whether somebody wrote it, and not only a profile.
    pub fn is_written(&self, key: Key) -> bool {
        let has = |written: &Written| written.values.iter().any(|(known, _)| *known == key);
        self.places.iter().any(|written| !matches!(written.origin, Origin::Profile(_)) && has(written))
    }

    /// All that was written, after what a profile says by itself; a little of its own counts more than the file.
    fn read_with<const COUNT: usize>(&self, first: [Written; COUNT], over_the_file: Option<Written>) -> Result<Self> {
        let (files, others): (Vec<_>, Vec<_>) =
            self.places.iter().cloned().partition(|written| matches!(written.origin, Origin::File(_)));
        let mut config = Self::resolve(first.into_iter().chain(files).chain(over_the_file).chain(others))?;
        config.state_dir.clone_from(&self.state_dir);
        config.named_file.clone_from(&self.named_file);
        Ok(config)
    }

    pub fn state_dir(&self) -> Result<&Path> {
        self.state_dir.as_deref().ok_or_else(|| {
            Error::invalid_input(format!("there is no place to keep sandboxes, because {} is not set", places::HOME))
                .with_hint("name a directory with --state-dir or SANDPEN_STATE_DIR")
        })
    }

    /// A list that is written in a later place replaces the whole of an earlier one.
    fn clear(&mut self, key: Key) {
        match key {
            Key::AllowMissing => self.allow_missing.clear(),
            Key::ProfileOption => self.server.profile_options.clear(),
            Key::Toolsets => self.server.selection.toolsets.clear(),
            Key::Tools => self.server.selection.tools.clear(),
            Key::ExcludeTools => self.server.selection.exclude.clear(),
            Key::AllowPath => self.server.opened.clear(),
            Key::AllowImage => self.server.images.clear(),
            Key::RunnerImage => self.daemon.runner_images.clear(),
            Key::PackageHost => self.packages.hosts.clear(),
            Key::PassThroughEnv => self.sandbox.pass_through.clear(),
            Key::Secret => self.sandbox.secrets.clear(),
            Key::AllowPrivateHost => self.gateway.private_hosts.clear(),
            Key::AllowedHosts => self.http.allowed_hosts.clear(),
            Key::AllowedOrigins => self.http.allowed_origins.clear(),
            Key::OauthPrivateClients => self.oauth.private_clients.clear(),
            Key::OidcAllow => self.oauth.oidc_admitted.clear(),
            Key::OauthIssuer => self.oauth.issuers.clear(),
            Key::OauthAudience => self.oauth.audiences.clear(),
            Key::InsecureRegistry => self.registries.insecure.clear(),
            Key::RegistryMirror => self.registries.mirrors.clear(),
            Key::OwnerLimit => self.exceptions.clear(),
            Key::Engine
            | Key::StateDir
            | Key::Json
            | Key::Color
            | Key::Verbose
            | Key::Runners
            | Key::DaemonHost
            | Key::DockerContext
            | Key::ContainerImage
            | Key::ContainerUser
            | Key::Runtime
            | Key::Image
            | Key::Pull
            | Key::Timeout
            | Key::Memory
            | Key::Cpus
            | Key::Processes
            | Key::Disk
            | Key::Inodes
            | Key::OpenFiles
            | Key::Idle
            | Key::Lifetime
            | Key::Env
            | Key::Network
            | Key::SecretsFile
            | Key::NetworkConnections
            | Key::NetworkBytes
            | Key::NetworkRate
            | Key::OwnerNetworkConnections
            | Key::OwnerNetworkBytes
            | Key::OwnerNetworkRate
            | Key::Profile
            | Key::PythonImage
            | Key::JsImage
            | Key::CodeLanguage
            | Key::ReadOnly
            | Key::NoWarm
            | Key::AllowPackages
            | Key::MaxMemory
            | Key::MaxCpus
            | Key::MaxProcesses
            | Key::MaxDisk
            | Key::MaxNetwork
            | Key::OwnerSandboxes
            | Key::OwnerCpus
            | Key::OwnerMemory
            | Key::OwnerDisk
            | Key::OwnerSavedImages
            | Key::OwnerRuns
            | Key::OwnerRequests
            | Key::Log
            | Key::LogFormat
            | Key::AuditLog
            | Key::Listen
            | Key::NoAuth
            | Key::TlsCert
            | Key::TlsKey
            | Key::MetricsListen
            | Key::PreviewListen
            | Key::PreviewUrl
            | Key::MaxBody
            | Key::MaxUpload
            | Key::NoLegacySse
            | Key::Oauth
            | Key::PublicUrl
            | Key::OauthAccessLifetime
            | Key::OidcIssuer
            | Key::OidcClientId
            | Key::OidcClientSecretFile
            | Key::OidcScope => {}
        }
    }

    fn set(&mut self, key: Key, value: &str) -> Result<()> {
        let (sandbox, gateway) = (&mut self.sandbox, &mut self.gateway);
        match key {
            Key::Engine => self.engine = value.parse::<EngineChoice>()?.on_this_system()?,
            Key::StateDir => self.state_dir = Some(absolute(value)?),
            Key::Json => self.json = truth(value)?,
            Key::Color => self.color = value.parse()?,
            Key::Verbose => self.verbose = truth(value)?,
            Key::AllowMissing => {
                self.allow_missing.insert(value.parse()?);
            }
            Key::Runners => self.runners = Some(absolute(value)?),
            Key::DaemonHost => self.daemon.host = Some(daemon::word("the address of a daemon", value)?),
            Key::DockerContext => self.daemon.context = Some(daemon::word("the name of a context", value)?),
            Key::ContainerImage => self.daemon.image = daemon::image(value)?,
            Key::RunnerImage => self.daemon.runner_images.push(value.parse()?),
            Key::ContainerUser => sandbox.user = value.parse()?,
            Key::Runtime => self.daemon.runtime = Some(daemon::word("the name of a runtime", value)?),
            Key::Image => sandbox.image = image(value)?,
            Key::Pull => self.registries.pull = value.parse()?,
            Key::Timeout => sandbox.timeout = Some(positive_time(value)?),
            Key::Memory => sandbox.limits.memory = value.parse()?,
            Key::Cpus => sandbox.limits.cpu_millis = cpu_millis(value)?,
            Key::Processes => sandbox.limits.processes = number(value)?,
            Key::Disk => sandbox.limits.disk = value.parse()?,
            Key::Inodes => sandbox.limits.inodes = number(value)?,
            Key::OpenFiles => sandbox.limits.open_files = number(value)?,
            Key::Idle => sandbox.lifetime.idle = positive_time(value)?,
            Key::Lifetime => sandbox.lifetime.total = Some(positive_time(value)?),
            Key::Env => {
                let (name, value) = value
                    .split_once('=')
                    .ok_or_else(|| Error::invalid_input(format!("{value:?} has no =")).with_hint("write NAME=VALUE"))?;
                sandbox.environment.insert(name, value)?;
            }
            Key::PassThroughEnv => sandbox.pass_on(value)?,
            Key::Network => sandbox.network = value.parse()?,
            Key::Secret => {
                sandbox.secrets.insert(value.parse()?);
            }
            Key::SecretsFile => gateway.secrets_file = Some(absolute(value)?),
            Key::AllowPrivateHost => gateway.private_hosts.push(value.parse()?),
            Key::NetworkConnections => gateway.of_sandbox.connections = gateway::connections(value)?,
            Key::NetworkBytes => gateway.of_sandbox.bytes = Some(gateway::bytes(value)?),
            Key::NetworkRate => gateway.of_sandbox.rate = Some(gateway::bytes(value)?),
            Key::OwnerNetworkConnections => gateway.of_owner.connections = gateway::connections(value)?,
            Key::OwnerNetworkBytes => gateway.of_owner.bytes = Some(gateway::bytes(value)?),
            Key::OwnerNetworkRate => gateway.of_owner.rate = Some(gateway::bytes(value)?),
            Key::Profile => self.server.profile = Some(value.parse()?),
            Key::ProfileOption => self.server.profile_options.add(value.parse()?),
            Key::PythonImage => self.server.code.python_image = Some(image(value)?),
            Key::JsImage => self.server.code.js_image = Some(image(value)?),
            Key::CodeLanguage => self.server.code.language = Some(value.trim().to_lowercase()),
            Key::Toolsets => self.server.selection.toolsets.extend(toolsets(value)?),
            Key::Tools => self.server.selection.tools.push(value.to_owned()),
            Key::ExcludeTools => self.server.selection.exclude.push(value.to_owned()),
            Key::ReadOnly => self.server.selection.read_only = truth(value)?,
            Key::NoWarm => self.server.warm = !truth(value)?,
            Key::AllowPath => self.server.opened.push(value.parse()?),
            Key::AllowImage => self.server.images.push(value.parse()?),
            Key::AllowPackages => self.packages.allowed = truth(value)?,
            Key::PackageHost => self.packages.hosts.push(value.parse()?),
            Key::MaxMemory => self.server.ceiling.memory = value.parse()?,
            Key::MaxCpus => self.server.ceiling.cpu_millis = cpu_millis(value)?,
            Key::MaxProcesses => self.server.ceiling.processes = number(value)?,
            Key::MaxDisk => self.server.ceiling.disk = value.parse()?,
            Key::MaxNetwork => self.server.ceiling.network = value.parse()?,
            Key::OwnerSandboxes => self.quota.sandboxes = number(value)?,
            Key::OwnerCpus => self.quota.cpu_millis = Some(cpu_millis(value)?.into()),
            Key::OwnerMemory => self.quota.memory = Some(value.parse()?),
            Key::OwnerDisk => self.quota.disk = Some(value.parse()?),
            Key::OwnerSavedImages => self.quota.saved_images = number(value)?,
            Key::OwnerRuns => self.quota.runs = Some(limits::per_minute(value)?),
            Key::OwnerRequests => self.requests = Some(limits::per_minute(value)?),
            Key::OwnerLimit => self.exceptions.push(value.parse()?),
            Key::Log => self.server.log = value.parse()?,
            Key::LogFormat => self.server.log_format = value.parse()?,
            Key::AuditLog => self.server.audit_log = Some(absolute(value)?),
            Key::Listen => self.http.listen = http::address(value)?,
            Key::NoAuth => self.http.no_auth = truth(value)?,
            Key::TlsCert => self.http.tls_cert = Some(absolute(value)?),
            Key::TlsKey => self.http.tls_key = Some(absolute(value)?),
            Key::MetricsListen => self.http.metrics_listen = Some(http::loopback(value)?),
            Key::PreviewListen => self.http.preview_listen = Some(http::address(value)?),
            Key::PreviewUrl => self.http.preview_url = Some(value.parse()?),
            Key::AllowedHosts => self.http.allowed_hosts.push(value.parse()?),
            Key::AllowedOrigins => self.http.allowed_origins.push(value.parse()?),
            Key::MaxBody => self.http.max_body = http::body_size(value)?,
            Key::MaxUpload => self.http.max_upload = http::upload_size(value)?,
            Key::NoLegacySse => self.http.legacy_sse = !truth(value)?,
            Key::Oauth => self.oauth.own_server = truth(value)?,
            Key::PublicUrl => self.oauth.public_url = Some(value.parse()?),
            Key::OauthAccessLifetime => self.oauth.access_life = positive_time(value)?,
            Key::OauthPrivateClients => self.oauth.private_clients.push(oauth::host(value)?),
            Key::OidcIssuer => self.oauth.oidc_issuer = Some(value.parse()?),
            Key::OidcClientId => self.oauth.oidc_client_id = Some(value.to_owned()),
            Key::OidcClientSecretFile => self.oauth.oidc_client_secret_file = Some(absolute(value)?),
            Key::OidcAllow => self.oauth.oidc_admitted.push(value.parse()?),
            Key::OidcScope => self.oauth.oidc_scope = value.parse()?,
            Key::OauthIssuer => self.oauth.issuers.push(value.parse()?),
            Key::OauthAudience => self.oauth.audiences.push(value.to_owned()),
            Key::InsecureRegistry => {
                self.registries.insecure.insert(registries::host(value)?);
            }
            Key::RegistryMirror => self.registries.mirrors.push(registries::mirror(value)?),
        }
        Ok(())
    }
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($variant,)*
        }

        impl $name {
            pub const NAMES: &'static [&'static str] = &[$($word,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(unknown_word($what, text, Self::NAMES)),
                }
            }
        }
    };
}

word!(
    /// The engine that was asked for; whether this version can drive it is for the wiring to say.
    EngineChoice,
    "an engine" { Native = "native", Docker = "docker", Podman = "podman", Kubernetes = "kubernetes", }
);
word!(
    /// Whom programs are in a sandbox.
    ContainerUser,
    "one of the choices" { Sandbox = "sandbox", Image = "image", }
);
word!(
    /// When to print in colour.
    Color,
    "one of the choices" { Auto = "auto", Always = "always", Never = "never", }
);

word!(
    /// When an image is fetched that a sandbox is to start from.
    Pull,
    "one of the choices" { Missing = "missing", Never = "never", }
);

word!(
    /// The least that is worth a line in the log.
    LogLevel,
    "a level of the log" {
        Off = "off",
        Error = "error",
        Warn = "warn",
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }
);

word!(
    /// How a line of the log is written.
    LogFormat,
    "a format of the log" { Text = "text", Json = "json", }
);

impl EngineChoice {
    /// The embedded one where there is one.
    pub const USUAL: Self = if cfg!(target_os = "linux") { Self::Native } else { Self::Docker };

    fn on_this_system(self) -> Result<Self> {
        if self == Self::Native && Self::USUAL != Self::Native {
            return Err(Error::unsupported("the native engine is Linux itself, and this is another system")
                .with_hint("use docker or podman, whose daemons bring a Linux along"));
        }
        Ok(self)
    }
}

/// One that is set to nothing counts as not set.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn toolsets(word: &str) -> Result<Vec<Toolset>> {
    match word {
        "all" => Ok(Toolset::ALL.to_vec()),
        word => Ok(vec![word.parse()?]),
    }
}

fn unknown_word(what: &str, text: &str, known: &[&str]) -> Error {
    let hint = match suggest::nearest(text, known.iter().copied()) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("use {}", known.join(", ")),
    };
    Error::invalid_input(format!("{text:?} is not {what}")).with_hint(hint)
}

fn absolute(path: &str) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|_| Error::invalid_input(format!("{path:?} is not a path")))
}

/// A person at a shell names trees from where they stand; the engine wants the whole path.
fn image(text: &str) -> Result<Image> {
    match text.split_once(':') {
        Some((kind @ ("dir" | "tar"), path)) => format!("{kind}:{}", absolute(path)?.display()).parse(),
        Some(_) | None => text.parse(),
    }
}

fn truth(text: &str) -> Result<bool> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Error::invalid_input(format!("{text:?} is neither true nor false"))),
    }
}

fn number<N: FromStr>(text: &str) -> Result<N> {
    text.parse().map_err(|_| Error::invalid_input(format!("{text:?} is not a whole number")))
}

fn cpu_millis(text: &str) -> Result<u32> {
    let count: f64 = text.parse().unwrap_or(f64::NAN);
    if (0.001..=4096.0).contains(&count) {
        return Ok((count * 1000.0).round() as u32);
    }
    Err(Error::invalid_input(format!("{text:?} is not a number of processors")).with_hint("write for example 1 or 0.5"))
}

fn positive_time(text: &str) -> Result<Duration> {
    let duration = time::parse(text)?;
    if duration.is_zero() {
        return Err(Error::invalid_input("no time at all is left with 0"));
    }
    Ok(duration)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
