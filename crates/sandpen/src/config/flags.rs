//! Settings from the command line. Their help texts are the documentation of the settings.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use sandbox::Layer;
use tools::ProfileName;

use super::key::Key;
use super::written::{Origin, Written};
use super::{Color, ContainerUser, EngineChoice, LogFormat, LogLevel};

mod code;
mod daemon;
mod images;
mod network;
mod owners;
mod packages;

pub use code::CodeFlags;
pub use daemon::DaemonFlags;
pub use images::{PullFlags, RegistryFlags};
pub use network::{GatewayFlags, GrantFlags, NetworkFlags, SecretsFileFlag};
pub use owners::OwnerFlags;
pub use packages::{PackageFlags, PackageHostFlag};

/// Taken by every command, before or after its name.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct GlobalFlags {
    /// What makes the sandboxes [default: native on Linux, docker elsewhere]
    #[arg(long, global = true, value_name = "ENGINE", value_parser = PossibleValuesParser::new(EngineChoice::NAMES))]
    engine: Option<String>,

    /// Where sandboxes that outlive a command are kept
    #[arg(long, global = true, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    state_dir: Option<String>,

    /// Read settings from this file instead of the usual sandpen.toml
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Print one JSON object, for programs
    #[arg(long, global = true)]
    json: bool,

    /// When to use colour [default: auto]
    #[arg(long, global = true, value_name = "WHEN", value_parser = PossibleValuesParser::new(Color::NAMES))]
    color: Option<String>,

    /// Print what lies behind an error too; it may name paths of this machine
    #[arg(long, short, global = true)]
    verbose: bool,

    /// Go on without this isolation layer if the host lacks it; every result will name it
    #[arg(
        long,
        global = true,
        value_name = "LAYER",
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(Layer::ALL.iter().map(|layer| layer.as_str()))
    )]
    allow_missing: Vec<String>,

    /// Add or replace languages by this file, shaped like the built-in runners.toml
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    runners: Option<String>,

    /// Whom programs are, on every engine: the sandbox's own user, or the image's, which is root of the sandbox where it names none [default: sandbox]
    #[arg(
        long,
        global = true,
        value_name = "USER",
        hide_short_help = true,
        value_parser = PossibleValuesParser::new(ContainerUser::NAMES)
    )]
    container_user: Option<String>,

    #[command(flatten)]
    daemon: DaemonFlags,
}

impl GlobalFlags {
    pub fn written(&self) -> Written {
        let mut written = Written::new(Origin::Flags);
        push(&mut written, Key::Engine, &self.engine);
        push(&mut written, Key::StateDir, &self.state_dir);
        push(&mut written, Key::Color, &self.color);
        push(&mut written, Key::AllowMissing, &self.allow_missing);
        push(&mut written, Key::Runners, &self.runners);
        push(&mut written, Key::ContainerUser, &self.container_user);
        self.daemon.write_to(&mut written);
        if self.json {
            written.push(Key::Json, "true");
        }
        if self.verbose {
            written.push(Key::Verbose, "true");
        }
        written
    }
}

/// What a new sandbox is made of.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxFlags {
    /// The tree it starts from: host, dir:PATH, tar:PATH, or an image by its name [default: host]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Memory it may use, without swap [default: 512M]
    #[arg(long, short = 'm', value_name = "SIZE")]
    memory: Option<String>,

    /// Processors it may use, in parts too: 0.5 [default: 1]
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<String>,

    /// Processes and threads it may have at once [default: 128]
    #[arg(long, value_name = "NUMBER")]
    processes: Option<String>,

    /// Bytes it may write [default: 1G]
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,

    /// Files, directories and links it may make [default: 200000]
    #[arg(long, value_name = "NUMBER")]
    inodes: Option<String>,

    /// Files each of its processes may have open [default: 1024]
    #[arg(long, value_name = "NUMBER")]
    open_files: Option<String>,
}

impl SandboxFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::Image, &self.image);
        push(written, Key::Memory, &self.memory);
        push(written, Key::Cpus, &self.cpus);
        push(written, Key::Processes, &self.processes);
        push(written, Key::Disk, &self.disk);
        push(written, Key::Inodes, &self.inodes);
        push(written, Key::OpenFiles, &self.open_files);
    }
}

/// What a program starts with.
#[derive(Args, Clone, Debug, Default)]
pub struct EnvFlag {
    /// Set an environment variable; of your own environment nothing is passed on
    #[arg(long, short = 'e', value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// Pass on these variables of your own environment; code in the sandbox can read them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pass_through_env: Vec<String>,
}

