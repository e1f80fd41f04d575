//! A sandbox as a Dockerfile: what is asked of whoever can write one, and what comes back.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{GuestPath, ImageName, Owner, Result, SandboxId};
use tokio::io::AsyncRead;

use crate::call::Progress;

/// Where the context is put in the sandbox itself. An export leaves out what is there.
pub const CONTEXT: &str = "/tmp/dockerfile-context.tar";

/// Writes down how a sandbox came about, in a form that others can build.
#[async_trait]
pub trait Exporter: Send + Sync {
    async fn export(&self, owner: &Owner, request: ExportRequest, progress: &Arc<dyn Progress>) -> Result<Export>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    pub sandbox: SandboxId,
    /// In place of what the sandbox was made from; needed where that has no name that others know.
    pub base: Option<ImageName>,
    pub check: Check,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// Build it, and compare what comes out with the sandbox.
    Rebuild,
    /// Why not.
    Skip(String),
}

pub struct Export {
    pub dockerfile: String,
    /// A tar archive of the build context, the Dockerfile among it.
    pub context: Box<dyn AsyncRead + Send + Unpin>,
    pub report: Report,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("report", &self.report).finish_non_exhaustive()
    }
}

/// What a rebuild came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub base: String,
    pub base_digest: Option<String>,
    pub outcome: Outcome,
    /// How often something was built to come to it.
    pub builds: u32,
    /// What a reader should know besides, in words.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was built and compared.
    Compared {
        /// Paths that are alike.
        same: u64,
        /// What did not come out the same, in the order of the paths.
        differences: Vec<Difference>,
        /// Differences beyond those.
        more: u64,
    },
    /// It could not be built; why.
    NotBuilt(String),
    /// Nobody tried; why.
    NotChecked(String),
}

impl Outcome {
    /// The word that results and `--json` use.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Compared { differences, .. } if differences.is_empty() => "reproduced",
            Self::Compared { .. } => "differs",
            Self::NotBuilt(_) => "not_built",
            Self::NotChecked(_) => "not_checked",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub path: GuestPath,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// In the sandbox, not in what was built.
    Missing,
    /// In what was built only.
    Extra,
    Kind,
    Contents,
    Target,
    Mode,
    Owner,
}

impl What {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Kind => "kind",
            Self::Contents => "contents",
            Self::Target => "target",
            Self::Mode => "mode",
            Self::Owner => "owner",
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Missing => "is missing",
            Self::Extra => "is there and should not be",
            Self::Kind => "is of another kind",
            Self::Contents => "has other contents",
            Self::Target => "leads elsewhere",
            Self::Mode => "has other permissions",
            Self::Owner => "has another owner",
        }
    }
}
