//! What can be read by its address: files of sandboxes, as text or as bytes, and the output of jobs.

use std::collections::BTreeMap;

use sandbox::service::Job;
use sandbox::{ByteRange, Error, FileKind, GuestPath, JobStatus, ListOptions, Result, SandboxId, SandboxInfo};

use crate::call::Call;
pub use crate::content::Body;
use crate::mime;
use crate::uri::{self, Named, OutputStream};

mod watch;

pub use watch::{Watch, watch};

/// Larger files are for `read_file` with a range, or for `sandpen cp`.
pub const MAX_BYTES: u64 = 8 << 20;

const LISTED_PER_SANDBOX: usize = 100;
const LISTED: usize = 1000;
const COMPLETIONS: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    pub uri: String,
    pub name: String,
    pub description: String,
    pub mime_type: &'static str,
    pub bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub struct Template {
    pub uri_template: &'static str,
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    /// Where it is the same for all.
    pub mime_type: Option<&'static str>,
    /// From 0 to 1, how much it matters to the model and to the person alike.
    pub priority: Option<f32>,
}

pub const TEMPLATES: &[Template] = &[
    Template {
        uri_template: uri::FILE_TEMPLATE,
        name: "sandbox_file",
        title: "File in a sandbox",
        description: "A file of one of your sandboxes, by its absolute path without the leading slash",
        mime_type: None,
        priority: None,
    },
    Template {
        uri_template: uri::OUTPUT_TEMPLATE,
        name: "job_output",
        title: "Output of a job",
        description: "What a run has written so far to stdout or stderr, up to half a mebibyte of it",
        mime_type: None,
        priority: None,
    },
];

#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    pub mime_type: &'static str,
    pub body: Body,
}

/// The outputs of jobs, then the files at the top of the work directories, oldest first.
pub async fn list(call: &Call) -> Result<Vec<Resource>> {
    let mut found: Vec<_> = call.service.jobs(&call.owner).iter().flat_map(outputs_of).collect();
    found.truncate(LISTED / 2);
    for sandbox in call.service.list(&call.owner).await? {
        let room = LISTED.saturating_sub(found.len()).min(LISTED_PER_SANDBOX);
        if room == 0 {
            break;
        }
        found.extend(files_of(call, &sandbox, room).await);
    }
    Ok(found)
}

pub async fn read(call: &Call, address: &str) -> Result<Contents> {
    match uri::parse(address)? {
        Named::File { sandbox, path } => read_file(call, &id_of(call, &sandbox).await?, &path).await,
        Named::Output { id, stream } => Ok(read_output(&call.service.job(&call.owner, &id)?, stream)),
    }
}

/// Values for one variable of a template, given what is typed and which others are known.
pub async fn complete(
    call: &Call,
    template: &str,
    variable: &str,
    typed: &str,
    known: &BTreeMap<String, String>,
) -> Result<Vec<String>> {
    let mut values = match (template, variable) {
        (uri::FILE_TEMPLATE, "sandbox_id") => {
            call.service.list(&call.owner).await?.iter().map(|sandbox| sandbox.id.to_string()).collect()
        }
        (uri::FILE_TEMPLATE, "path") => match known.get("sandbox_id") {
            Some(id) => paths(call, id, typed).await?,
            None => Vec::new(),
        },
        (uri::OUTPUT_TEMPLATE, "job_id") => {
            call.service.jobs(&call.owner).iter().map(|job| job.id().to_string()).collect()
        }
        (uri::OUTPUT_TEMPLATE, "stream") => OutputStream::ALL.map(|stream| stream.as_str().to_owned()).into(),
        _ => Vec::new(),
    };
    values.retain(|value| value.starts_with(typed));
    values.truncate(COMPLETIONS);
    Ok(values)
}

