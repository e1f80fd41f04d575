//! What a daemon is told when it is to run process 1.

use std::time::Duration;

use sandbox::{GuestPath, Persistence};
use sha2::{Digest, Sha256};

/// How process 1 is to live in a sandbox that a daemon makes.
///
/// It is to be the first process of a pid namespace, and root there with `SETUID`, `SETGID`, `SETPCAP`, `KILL` and `CHOWN`;
/// programs get none of them. For [`HostedRole::Root`] it needs `DAC_OVERRIDE`, `FOWNER` and `FSETID` besides. It needs `/proc`, and a `/run` that only root can write to, for the logs of detached commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosted {
    /// Lets in who knows it. Process 1 is told its digest only: what it is told can be read by everybody inside.
    pub token: String,
    /// Whom programs run as.
    pub user: u32,
    pub group: u32,
    pub role: HostedRole,
    /// An ephemeral one ends with the connection that came first, and when none comes within half a minute. A persistent
    /// one stays until its deadline, or until nobody has used it for `idle`.
    pub persistence: Persistence,
    pub idle: Duration,
    /// What a persistent one makes of `SIGTERM`. How it has ended says [`KeptExit`], where that is not simply its end.
    ///
    /// [`KeptExit`]: crate::KeptExit
    pub rest: HostedRest,
    pub open_files: u64,
    /// For files on a disk. How much there is in memory is said by its mounts.
    pub largest_file: Option<u64>,
    /// Whether all connections that programs make are caught and come out of [`Connection::accept`], and their questions
    /// for names out of [`Connection::question`]. Process 1 then needs a network of its own with a loopback alone, and
    /// `NET_ADMIN` and `NET_BIND_SERVICE` besides; names are asked for at 127.0.0.1.
    ///
    /// [`Connection::accept`]: crate::Connection::accept
    /// [`Connection::question`]: crate::Connection::question
    pub network: HostedNetwork,
    pub streams: HostedStreams,
    /// Directories that are to belong to programs: they are made where they are missing. What lies in them stays as it is.
    pub places: Vec<GuestPath>,
}

/// What programs may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedRole {
    /// What their user may, without any right beyond that.
    Guest,
    /// They are user 0 and keep the rights of a sandbox's root: seven, over its own files and processes.
    Root,
}

/// What becomes of a persistent sandbox that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedRest {
    /// It ends.
    None,
    /// It writes its files to [`KEPT_DIRECTORY`] first, which is to be root's and to outlive it, and goes on with them when it is
    /// started again.
    ///
    /// [`KEPT_DIRECTORY`]: crate::KEPT_DIRECTORY
    Kept,
    /// Its files are where they outlive it, and it goes on with them.
    Lasting,
}

/// What programs find when they connect to somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedNetwork {
    /// Whatever the daemon has made, which ought to be nothing.
    Untouched,
    /// Connections to this port of a loopback address are for a proxy; all others are caught.
    Caught { proxy_port: u16 },
}

/// What becomes of the streams that the daemon starts process 1 with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedStreams {
    Unused,
    /// The first connection is opened over its stdin and stdout, and counts as the first that came.
    Bridge,
}

impl Hosted {
    /// Of process 1, after the program's own path.
    pub fn arguments(&self) -> Vec<String> {
        let life = match self.persistence {
            Persistence::Ephemeral => "ephemeral",
            Persistence::Persistent => match self.rest {
                HostedRest::None => "persistent",
                HostedRest::Kept => "kept",
                HostedRest::Lasting => "lasting",
            },
        };
        let rights = match self.role {
            HostedRole::Guest => "guest",
            HostedRole::Root => "root",
        };
        let idle = u64::try_from(self.idle.as_millis()).unwrap_or(u64::MAX / 2);
        let role = match self.streams {
            HostedStreams::Unused => "hosted",
            HostedStreams::Bridge => "hosted-with-bridge",
        };
        let (user, group) = (self.user.to_string(), self.group.to_string());
        let words = [role.to_owned(), user, group, rights.to_owned(), life.to_owned()];
        let port = match self.network {
            HostedNetwork::Untouched => 0,
            HostedNetwork::Caught { proxy_port } => proxy_port,
        };
        let largest = self.largest_file.unwrap_or(0);
        let numbers = [idle.to_string(), self.open_files.to_string(), largest.to_string(), port.to_string()];
        let digest = Sha256::digest(self.token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        words.into_iter().chain(numbers).chain([digest]).chain(self.places.iter().map(ToString::to_string)).collect()
    }

    /// Of a bridge: its stdin and stdout are what a connection is opened over. To be started as root, like process 1.
    pub fn bridge_arguments() -> [&'static str; 1] {
        ["bridge"]
    }

    /// Of a program that prints, as one line of JSON, what it sees of the walls around it.
    pub fn probe_arguments() -> [&'static str; 1] {
        ["probe"]
    }
}
