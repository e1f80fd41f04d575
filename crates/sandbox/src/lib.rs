//! What a sandbox is: its words as types, the contract of engines, and the service that keeps sandboxes.
//!
//! Knows nothing of MCP, HTTP, command lines, Docker or Kubernetes, and has no unsafe code.

/// The target of spans that tell how long something took, and nothing that is its owner's: those are sent to who collects traces.
pub const SPANS: &str = "sandpen::spans";

pub mod artifact;
pub mod context;
pub mod engine;
pub mod error;
pub mod event;
pub mod exec;
pub mod file;
pub mod history;
pub mod id;
pub mod image;
pub mod isolation;
pub mod job;
mod nearest;
pub mod network;
pub mod output;
pub mod pace;
pub mod package;
pub mod path;
pub mod port;
pub mod private;
pub mod runner;
pub mod secret;
pub mod service;
pub mod spec;
pub mod system;
pub mod tree;
pub mod user;

pub use artifact::Artifact;
pub use context::{
    ContextEnd, ContextInfo, ContextLanguage, ContextName, ContextReport, ContextSettings, ContextState, Display,
    Results, Shown,
};
pub use engine::{
    Capabilities, Engine, EngineSandbox, Files, Made, Process, ProcessControl, Reach, ReadFile, Rest, Usage, WriteFile,
};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventBus, EventKind, StopReason, TreeWork};
pub use exec::{
    Account, ExecLog, ExecOutcome, ExecRequest, ExecStatus, ExecUsage, OnDisconnect, OutputTarget, Prelude, Script,
    Signal, TerminalSize,
};
pub use file::{ByteRange, DirectoryEntry, FileKind, FileStat, ListOptions, Listing, Overwrite, WriteOptions};
pub use history::{Deed, History, HistoryEntry, KnownEnvironment};
pub use id::{InstanceId, JobId, Owner, SandboxId, SandboxName};
pub use image::{Image, ImageName, ImageProgram};
pub use isolation::{IsolationReport, Layer, LayerReport, LayerState};
pub use job::{
    IdempotencyKey, JobChunk, JobFailure, JobFile, JobOutput, JobPlace, JobRequest, JobResult, JobStatus, JobStream,
    JobWork, RunProgram,
};
pub use network::{
    Denial, Host, HostName, HostPattern, HostRule, Network, NetworkActivity, NetworkUsage, Ports, Refusal,
};
pub use output::{CappedOutput, OutputCaps, TextPieces};
pub use pace::{Paces, PerMinute, TooSoon};
pub use package::{PackageLanguage, Packages, Requirement};
pub use path::{AskedPath, GuestPath};
pub use port::{Connections, GuestPort, GuestStream};
pub use private::PrivateFile;
pub use runner::{ImageRunner, ImageRunners, RunCode, Runner, Runners, Runs, is_code_of_a_run};
pub use secret::SecretName;
pub use service::{
    Bounds, BranchRequest, Captured, Census, Execution, ExecutionControl, ForkRequest, Job, JobFollower, JobSettings,
    Language, PackageHost, PackageIndex, PackageSet, PackageSettings, PackageStep, Prepared, Quota, Recovery,
    ResolvedPackage, SandboxInfo, SandboxService, ServiceSettings, State,
};
pub use spec::{ByteSize, Environment, Expected, Insistence, Lifetime, Limits, Persistence, Role, SandboxSpec};
pub use tree::{
    Attachment, Change, ChangeKind, Changes, Checkpoint, Checkpoints, KeptTree, KeptTrees, Powers, SavedImage,
    SavedName, Snapshots, TreeName,
};
