//! One file per command: from parsed words to calls of the service, and its answer to the screen.

use sandbox::{Error, ErrorKind, Owner, Result, SandboxInfo, SandboxService};

pub mod account;
pub mod audit;
#[cfg_attr(not(target_os = "linux"), path = "commands/elsewhere.rs")]
pub mod bench;
pub mod checkpoint;
pub mod completions;
pub mod cp;
pub mod create;
pub mod diff;
pub mod doctor;
pub mod exec;
#[cfg_attr(not(target_os = "linux"), path = "commands/elsewhere.rs")]
pub mod export;
pub mod fork;
#[cfg_attr(not(target_os = "linux"), path = "commands/image/elsewhere.rs")]
pub mod image;
pub mod install;
pub mod links;
pub mod logs;
pub mod man;
pub mod mcp;
pub mod package;
pub mod ps;
mod reach;
pub mod restore;
pub mod run;
pub mod save;
pub mod secret;
pub mod serve;
pub mod stop;
pub mod token;
pub mod tools;

/// The sandbox that a person named, by id or by its own name.
async fn find(service: &SandboxService, owner: &Owner, name: &str) -> Result<SandboxInfo> {
    service.find(owner, name).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Error::not_found(format!("there is no sandbox {name:?}")).with_hint("sandpen ps shows those that there are")
        }
        ErrorKind::InvalidInput
        | ErrorKind::AlreadyExists
        | ErrorKind::WrongState
        | ErrorKind::LimitExceeded
        | ErrorKind::Denied
        | ErrorKind::Unsupported
        | ErrorKind::TimedOut
        | ErrorKind::Unavailable
        | ErrorKind::Internal => error,
    })
}
