//! What came of a sandbox's connections.

use super::host::Host;

macro_rules! denials {
    ($($variant:ident, $name:literal, $what:literal;)*) => {
        /// Why a connection was not made: the rule that stopped it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Denial {
            $(#[doc = $what] $variant,)*
        }

        impl Denial {
            pub const ALL: &'static [Denial] = &[$(Denial::$variant,)*];

            /// The word that results, logs and `--json` use.
            pub fn as_str(self) -> &'static str {
                match self { $(Denial::$variant => $name,)* }
            }

            pub fn description(self) -> &'static str {
                match self { $(Denial::$variant => $what,)* }
            }
        }
    };
}

denials! {
    NoNetwork, "no_network", "the sandbox has no network";
    HostNotAllowed, "host_not_allowed", "the host is not in the sandbox's list";
    PortNotAllowed, "port_not_allowed", "the port is not allowed for this host";
    PrivateAddress, "private_address", "the address is private, of this machine or of its network";
    MetadataAddress, "metadata_address", "the address is link-local or gives credentials to machines";
    SpecialAddress, "special_address", "the address is not one of a single public host";
    ServerItself, "server_itself", "the address is the one that this server listens on";
    TooManyConnections, "too_many_connections", "too many connections are open";
    BytesUsedUp, "bytes_used_up", "the bytes that it may move are used up";
    NotHttp, "not_http", "a secret belongs to this host, which may be reached by HTTP and HTTPS only";
    Malformed, "malformed", "the request to the proxy makes no sense";
}

/// One thing that was asked for and not given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    pub host: Host,
    /// `None` when only the name was asked for.
    pub port: Option<u16>,
    pub denial: Denial,
    /// How often.
    pub count: u64,
}

/// What happened on the network of a sandbox while something ran in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkActivity {
    pub usage: NetworkUsage,
    /// Each once, in the order of their first time.
    pub refused: Vec<Refusal>,
    /// Refusals of further hosts, which are not listed.
    pub refused_left_out: u64,
}

/// Counts, as the sandbox sees them: in is what it got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkUsage {
    pub connections: u64,
    pub refused: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}
