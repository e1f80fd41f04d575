//! Jobs: runs that go on by themselves, are read, stopped, repeated and forgotten.

mod artifacts;
mod bounds;
mod checkpoints;
mod endings;
mod follow;
mod keys;

use sandbox::{
    Error, ExecRequest, ExecStatus, Job, JobFile, JobPlace, JobRequest, JobResult, JobWork, RunCode, SandboxId,
    SandboxService,
};

use crate::support::{owner, seconds, spec};

pub fn command(place: JobPlace, script: &str) -> JobRequest {
    JobRequest::new(place, JobWork::Command(ExecRequest::shell(script, seconds(60)).unwrap()))
}

/// In a sandbox of its own.
pub fn fresh(script: &str) -> JobRequest {
    command(JobPlace::Fresh(Box::new(spec())), script)
}

pub fn inside(id: &SandboxId, script: &str) -> JobRequest {
    command(JobPlace::Existing(id.clone()), script)
}

pub fn code(language: &str, code: &str) -> JobRequest {
    let work = JobWork::Code(RunCode::new(language, code, seconds(60)));
    JobRequest::new(JobPlace::Fresh(Box::new(spec())), work)
}

pub fn file(path: &str, contents: &str) -> JobFile {
    JobFile { path: path.parse().unwrap(), contents: contents.into() }
}

pub fn start(service: &SandboxService, request: JobRequest) -> Job {
    service.start_job(&owner(), request).unwrap()
}

pub async fn run(service: &SandboxService, request: JobRequest) -> Result<JobResult, Error> {
    start(service, request).wait().await
}

pub async fn status(job: &Job) -> ExecStatus {
    job.wait().await.unwrap().outcome.status
}

pub fn stdout(job: &Job) -> String {
    job.output().stdout.to_text()
}
