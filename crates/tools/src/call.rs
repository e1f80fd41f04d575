//! What a tool is given with each call, besides its arguments.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandbox::{FileKind, Files, GuestPath, GuestPort, ImageName, Limits, Owner, Result, SandboxId, SandboxService};
use tokio_util::sync::CancellationToken;

use crate::export::Exporter;
use crate::policy::Policy;

/// One call: who asks, what serves, and how to tell that the caller is gone.
#[derive(Clone)]
pub struct Call {
    pub service: SandboxService,
    pub owner: Owner,
    pub policy: Arc<Policy>,
    pub host_files: Option<Arc<dyn HostFiles>>,
    /// Without it only images are started from that are there.
    pub images: Option<Arc<dyn ImageSource>>,
    pub exporter: Option<Arc<dyn Exporter>>,
    /// Where files have addresses besides those of resources.
    pub links: Option<Arc<dyn Links>>,
    /// Where programs can be seen that serve something.
    pub previews: Option<Arc<dyn Previews>>,
    pub progress: Arc<dyn Progress>,
    /// The caller no longer wants an answer: what the call started is to be ended.
    pub cancelled: CancellationToken,
}

/// Where news of a call that goes on are sent. Must not block: a client that reads slowly misses some.
pub trait Progress: Send + Sync {
    /// Whether anybody listens; news that nobody reads need not be made.
    fn is_wanted(&self) -> bool;

    /// Something new, in words: usually lines that the program has written.
    fn report(&self, message: &str);
}

/// For callers that do not listen.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn is_wanted(&self) -> bool {
        false
    }

    fn report(&self, _message: &str) {}
}

/// Copies between sandboxes and the places of the host that the operator opened, and no others.
#[async_trait]
pub trait HostFiles: Send + Sync {
    async fn copy_in(&self, host: &str, files: &dyn Files, guest: &GuestPath) -> Result<Copied>;

    /// At most what `limits` let a sandbox hold: a sparse file claims any size it likes.
    async fn copy_out(&self, files: &dyn Files, guest: &GuestPath, host: &str, limits: Limits) -> Result<Copied>;

    /// A file or directory of the host, to be looked at and copied. Relative paths start where the server was started.
    fn open(&self, host: &str) -> Result<Box<dyn HostEntry>>;

    /// One file to exactly this path of the host, in place of one that is there; directories above it are made. Relative
    /// paths start where the server was started.
    async fn copy_file_out(&self, files: &dyn Files, guest: &GuestPath, host: &str, limits: Limits) -> Result<Copied>;
}

/// Something of the host that is open: from here on it is that one, whatever its name comes to mean.
#[async_trait]
pub trait HostEntry: Send {
    fn kind(&self) -> FileKind;

    /// To exactly this path: a directory that is there is filled, a file is replaced, and directories above are made.
    async fn copy_to(self: Box<Self>, files: &dyn Files, guest: &GuestPath) -> Result<Copied>;
}

/// Fetches images that are not there.
#[async_trait]
pub trait ImageSource: Send + Sync {
    /// Returns when there is an image of this name. It is fetched on even when nobody waits for it any more.
    async fn provide(&self, name: &ImageName, progress: &Arc<dyn Progress>) -> Result<()>;
}

/// Makes addresses that are good for one file and a short time, for whoever has them.
pub trait Links: Send + Sync {
    /// `None` when none can be made, which is no reason to tell nothing of the file.
    fn link(&self, owner: &Owner, sandbox: &SandboxId, path: &GuestPath) -> Option<String>;
}

/// Gives what programs listen on an address outside, for whoever has it.
#[async_trait]
pub trait Previews: Send + Sync {
    /// One that there is gets another time; it is over when that is, with its sandbox, and with the server.
    async fn open(
        &self,
        owner: &Owner,
        sandbox: &SandboxId,
        port: GuestPort,
        lifetime: Option<Duration>,
    ) -> Result<Preview>;

    /// At once, for those too who are looking at it. Whether there was one.
    fn close(&self, owner: &Owner, sandbox: &SandboxId, port: GuestPort) -> bool;
}

/// Where a program can be seen, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    pub url: String,
    pub expires_at: SystemTime,
    /// Whether the program listens already.
    pub is_listening: bool,
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: u64,
    pub bytes: u64,
    /// Links that lead out, devices, sockets: never copied.
    pub skipped: u64,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("owner", &self.owner).finish_non_exhaustive()
    }
}
