//! The same requests for callers that are no models: they want the thing itself, and errors as they are, instead of words.

use sandbox::{Job, Result, SandboxInfo};
use serde_json::{Map, Value};

use crate::call::Call;
use crate::catalog::{create_sandbox, run_code};
use crate::tool::parse;

pub const CREATE_SANDBOX: &str = create_sandbox::NAME;
pub const RUN_CODE: &str = run_code::NAME;

/// With the arguments of `create_sandbox`.
pub async fn create(call: &Call, arguments: Map<String, Value>) -> Result<SandboxInfo> {
    let (sandbox, _) = create_sandbox::make(call, &parse(create_sandbox::NAME, arguments)?).await?;
    Ok(sandbox)
}

/// With the arguments of `run_code`. The run goes on whoever waits for it.
pub async fn start_code(call: &Call, arguments: Map<String, Value>) -> Result<Job> {
    let (request, _) = run_code::request(call, parse(run_code::NAME, arguments)?).await?;
    let job = call.service.start_job(&call.owner, request)?;
    job.promise();
    Ok(job)
}
