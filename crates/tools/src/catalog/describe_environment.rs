//! `describe_environment`: what there is to work with, and which walls stand around it.

use std::fmt::Write;

use sandbox::{ErrorKind, IsolationReport, LayerState, Limits, Network, Result, SandboxInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::save_sandbox::SavedObject;
use super::target;
use crate::call::Call;
use crate::content::Content;
use crate::image;
use crate::policy::{Asked, Policy};
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Tell of the walls around this sandbox and of its network, by id or name. Left out: of a fresh one.
    sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Environment {
    engine: &'static str,
    image: String,
    /// Names of others that can be asked for; * stands for any ending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    allowed_images: Vec<String>,
    /// Those of save_sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    saved_images: Vec<SavedObject>,
    /// Whether run_code and create_sandbox install packages.
    packages_allowed: bool,
    work_directory: String,
    /// The number of the user that programs are, in the sandbox. 0 is root of the sandbox and of nothing else.
    user: u32,
    languages: Vec<LanguageObject>,
    limits: LimitsObject,
    network: NetworkObject,
    /// What separates a sandbox from the kernel of its host: shared with it, another kernel, or a machine of its own.
    isolation_tier: &'static str,
    /// The runtime of the daemon that made the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    isolation_runtime: Option<String>,
    isolation: Vec<LayerObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LanguageObject {
    name: String,
    available: bool,
    /// What the program says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// How the operator can add it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// What a run gets unless it says otherwise, and the most that can be asked for.
#[derive(Debug, Serialize, JsonSchema)]
struct LimitsObject {
    cpus: f64,
    memory_mb: u64,
    disk_mb: u64,
    processes: u32,
    timeout_s: u64,
    idle_timeout_s: u64,
    max_cpus: f64,
    max_memory_mb: u64,
    max_disk_mb: u64,
    max_processes: u32,
    max_timeout_s: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct NetworkObject {
    /// What the sandbox that was named may reach, or a fresh one that does not ask.
    allowed: String,
    /// The most that can be asked for.
    max: String,
    /// Secrets that sandboxes can use with their hosts and never see. Each is a variable whose value stands for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    secrets: Vec<SecretObject>,
    /// Variables of the server's own environment, which code in sandboxes can read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    passed_through_env: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SecretObject {
    name: String,
    hosts: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LayerObject {
    layer: &'static str,
    /// on, off or unknown.
    state: &'static str,
    description: &'static str,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "describe_environment",
        title: "Describe the environment",
        description:
            "Get the languages with their versions, the limits, the network, and the isolation that is really \
                      in force, layer by layer. Call it before you rely on a language other than Python or Bash."
                .to_owned(),
        toolset: Toolset::Environment,
        hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, describe)
}

async fn describe(call: Call, arguments: Arguments) -> Result<Answer<Environment>> {
    image::provide(&call, &call.policy.image).await?;
    let (SandboxInfo { network: allowed, work_directory, .. }, isolation) =
        look(&call, arguments.sandbox_id.as_deref()).await?;
    let languages = call.service.languages(&call.owner, &call.policy.image).await?;
    // An engine that saves nothing has nothing saved.
    let saved = match call.service.saved(&call.owner).await {
        Ok(saved) => saved,
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
        Err(error) => return Err(error),
    };
    let value = Environment {
        engine: call.service.capabilities().name,
        image: call.policy.image.shown().to_owned(),
        allowed_images: call.policy.images.iter().map(ToString::to_string).collect(),
        saved_images: saved.iter().map(SavedObject::from).collect(),
        packages_allowed: call.policy.packages,
        work_directory: work_directory.to_string_lossy().into_owned(),
        user: isolation.user.id,
        languages: languages
            .into_iter()
            .map(|language| LanguageObject {
                name: language.name,
                available: language.version.is_some(),
                version: language.version,
                remedy: language.remedy,
            })
            .collect(),
        limits: limits(&call, isolation.limits),
        network: network(&call.policy, &allowed),
        isolation_tier: isolation.tier,
        isolation_runtime: isolation.runtime,
        isolation: isolation
            .layers
            .iter()
            .map(|report| LayerObject {
                layer: report.layer.as_str(),
                state: report.state.as_str(),
                description: report.layer.description(),
            })
            .collect(),
    };
    Ok(Answer { content: vec![Content::Text(text(&value))], value })
}

/// Of the sandbox that is named; otherwise of one that is made to be looked at.
async fn look(call: &Call, sandbox_id: Option<&str>) -> Result<(SandboxInfo, IsolationReport)> {
    if let Some(id) = sandbox_id {
        let sandbox = target::sandbox(call, id).await?;
        let report = call.service.isolation(&call.owner, &sandbox.id).await?;
        return Ok((sandbox, report));
    }
    let sandbox = call.service.create(&call.owner, call.policy.spec(&call.owner, Asked::default())?).await?;
    let report = call.service.isolation(&call.owner, &sandbox.id).await;
    call.service.stop(&call.owner, &sandbox.id).await?;
    Ok((sandbox, report?))
}

fn network(policy: &Policy, allowed: &Network) -> NetworkObject {
    let most = &policy.ceiling.network;
    let usable = policy.secrets.iter().filter(|secret| secret.is_within(most) || secret.is_within(allowed));
    NetworkObject {
        allowed: allowed.to_string(),
        max: most.to_string(),
        secrets: usable
            .map(|secret| SecretObject {
                name: secret.name.to_string(),
                hosts: secret.hosts.iter().map(ToString::to_string).collect(),
            })
            .collect(),
        passed_through_env: policy.passed_through.clone(),
    }
}

/// As they are in force, which may be tighter than what was asked for.
fn limits(call: &Call, limits: Limits) -> LimitsObject {
    let policy = &call.policy;
    let ceiling = &policy.ceiling;
    LimitsObject {
        cpus: f64::from(limits.cpu_millis) / 1000.0,
        memory_mb: limits.memory.bytes() >> 20,
        disk_mb: limits.disk.bytes() >> 20,
        processes: limits.processes,
        timeout_s: policy.timeout.as_secs(),
        idle_timeout_s: policy.lifetime.idle.as_secs(),
        max_cpus: f64::from(ceiling.cpu_millis) / 1000.0,
        max_memory_mb: ceiling.memory.bytes() >> 20,
        max_disk_mb: ceiling.disk.bytes() >> 20,
        max_processes: ceiling.processes,
        max_timeout_s: policy.longest_timeout.as_secs(),
    }
}

fn text(environment: &Environment) -> String {
    let mut text = String::from("languages:\n");
    for language in &environment.languages {
        let _ = match (&language.version, &language.remedy) {
            (Some(version), _) => writeln!(text, "  {}: {version}", language.name),
            (None, Some(remedy)) => writeln!(text, "  {}: not installed; {remedy}", language.name),
            (None, None) => writeln!(text, "  {}: not installed", language.name),
        };
    }
    let packages = match environment.packages_allowed {
        true => "of Python and npm, on request: packages of run_code and create_sandbox",
        false => "those of the image only",
    };
    let _ = writeln!(text, "packages: {packages}");
    let _ = match environment.user {
        0 => writeln!(text, "user: 0, root of the sandbox"),
        user => writeln!(text, "user: {user}"),
    };
    let limits = &environment.limits;
    let _ = writeln!(
        text,
        "limits of a run: {} cpus, {} MiB memory, {} MiB disk, {} processes, {} s (at most {} s)",
        limits.cpus, limits.memory_mb, limits.disk_mb, limits.processes, limits.timeout_s, limits.max_timeout_s
    );
    let NetworkObject { allowed, max, secrets, passed_through_env } = &environment.network;
    let _ = match allowed == max {
        true => writeln!(text, "network: {allowed}"),
        false => writeln!(text, "network: {allowed}; at most {max} can be asked for"),
    };
    for SecretObject { name, hosts } in secrets {
        let _ = writeln!(text, "  secret ${name}, for {}: its value is put in on the way there", hosts.join(","));
    }
    if !passed_through_env.is_empty() {
        let _ = writeln!(text, "variables of the server that code can read: {}", passed_through_env.join(", "));
    }
    let _ = match environment.allowed_images.as_slice() {
        [] => writeln!(text, "image: {}", environment.image),
        others => writeln!(text, "image: {}; {} can be asked for", environment.image, others.join(", ")),
    };
    if !environment.saved_images.is_empty() {
        let names: Vec<_> = environment.saved_images.iter().map(|saved| saved.image.as_str()).collect();
        let _ = writeln!(text, "saved images: {}", names.join(", "));
    }
    let layers = environment.isolation.iter();
    let (on, other): (Vec<_>, Vec<_>) = layers.partition(|layer| layer.state == LayerState::On.as_str());
    let names = |layers: &[&LayerObject]| layers.iter().map(|layer| layer.layer).collect::<Vec<_>>().join(", ");
    let (engine, tier) = (environment.engine, environment.isolation_tier);
    let by = environment.isolation_runtime.as_ref().map(|runtime| format!(", made by {runtime}")).unwrap_or_default();
    let _ = write!(text, "isolation ({engine} engine, {tier}{by}): {}", names(&on));
    if !other.is_empty() {
        let _ = write!(text, "; NOT in force: {}", names(&other));
    }
    text
}