/// A sandbox that ends while it is looked at has no files; that is not worth a failed list.
async fn files_of(call: &Call, sandbox: &SandboxInfo, room: usize) -> Vec<Resource> {
    let Ok(files) = call.service.files(&call.owner, &sandbox.id) else { return Vec::new() };
    let options = ListOptions { recursive: false, max_entries: room };
    let Ok(listing) = files.list(&sandbox.work_directory, options).await else { return Vec::new() };
    let regular = listing.entries.into_iter().filter(|entry| entry.stat.kind == FileKind::Regular);
    regular
        .map(|entry| Resource {
            uri: uri::file(&sandbox.id, &entry.path),
            name: String::from_utf8_lossy(entry.path.file_name().unwrap_or_default()).into_owned(),
            description: format!("{} in sandbox {}", entry.path.to_string_lossy(), sandbox.id),
            mime_type: mime::by_name(entry.path.as_bytes()),
            bytes: Some(entry.stat.bytes),
        })
        .collect()
}

/// An id stays good for what was kept of a sandbox that ended; a name is good while it lives.
async fn id_of(call: &Call, id_or_name: &str) -> Result<SandboxId> {
    match id_or_name.parse() {
        Ok(id) => Ok(id),
        Err(_) => Ok(call.service.find(&call.owner, id_or_name).await?.id),
    }
}

async fn read_file(call: &Call, id: &SandboxId, path: &GuestPath) -> Result<Contents> {
    let range = ByteRange { offset: 0, length: Some(MAX_BYTES + 1) };
    let (stat, bytes) = call.service.read_artifact(&call.owner, id, path, range).await?;
    if stat.bytes > MAX_BYTES || bytes.len() as u64 > MAX_BYTES {
        let message = format!("the file has {} bytes, which is too many to read at once", stat.bytes);
        return Err(Error::limit_exceeded(message).with_hint("read it in parts with read_file, offset and length"));
    }
    Ok(contents(path, bytes))
}

fn outputs_of(job: &Job) -> Vec<Resource> {
    let output = job.output();
    let state = match job.status() {
        JobStatus::Running => "running",
        JobStatus::Ended(_) | JobStatus::Failed(_) | JobStatus::Interrupted => "ended",
    };
    let resource = |stream: OutputStream, bytes: u64| Resource {
        uri: uri::output(job.id(), stream),
        name: format!("{} {}", job.id(), stream.as_str()),
        description: format!("{} of {} ({state})", stream.as_str(), job.title()),
        mime_type: "text/plain",
        bytes: Some(bytes),
    };
    let both = [(OutputStream::Stdout, output.stdout.total()), (OutputStream::Stderr, output.stderr.total())];
    // Silence is worth reading only while it may be broken.
    let worth = both.into_iter().filter(|(_, bytes)| *bytes > 0 || state == "running");
    worth.map(|(stream, bytes)| resource(stream, bytes)).collect()
}

fn read_output(job: &Job, stream: OutputStream) -> Contents {
    let output = job.output();
    let kept = match stream {
        OutputStream::Stdout => output.stdout,
        OutputStream::Stderr => output.stderr,
    };
    Contents { mime_type: "text/plain", body: Body::Text(kept.to_text()) }
}

fn contents(path: &GuestPath, bytes: Vec<u8>) -> Contents {
    let name = path.file_name().unwrap_or_default();
    if let Some(mime_type) = mime::image(name, &bytes)
        && mime_type != "image/svg+xml"
    {
        return Contents { mime_type, body: Body::Bytes(bytes) };
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Contents { mime_type: mime::of_text(name), body: Body::Text(text) },
        Ok(text) => Contents { mime_type: mime::by_name(name), body: Body::Bytes(text.into_bytes()) },
        Err(error) => Contents { mime_type: mime::by_name(name), body: Body::Bytes(error.into_bytes()) },
    }
}

/// What lies in the directory that is being typed.
async fn paths(call: &Call, id: &str, typed: &str) -> Result<Vec<String>> {
    let id = id_of(call, id).await?;
    let directory = typed.rsplit_once('/').map_or("", |(directory, _)| directory);
    let directory = GuestPath::resolve(&GuestPath::root(), directory.as_bytes())?;
    let options = ListOptions { recursive: false, max_entries: LISTED };
    let listing = call.service.files(&call.owner, &id)?.list(&directory, options).await?;
    let shown = listing.entries.into_iter().map(|entry| {
        let path = entry.path.to_string_lossy().trim_start_matches('/').to_owned();
        if entry.stat.kind == FileKind::Directory { path + "/" } else { path }
    });
    Ok(shown.collect())
}
