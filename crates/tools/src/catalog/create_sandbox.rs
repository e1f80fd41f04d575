//! `create_sandbox`: a computer that stays between calls.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox::{
    ByteSize, Environment, Error, Lifetime, Limits, PackageLanguage, Persistence, Result, SandboxInfo, SandboxSpec,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::list_sandboxes::{ReachObject, SandboxObject};
use crate::call::Call;
use crate::content::Content;
use crate::image;
use crate::network::NetworkArgument;
use crate::packages;
use crate::policy::{Asked, Policy};
use crate::select::Toolset;
use crate::text;
use crate::tool::{Answer, Definition, Hints, Tool};
use crate::words;

pub const NAME: &str = "create_sandbox";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// A name of your choice, unique among your sandboxes, that can stand in for the id: lower-case letters, digits
    /// and dashes.
    name: Option<String>,
    #[schemars(range(min = 0.01))]
    cpus: Option<f64>,
    #[schemars(range(min = 8))]
    memory_mb: Option<u32>,
    #[schemars(range(min = 1))]
    disk_mb: Option<u32>,
    #[schemars(range(min = 4))]
    processes: Option<u32>,
    #[schemars(range(min = 1))]
    idle_timeout_s: Option<u32>,
    /// The image to start from.
    image: Option<String>,
    /// Packages to have there.
    #[serde(default)]
    packages: Vec<String>,
    /// What it may reach.
    network: Option<NetworkArgument>,
    /// Ends after so many seconds, used or not. Default: no such end.
    #[schemars(range(min = 1))]
    max_lifetime_s: Option<u32>,
    /// Outlive this server, until it is stopped or idle for too long. Default false.
    #[serde(default)]
    persist: bool,
    /// Environment variables for everything that runs in it.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

pub fn tool(policy: &Policy) -> Tool {
    let description = format!(
        "Make a sandbox, a private Linux computer that keeps its files between calls, and get its sandbox_id for the \
         other tools. Not needed for a single run: run_code without sandbox_id makes one and ends it. It \
         starts with an empty work directory and ends when it was not used for {}. {} Call stop_sandbox when you are done.",
        text::spoken(policy.lifetime.idle),
        words::network(policy),
    );
    let definition = Definition {
        name: NAME,
        title: "Create a sandbox",
        description,
        toolset: Toolset::Sandboxes,
        hints: Hints { read_only: false, destructive: false, idempotent: false, open_world: policy.reaches_out() },
    };
    let mut tool = Tool::new(definition, create);
    let (limits, ceiling) = (policy.limits, &policy.ceiling);
    let cpus = |millis: u32| f64::from(millis) / 1000.0;
    let mebibytes = |size: ByteSize| size.bytes() >> 20;
    tool.refine("cpus", "description", format!("Processors, in parts too. Default {}.", cpus(limits.cpu_millis)));
    tool.refine("cpus", "maximum", cpus(ceiling.cpu_millis));
    let memory = mebibytes(limits.memory);
    tool.refine("memory_mb", "description", format!("Memory in MiB; files count too. Default {memory}."));
    tool.refine("memory_mb", "maximum", mebibytes(ceiling.memory));
    let disk = mebibytes(limits.disk);
    tool.refine(
        "disk_mb",
        "description",
        format!("Room for files in MiB; never more than three quarters of the memory. Default {disk}."),
    );
    tool.refine("disk_mb", "maximum", mebibytes(ceiling.disk));
    let processes = limits.processes;
    tool.refine("processes", "description", format!("Processes and threads at once. Default {processes}."));
    tool.refine("processes", "maximum", ceiling.processes);
    tool.refine("image", "description", image::argument(policy));
    let usual = "They are of Python, or of npm with npm: before.";
    tool.refine("packages", "description", packages::argument(policy, usual));
    tool.refine("network", "description", words::argument(policy));
    let idle = policy.lifetime.idle.as_secs();
    tool.refine("idle_timeout_s", "description", format!("Ends after so many seconds without use. Default {idle}."));
    tool
}

