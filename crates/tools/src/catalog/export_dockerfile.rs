//! `export_dockerfile`: how a sandbox came about, for others to build.

use std::fmt::Write;

use sandbox::{ByteSize, Error, Files, GuestPath, ImageName, Result, SandboxInfo, WriteOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use super::target;
use crate::call::Call;
use crate::content::{Content, ResourceLink};
use crate::export::{CONTEXT, Check, Export, ExportRequest, Outcome, Report};
use crate::image;
use crate::select::Toolset;
use crate::text;
use crate::tool::{Answer, Definition, Hints, Tool};
use crate::uri;

/// Differences that are told in words; all are in the object.
const TOLD: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// The image to build from, for example "debian:12". Needed when the sandbox was made from host; otherwise its own
    /// image is taken.
    base: Option<String>,
    /// Build the Dockerfile and compare what comes out with the sandbox. Default true.
    verify: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Exported {
    /// reproduced, differs, not_built or not_checked.
    result: &'static str,
    /// Why it was not built or not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    base: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_digest: Option<String>,
    /// Paths that came out the same.
    same: u64,
    /// What did not.
    differences: Vec<DifferenceObject>,
    /// Differences that are not listed.
    more_differences: u64,
    /// How many ways of writing it down were built; the best is kept.
    builds: u32,
    notes: Vec<String>,
    /// A tar archive in the sandbox with the Dockerfile and the files that it copies.
    context_path: &'static str,
    context_uri: String,
    context_bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DifferenceObject {
    path: String,
    /// missing or extra in what was built, or what differs: kind, contents, target, mode, owner.
    what: &'static str,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "export_dockerfile",
        title: "Export as a Dockerfile",
        description: "Write a Dockerfile with its build context that makes the sandbox anew with docker build: the image \
                      it started from, its packages, the commands that changed files, and the files that you wrote. It is \
                      built here and compared with the sandbox, and the answer says what did not come out the same."
            .to_owned(),
        toolset: Toolset::Snapshots,
        hints: Hints { read_only: false, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, export)
}

async fn export(call: Call, arguments: Arguments) -> Result<Answer<Exported>> {
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    let base = arguments.base.as_deref().map(str::parse).transpose()?;
    let (dockerfile, value) = exported(&call, &sandbox, base, arguments.verify.unwrap_or(true)).await?;
    let link = ResourceLink {
        uri: value.context_uri.clone(),
        name: "dockerfile-context.tar".to_owned(),
        mime_type: "application/x-tar",
        bytes: value.context_bytes,
    };
    let content = vec![Content::Text(dockerfile), Content::Text(told(&value)), Content::Link(link)];
    Ok(Answer { content, value })
}

/// The context is put into the sandbox, at [`CONTEXT`].
pub async fn write(call: &Call, sandbox: &SandboxInfo, base: Option<ImageName>, verify: bool) -> Result<Written> {
    let (dockerfile, value) = exported(call, sandbox, base, verify).await?;
    Ok(Written { dockerfile, report: told(&value), context_bytes: value.context_bytes })
}

/// What came of an export.
pub struct Written {
    pub dockerfile: String,
    /// What is to be said of it.
    pub report: String,
    pub context_bytes: u64,
}

async fn exported(
    call: &Call,
    sandbox: &SandboxInfo,
    base: Option<ImageName>,
    verify: bool,
) -> Result<(String, Exported)> {
    let exporter = call.exporter.clone().ok_or_else(|| {
        Error::unsupported("this server writes no Dockerfiles").with_hint("use save_sandbox to keep the files")
    })?;
    let check = check(call, sandbox, base.as_ref(), verify).await?;
    let request = ExportRequest { sandbox: sandbox.id.clone(), base, check };
    let exported = tokio::select! {
        exported = exporter.export(&call.owner, request, &call.progress) => exported?,
        () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
    };
    let Export { dockerfile, context, report } = exported;
    let path: GuestPath = CONTEXT.parse()?;
    let bytes = put(&*call.service.files(&call.owner, &sandbox.id)?, &path, context).await?;
    Ok((dockerfile, object(&report, uri::file(&sandbox.id, &path), bytes)))
}

/// A base is fetched only if it is one that sandboxes may start from.
async fn check(call: &Call, sandbox: &SandboxInfo, base: Option<&ImageName>, wanted: bool) -> Result<Check> {
    if !wanted {
        return Ok(Check::Skip("it was not asked for".to_owned()));
    }
    // Its commands are done again with the network that it has.
    call.policy.ceiling.network.admit(sandbox.network.clone())?;
    let Some(base) = base else { return Ok(Check::Rebuild) };
    match call.policy.image(Some(base.as_str())) {
        Ok(image) => image::provide(call, &image).await.map(|()| Check::Rebuild),
        Err(error) => Ok(Check::Skip(error.message().to_owned())),
    }
}

async fn put(files: &dyn Files, path: &GuestPath, mut context: Box<dyn AsyncRead + Send + Unpin>) -> Result<u64> {
    let mut file = files.write(path, WriteOptions::default()).await?;
    // A write that fails is explained by the commit.
    let copied = tokio::io::copy(&mut context, &mut file).await;
    file.commit().await?;
    copied.map_err(|cause| Error::unavailable("the build context could not be read").with_cause(cause))
}

fn object(report: &Report, uri: String, bytes: u64) -> Exported {
    let (mut same, mut differences, mut more, mut reason) = (0, Vec::new(), 0, None);
    match &report.outcome {
        Outcome::Compared { same: alike, differences: found, more: further } => {
            (same, more) = (*alike, *further);
            let told = found
                .iter()
                .map(|one| DifferenceObject { path: one.path.to_string_lossy().into_owned(), what: one.what.as_str() });
            differences.extend(told);
        }
        Outcome::NotBuilt(why) | Outcome::NotChecked(why) => reason = Some(why.clone()),
    }
    Exported {
        result: report.outcome.as_str(),
        reason,
        base: report.base.clone(),
        base_digest: report.base_digest.clone(),
        same,
        differences,
        more_differences: more,
        builds: report.builds,
        notes: report.notes.clone(),
        context_path: CONTEXT,
        context_uri: uri,
        context_bytes: bytes,
    }
}

fn told(exported: &Exported) -> String {
    let mut text = match (exported.result, &exported.reason) {
        ("reproduced", _) => format!("[built and compared: all {} paths came out the same]", exported.same),
        ("differs", _) => {
            let count = exported.differences.len() as u64 + exported.more_differences;
            format!("[built and compared: {} paths came out the same, {count} did not]", exported.same)
        }
        ("not_built", Some(reason)) => format!("[it does not build here: {reason}]"),
        (_, Some(reason)) => format!("[not checked: {reason}]"),
        (_, None) => "[not checked]".to_owned(),
    };
    for one in exported.differences.iter().take(TOLD) {
        let _ = write!(text, "\n[{}: {}]", one.what, text::on_one_line(&one.path));
    }
    for note in &exported.notes {
        let _ = write!(text, "\n[{}]", text::on_one_line(note));
    }
    let size = ByteSize::new(exported.context_bytes);
    let _ = write!(text, "\n[the Dockerfile and its files are in {} of the sandbox ({size})]", exported.context_path);
    text
}
