//! Which sandbox and which path a call means.

use sandbox::{Error, ErrorKind, Files, GuestPath, Result, SandboxInfo};

use crate::call::Call;

/// The sandbox that is named, by its id or its own name.
pub async fn sandbox(call: &Call, id_or_name: &str) -> Result<SandboxInfo> {
    let found = call.service.find(&call.owner, id_or_name).await;
    found.map_err(|error| if error.kind() == ErrorKind::NotFound { unknown() } else { error })
}

/// One that has ended, one that never was and one of somebody else look the same.
fn unknown() -> Error {
    Error::not_found("there is no sandbox of yours with this id: it has ended, or never was").with_hint(
        "call create_sandbox for a new one, or list_sandboxes for those that there are; \
         a run without sandbox_id ends its sandbox",
    )
}

/// The files of a sandbox and one path in it; relative ones start at the work directory.
pub async fn file(call: &Call, id_or_name: &str, path: &str) -> Result<Target> {
    let sandbox = sandbox(call, id_or_name).await?;
    let path = GuestPath::resolve(&sandbox.work_directory, path.as_bytes())?;
    let files = call.service.files(&call.owner, &sandbox.id)?;
    Ok(Target { sandbox, path, files })
}

pub struct Target {
    pub sandbox: SandboxInfo,
    pub path: GuestPath,
    pub files: Box<dyn Files>,
}