/// A sandbox, and what was installed for it.
pub async fn make(call: &Call, arguments: &Arguments) -> Result<(SandboxInfo, Vec<String>)> {
    let wanted = packages::asked(&call.policy, PackageLanguage::Python, &arguments.packages)?;
    let mut spec = spec(call, arguments)?;
    image::provide(call, &spec.image).await?;
    let prepared = packages::provide(call, &spec.image, &wanted).await?;
    let installed = packages::attach(&prepared, &mut spec)?;
    let sandbox = tokio::select! {
        created = call.service.create(&call.owner, spec) => created?,
        () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
    };
    Ok((sandbox, installed))
}

async fn create(call: Call, arguments: Arguments) -> Result<Answer<SandboxObject>> {
    let (sandbox, installed) = make(&call, &arguments).await?;
    let reach = call.service.reach(&call.owner, &sandbox.id).await?.map(ReachObject::from);
    let value = SandboxObject { packages: installed, reach, ..SandboxObject::from(&sandbox) };
    let mut text = format!(
        "created sandbox {}; image {}; work directory {}; network: {}",
        value.sandbox_id,
        value.image,
        value.work_directory,
        words::shortened(&sandbox.network)
    );
    if !value.packages.is_empty() {
        text.push_str(&format!("; packages: {}", value.packages.join(", ")));
    }
    if let Some(reach) = &value.reach {
        text.push_str(&format!("\n{}", reach.told()));
    }
    Ok(Answer { content: vec![Content::Text(text)], value })
}

fn spec(call: &Call, arguments: &Arguments) -> Result<SandboxSpec> {
    let policy = &call.policy;
    let defaults = policy.limits;
    let mebibytes = |count: u32| ByteSize::mebibytes(count.into());
    let limits = Limits {
        cpu_millis: arguments.cpus.map_or(Ok(defaults.cpu_millis), millis)?,
        memory: arguments.memory_mb.map_or(defaults.memory, mebibytes),
        disk: arguments.disk_mb.map_or(defaults.disk, mebibytes),
        processes: arguments.processes.unwrap_or(defaults.processes),
        ..defaults
    };
    let seconds = |count: u32| Duration::from_secs(count.into());
    let asked = Asked { image: arguments.image.as_deref(), network: arguments.network.as_ref() };
    let spec = policy.spec(&call.owner, asked)?;
    Ok(SandboxSpec {
        limits: policy.ceiling.admit(limits)?,
        lifetime: Lifetime {
            idle: arguments.idle_timeout_s.map_or(policy.lifetime.idle, seconds),
            total: total(policy, arguments.max_lifetime_s.map(seconds))?,
        },
        persistence: if arguments.persist { Persistence::Persistent } else { Persistence::Ephemeral },
        name: arguments.name.as_deref().map(str::parse).transpose()?,
        environment: spec.environment.overlaid_by(&environment(&arguments.env)?),
        ..spec
    })
}

/// What the operator set is the most that can be asked for.
fn total(policy: &Policy, asked: Option<Duration>) -> Result<Option<Duration>> {
    match (asked, policy.lifetime.total) {
        (Some(asked), Some(most)) if asked > most => {
            Err(Error::limit_exceeded("that is longer than sandboxes live on this server")
                .with_hint(format!("ask for at most {} max_lifetime_s", most.as_secs())))
        }
        (Some(asked), _) => Ok(Some(asked)),
        (None, most) => Ok(most),
    }
}

pub fn environment(pairs: &BTreeMap<String, String>) -> Result<Environment> {
    let mut environment = Environment::default();
    for (name, value) in pairs {
        environment.insert(name, value)?;
    }
    Ok(environment)
}

fn millis(cpus: f64) -> Result<u32> {
    let millis = (cpus * 1000.0).round();
    if millis >= 1.0 && millis <= f64::from(u32::MAX) {
        return Ok(millis as u32);
    }
    Err(Error::invalid_input("cpus must be more than 0, for example 0.5 or 2"))
}
