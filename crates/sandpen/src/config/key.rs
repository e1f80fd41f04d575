//! The settings by name: one word, spelled as a flag, a variable and a key of the file.

/// How many values a setting takes, and what a second one means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    One,
    /// One text, or its parts: those are put together with commas between them.
    Parts,
    /// A later place (variable after file, flag after variable) replaces the whole list.
    List,
    /// Name and value; a later place replaces only the names that it has.
    Map,
}

macro_rules! keys {
    ($($variant:ident, $name:literal, $shape:ident;)*) => {
        /// One setting. Its meaning for people is the help text of its flag.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Key {
            $($variant,)*
        }

        impl Key {
            pub const ALL: &'static [Key] = &[$(Key::$variant,)*];

            /// As in `sandpen.toml`.
            pub fn name(self) -> &'static str {
                match self { $(Key::$variant => $name,)* }
            }

            pub fn shape(self) -> Shape {
                match self { $(Key::$variant => Shape::$shape,)* }
            }
        }
    };
}

keys! {
    Engine, "engine", One;
    StateDir, "state_dir", One;
    Json, "json", One;
    Color, "color", One;
    Verbose, "verbose", One;
    AllowMissing, "allow_missing", List;
    Runners, "runners", One;
    DaemonHost, "daemon_host", One;
    DockerContext, "docker_context", One;
    ContainerImage, "container_image", One;
    RunnerImage, "runner_image", List;
    ContainerUser, "container_user", One;
    Runtime, "runtime", One;
    Image, "image", One;
    Pull, "pull", One;
    Timeout, "timeout", One;
    Memory, "memory", One;
    Cpus, "cpus", One;
    Processes, "processes", One;
    Disk, "disk", One;
    Inodes, "inodes", One;
    OpenFiles, "open_files", One;
    Idle, "idle", One;
    Lifetime, "lifetime", One;
    Env, "env", Map;
    PassThroughEnv, "pass_through_env", List;
    Network, "network", Parts;
    Secret, "secret", List;
    SecretsFile, "secrets_file", One;
    AllowPrivateHost, "allow_private_host", List;
    NetworkConnections, "network_connections", One;
    NetworkBytes, "network_bytes", One;
    NetworkRate, "network_rate", One;
    OwnerNetworkConnections, "owner_network_connections", One;
    OwnerNetworkBytes, "owner_network_bytes", One;
    OwnerNetworkRate, "owner_network_rate", One;
    Profile, "profile", One;
    ProfileOption, "profile_option", List;
    PythonImage, "python_image", One;
    JsImage, "js_image", One;
    CodeLanguage, "code_language", One;
    Toolsets, "toolsets", List;
    Tools, "tools", List;
    ExcludeTools, "exclude_tools", List;
    ReadOnly, "read_only", One;
    NoWarm, "no_warm", One;
    AllowPath, "allow_path", List;
    AllowImage, "allow_image", List;
    AllowPackages, "allow_packages", One;
    PackageHost, "package_host", List;
    MaxMemory, "max_memory", One;
    MaxCpus, "max_cpus", One;
    MaxProcesses, "max_processes", One;
    MaxDisk, "max_disk", One;
    MaxNetwork, "max_network", Parts;
    OwnerSandboxes, "owner_sandboxes", One;
    OwnerCpus, "owner_cpus", One;
    OwnerMemory, "owner_memory", One;
    OwnerDisk, "owner_disk", One;
    OwnerSavedImages, "owner_saved_images", One;
    OwnerRuns, "owner_runs", One;
    OwnerRequests, "owner_requests", One;
    OwnerLimit, "owner_limit", List;
    Log, "log", One;
    LogFormat, "log_format", One;
    AuditLog, "audit_log", One;
    Listen, "listen", One;
    NoAuth, "no_auth", One;
    TlsCert, "tls_cert", One;
    TlsKey, "tls_key", One;
    MetricsListen, "metrics_listen", One;
    PreviewListen, "preview_listen", One;
    PreviewUrl, "preview_url", One;
    AllowedHosts, "allowed_hosts", List;
    AllowedOrigins, "allowed_origins", List;
    MaxBody, "max_body", One;
    MaxUpload, "max_upload", One;
    NoLegacySse, "no_legacy_sse", One;
    Oauth, "oauth", One;
    PublicUrl, "public_url", One;
    OauthAccessLifetime, "oauth_access_lifetime", One;
    OauthPrivateClients, "oauth_private_clients", List;
    OauthIssuer, "oauth_issuer", List;
    OauthAudience, "oauth_audience", List;
    OidcIssuer, "oidc_issuer", One;
    OidcClientId, "oidc_client_id", One;
    OidcClientSecretFile, "oidc_client_secret_file", One;
    OidcAllow, "oidc_allow", List;
    OidcScope, "oidc_scope", One;
    InsecureRegistry, "insecure_registry", List;
    RegistryMirror, "registry_mirror", List;
}

impl Key {
    /// As on the command line.
    pub fn flag(self) -> String {
        format!("--{}", self.name().replace('_', "-"))
    }

    /// As in the environment.
    pub fn variable(self) -> String {
        format!("SANDPEN_{}", self.name().to_ascii_uppercase())
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.name() == name)
    }
}