impl EnvFlag {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::Env, &self.env);
        push(written, Key::PassThroughEnv, &self.pass_through_env);
    }
}

/// How long a program may run.
#[derive(Args, Clone, Debug, Default)]
pub struct TimeoutFlag {
    /// Stop the program after this time: 500ms, 30s, 5m [default: 30s]
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
}

impl TimeoutFlag {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::Timeout, &self.timeout);
    }
}

/// How long a sandbox lives.
#[derive(Args, Clone, Debug, Default)]
pub struct LifetimeFlags {
    /// Stop the sandbox after this time without use [default: 10m]
    #[arg(long, value_name = "TIME")]
    idle: Option<String>,

    /// Stop the sandbox after this time, used or not
    #[arg(long, value_name = "TIME")]
    lifetime: Option<String>,
}

impl LifetimeFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::Idle, &self.idle);
        push(written, Key::Lifetime, &self.lifetime);
    }

    pub fn is_given(&self) -> bool {
        self.idle.is_some() || self.lifetime.is_some()
    }
}

/// What a server offers, and what it tells of itself.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Offer only these groups of tools: run, sandboxes, files, jobs, snapshots, environment [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    toolsets: Vec<String>,

    /// Offer these tools: in addition to --toolsets, or alone without it
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Vec<String>,

    /// Speak for an older server, with its tools instead of ours: cloudflare, sandbox-server, code-runner, automata or
    /// philschmid
    #[arg(long, value_name = "PROFILE", value_parser = PossibleValuesParser::new(ProfileName::NAMES), hide_possible_values = true)]
    profile: Option<String>,

    /// Where a profile should differ from its older server: shell, flag-failures, end-containers,
    /// end-temporary, plain-uris or short-directories
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    profile_option: Vec<String>,

    #[command(flatten)]
    code: CodeFlags,

    /// Leave these tools out, whatever else is said
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    exclude_tools: Vec<String>,

    /// Offer only tools that change nothing, whatever else is said
    #[arg(long)]
    read_only: bool,

    /// Start every program when it is asked for, and no interpreter ahead of demand
    #[arg(long)]
    no_warm: bool,

    /// Let copy_files reach this directory of the host; with :ro behind it, for reading only
    #[arg(long, value_name = "DIR[:ro]", value_hint = clap::ValueHint::DirPath)]
    allow_path: Vec<String>,

    /// Let clients ask for this image, or for all that begin so: debian:12, python:*
    #[arg(long, value_name = "NAME[*]")]
    allow_image: Vec<String>,

    /// Let clients ask for packages, which are installed from the index of this machine's pip, uv and npm
    #[arg(long)]
    allow_packages: bool,

    #[command(flatten)]
    package_host: PackageHostFlag,

    /// The most memory that a client may ask for [default: 4G]
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<String>,

    /// The most processors that a client may ask for [default: all]
    #[arg(long, value_name = "NUMBER")]
    max_cpus: Option<String>,

    /// The most processes that a client may ask for [default: 1024]
    #[arg(long, value_name = "NUMBER")]
    max_processes: Option<String>,

    /// The most room for files that a client may ask for [default: 8G]
    #[arg(long, value_name = "SIZE")]
    max_disk: Option<String>,

    /// The most of the network that a client may ask for: none, internet, or hosts [default: none]
    #[arg(long, value_name = "HOSTS")]
    max_network: Vec<String>,

    #[command(flatten)]
    owners: OwnerFlags,

    /// How much to write to standard error: off, error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "LEVEL", value_parser = PossibleValuesParser::new(LogLevel::NAMES), hide_possible_values = true)]
    log: Option<String>,

    /// How to write it: text, or json for programs [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(LogFormat::NAMES), hide_possible_values = true)]
    log_format: Option<String>,

    /// Write each call, run, file and connection to this file, a line of JSON each, chained by digests
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    audit_log: Option<String>,
}

