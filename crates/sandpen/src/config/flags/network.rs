//! Flags for what a sandbox may reach.

use clap::Args;

use super::{Key, Written, push, push_parts};

/// What a new sandbox may reach, and how this process lets it out.
#[derive(Args, Clone, Debug, Default)]
pub struct NetworkFlags {
    #[command(flatten)]
    grant: GrantFlags,

    #[command(flatten)]
    gateway: GatewayFlags,
}

impl NetworkFlags {
    pub fn write_to(&self, written: &mut Written) {
        self.grant.write_to(written);
        self.gateway.write_to(written);
    }
}

/// What a new sandbox may reach: it stays with the sandbox.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Network")]
pub struct GrantFlags {
    /// What it may reach: none, internet, or hosts like pypi.org,*.example.com,db.example.com:5432 [default: none]
    #[arg(long, value_name = "HOSTS")]
    network: Vec<String>,

    /// Let it use this secret with the secret's hosts, without seeing it
    #[arg(long, value_name = "NAME")]
    secret: Vec<String>,
}

impl GrantFlags {
    pub fn write_to(&self, written: &mut Written) {
        push_parts(written, Key::Network, &self.network);
        push(written, Key::Secret, &self.secret);
    }
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Network")]
pub struct SecretsFileFlag {
    /// Read secrets from this file instead of the one that sandpen secret keeps
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    secrets_file: Option<String>,
}

impl SecretsFileFlag {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::SecretsFile, &self.secrets_file);
    }
}

/// What holds for every sandbox that this process lets out.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Network")]
pub struct GatewayFlags {
    #[command(flatten)]
    secrets_file: SecretsFileFlag,

    /// Let sandboxes whose network allows this host reach it although its address is private
    #[arg(long, value_name = "HOST[:PORT]")]
    allow_private_host: Vec<String>,

    /// Connections that a sandbox may have open at once [default: 1024]
    #[arg(long, value_name = "NUMBER")]
    network_connections: Option<String>,

    /// Bytes that a sandbox may move in its life, in both directions together [default: no bound]
    #[arg(long, value_name = "SIZE")]
    network_bytes: Option<String>,

    /// Bytes that a sandbox may move in a second [default: no bound]
    #[arg(long, value_name = "SIZE")]
    network_rate: Option<String>,

    /// Connections that all sandboxes of one owner may have open at once [default: 4096]
    #[arg(long, value_name = "NUMBER")]
    owner_network_connections: Option<String>,

    /// Bytes that all sandboxes of one owner may move while this process runs [default: no bound]
    #[arg(long, value_name = "SIZE")]
    owner_network_bytes: Option<String>,

    /// Bytes that all sandboxes of one owner may move in a second [default: no bound]
    #[arg(long, value_name = "SIZE")]
    owner_network_rate: Option<String>,
}

impl GatewayFlags {
    pub fn write_to(&self, written: &mut Written) {
        self.secrets_file.write_to(written);
        push(written, Key::AllowPrivateHost, &self.allow_private_host);
        push(written, Key::NetworkConnections, &self.network_connections);
        push(written, Key::NetworkBytes, &self.network_bytes);
        push(written, Key::NetworkRate, &self.network_rate);
        push(written, Key::OwnerNetworkConnections, &self.owner_network_connections);
        push(written, Key::OwnerNetworkBytes, &self.owner_network_bytes);
        push(written, Key::OwnerNetworkRate, &self.owner_network_rate);
    }
}