impl ServerFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::Profile, &self.profile);
        push(written, Key::ProfileOption, &self.profile_option);
        self.code.write_to(written);
        push(written, Key::Toolsets, &self.toolsets);
        push(written, Key::Tools, &self.tools);
        push(written, Key::ExcludeTools, &self.exclude_tools);
        push(written, Key::AllowPath, &self.allow_path);
        push(written, Key::AllowImage, &self.allow_image);
        push(written, Key::MaxMemory, &self.max_memory);
        push(written, Key::MaxCpus, &self.max_cpus);
        push(written, Key::MaxProcesses, &self.max_processes);
        push(written, Key::MaxDisk, &self.max_disk);
        push_parts(written, Key::MaxNetwork, &self.max_network);
        self.owners.write_to(written);
        push(written, Key::Log, &self.log);
        push(written, Key::LogFormat, &self.log_format);
        push(written, Key::AuditLog, &self.audit_log);
        if self.read_only {
            written.push(Key::ReadOnly, "true");
        }
        if self.no_warm {
            written.push(Key::NoWarm, "true");
        }
        if self.allow_packages {
            written.push(Key::AllowPackages, "true");
        }
        self.package_host.write_to(written);
    }
}

/// What every server takes, however it is reached.
#[derive(Args, Clone, Debug, Default)]
pub struct ServingFlags {
    #[command(flatten)]
    server: ServerFlags,

    #[command(flatten)]
    sandbox: SandboxFlags,

    #[command(flatten)]
    pull: PullFlags,

    #[command(flatten)]
    lifetime: LifetimeFlags,

    #[command(flatten)]
    timeout: TimeoutFlag,

    #[command(flatten)]
    env: EnvFlag,

    #[command(flatten)]
    network: NetworkFlags,
}

impl ServingFlags {
    pub fn write_to(&self, written: &mut Written) {
        self.server.write_to(written);
        self.sandbox.write_to(written);
        self.pull.write_to(written);
        self.lifetime.write_to(written);
        self.timeout.write_to(written);
        self.env.write_to(written);
        self.network.write_to(written);
    }
}

/// How a server is reached.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "HTTP")]
pub struct HttpFlags {
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:8228]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Ask nobody for a token; everybody on this machine gets in, and nobody else
    #[arg(long)]
    no_auth: bool,

    /// Speak HTTPS, with the certificates in this file, in PEM; renewed ones are taken without a restart
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    tls_cert: Option<String>,

    /// The key of the first of these certificates
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    tls_key: Option<String>,

    /// Show numbers for Prometheus at /metrics of this loopback address too, without a token
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,

    /// Serve previews of ports at this address [default: a free port of this machine, when the first is opened; 8229 with --preview-url]
    #[arg(long, value_name = "ADDRESS")]
    preview_listen: Option<String>,

    /// How others reach previews, each by a name of its own before this one: https://preview.example.com
    #[arg(long, value_name = "URL")]
    preview_url: Option<String>,

    /// Answer to these host names too, for a proxy in front
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    allowed_hosts: Vec<String>,

    /// Let web pages of these origins use the server: https://app.example.com, http://localhost:6274
    #[arg(long, value_name = "ORIGINS", value_delimiter = ',')]
    allowed_origins: Vec<String>,

    /// Requests that one user may send in a minute; one more gets status 429 [default: no bound]
    #[arg(long, value_name = "NUMBER")]
    owner_requests: Option<String>,

    /// The largest request [default: 32M]
    #[arg(long, value_name = "SIZE")]
    max_body: Option<String>,

    /// The largest file that is uploaded over HTTP [default: 1G]
    #[arg(long, value_name = "SIZE")]
    max_upload: Option<String>,

    /// Leave out /sse, the transport of clients from before 2025
    #[arg(long)]
    no_legacy_sse: bool,
}

impl HttpFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::Listen, &self.listen);
        if self.no_auth {
            written.push(Key::NoAuth, "true");
        }
        push(written, Key::TlsCert, &self.tls_cert);
        push(written, Key::TlsKey, &self.tls_key);
        push(written, Key::MetricsListen, &self.metrics_listen);
        push(written, Key::PreviewListen, &self.preview_listen);
        push(written, Key::PreviewUrl, &self.preview_url);
        push(written, Key::AllowedHosts, &self.allowed_hosts);
        push(written, Key::AllowedOrigins, &self.allowed_origins);
        push(written, Key::OwnerRequests, &self.owner_requests);
        push(written, Key::MaxBody, &self.max_body);
        push(written, Key::MaxUpload, &self.max_upload);
        if self.no_legacy_sse {
            written.push(Key::NoLegacySse, "true");
        }
    }
}

pub(super) fn push<'a>(written: &mut Written, key: Key, values: impl IntoIterator<Item = &'a String>) {
    for value in values {
        written.push(key, value);
    }
}

/// One flag with commas, or several flags.
fn push_parts(written: &mut Written, key: Key, parts: &[String]) {
    if !parts.is_empty() {
        written.push(key, parts.join(","));
    }
}
