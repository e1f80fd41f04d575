//! Packages of npm. The lock is made without running anything of them; install scripts run after it was read, in the
//! builder, which has nothing but the registry.

use serde_json::{Map, Value, json};

use super::builder::Ran;
use super::failure::{self, Tool};
use super::make::{Interpreter, Lock, Trust, Work};
use super::record::Record;
use super::{PackageStep, ResolvedPackage, said, words};
use crate::error::{Error, Result};
use crate::image::Image;
use crate::spec::Environment;

const PROBE: &str = r#"
const fs = require("fs"), path = require("path");
const prefix = path.dirname(path.dirname(process.execPath));
const header = process.report ? process.report.getReport().header : {};
console.log(JSON.stringify({
  kind: ["node", process.version, process.versions.modules, process.platform, process.arch,
         header.glibcVersionRuntime ? "glibc" : "other"].join(" "),
  headers: fs.existsSync(prefix + "/include/node/node.h") ? prefix : null,
  path: process.env.PATH || "",
}));
"#;

const MOST_LOCK_BYTES: usize = 16 << 20;
const DIRECTORY: &str = "build";

pub(super) async fn make(work: &Work<'_>) -> Result<Record> {
    let said = probe(work).await?;
    let npm = Npm { variables: variables(work, said.headers.as_deref())? };
    let interpreter = Interpreter { kind: said.kind, path: said.path, python_path: String::new() };
    work.builder.write("build/package.json", manifest(work).to_string().as_bytes()).await?;
    work.builder.write("build/.npmrc", settings(work).as_bytes()).await?;

    let ran = npm.run(work, &["install", "--package-lock-only", "--ignore-scripts"]).await?;
    if !ran.is_success() {
        return Err(npm.explain(work, &ran).await);
    }
    let lock = lock(&work.builder.read("build/package-lock.json", MOST_LOCK_BYTES).await?)?;
    let tree = work.tree(&interpreter, &lock)?;
    if work.trees.kept(&tree).await?.is_none() {
        work.report(PackageStep::Installing(lock.resolved.len()));
        let ran = npm.run(work, &["ci"]).await?;
        if !ran.is_success() {
            return Err(npm.explain(work, &ran).await);
        }
        work.keep("build/node_modules", &tree).await?;
    }
    Ok(work.record(interpreter, lock, tree))
}

async fn probe(work: &Work<'_>) -> Result<said::Node> {
    let argv = ["node", "-e", PROBE];
    let image = &work.request.image;
    let Some(ran) = work.builder.try_run(&argv, &Environment::default(), None, |_| {}).await? else {
        return Err(Error::unsupported(format!("there is no Node.js in the image {}", image.shown()))
            .with_hint("use an image that has it, such as node:24-slim"));
    };
    match (ran.is_success(), serde_json::from_str(ran.stdout.trim())) {
        (true, Ok(said)) => Ok(said),
        (_, Ok(_) | Err(_)) => Err(failure::broken("node", work.request, &ran)),
    }
}

/// What was asked for, as npm reads it: no word of it is ever an argument.
fn manifest(work: &Work<'_>) -> Value {
    let requirements = work.request.packages.requirements().iter();
    let wanted: Map<String, Value> =
        requirements.map(|one| (one.name().to_owned(), Value::from(one.range()))).collect();
    json!({ "name": "packages", "version": "0.0.0", "private": true, "dependencies": wanted })
}

/// Scopes have no variables.
fn settings(work: &Work<'_>) -> String {
    work.request.index.scopes.iter().map(|(scope, url)| format!("{scope}:registry={url}\n")).collect()
}

fn variables(work: &Work<'_>, headers: Option<&str>) -> Result<Environment> {
    let index = &work.request.index;
    let mut variables = Environment::default();
    for (name, value) in [
        ("npm_config_userconfig", "/dev/null"),
        ("npm_config_globalconfig", "/nonexistent"),
        ("npm_config_audit", "false"),
        ("npm_config_fund", "false"),
        ("npm_config_update_notifier", "false"),
        ("npm_config_color", "false"),
        ("npm_config_progress", "false"),
        ("npm_config_fetch_retries", "1"),
        ("npm_config_fetch_timeout", "60000"),
        ("npm_config_loglevel", "error"),
    ] {
        variables.insert(name, value)?;
    }
    if let Some(registry) = index.urls.first() {
        variables.insert("npm_config_registry", registry.as_str())?;
    }
    if !index.trusted_hosts.is_empty() {
        variables.insert("npm_config_strict_ssl", "false")?;
    }
    if let Some(headers) = headers {
        variables.insert("npm_config_nodedir", headers)?;
    }
    Ok(variables)
}

struct Npm {
    variables: Environment,
}

impl Npm {
    async fn run(&self, work: &Work<'_>, arguments: &[&str]) -> Result<Ran> {
        // A directory above could claim ours for a workspace, and bring settings.
        let argv: Vec<&str> = ["npm", "--no-workspaces"].iter().chain(arguments).copied().collect();
        let ran = work.builder.try_run(&argv, &self.variables, Some(DIRECTORY), |_| {}).await?;
        ran.ok_or_else(|| no_npm(&work.request.image))
    }

    /// npm does not say which versions there are, so it is asked.
    async fn explain(&self, work: &Work<'_>, ran: &Ran) -> Error {
        let Some(name) = failure::unmatched(ran) else { return failure::explain(Tool::Npm, work.request, ran) };
        let asked = self.run(work, &["view", "--json", "--", &name, "versions"]).await;
        let versions: Vec<String> =
            asked.ok().and_then(|ran| serde_json::from_str(&ran.stdout).ok()).unwrap_or_default();
        failure::no_version(&failure::wanted(ran).unwrap_or(name), &versions)
    }
}

fn lock(bytes: &[u8]) -> Result<Lock> {
    let locked: said::NpmLock = serde_json::from_slice(bytes)
        .map_err(|cause| Error::unavailable("the lock of npm makes no sense").with_cause(cause))?;
    let mut resolved: Vec<ResolvedPackage> = locked
        .packages
        .iter()
        .filter_map(|(path, entry)| {
            let (_, name) = path.rsplit_once("node_modules/")?;
            let version = entry.get("version")?.as_str()?;
            Some(ResolvedPackage { name: words::plain(name), version: words::plain(version) })
        })
        .collect();
    resolved.sort();
    resolved.dedup();
    let text = String::from_utf8_lossy(bytes).into_owned();
    Ok(Lock { resolved, text, trust: Trust::NothingForeignRan })
}

fn no_npm(image: &Image) -> Error {
    let hint = match image {
        Image::Host => "install it on this machine: apt install npm",
        Image::Directory(_) | Image::Archive(_) | Image::Named(_) | Image::Saved(_) => {
            "use an image with npm in it, such as node:24-slim"
        }
    };
    Error::unsupported(format!("there is no npm in the image {}", image.shown())).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_each_package_once() {
        let text = br#"{"lockfileVersion": 3, "packages": {"": {"version": "0.0.0"},
            "node_modules/@s/a": {"version": "2.0.0"}, "node_modules/b": {"version": "1.0.0"},
            "node_modules/b/node_modules/@s/a": {"version": "1.0.0"}, "node_modules/c/node_modules/b": {"version": "1.0.0"}}}"#;
        let named: Vec<String> =
            lock(text).unwrap().resolved.iter().map(|one| format!("{}@{}", one.name, one.version)).collect();
        assert_eq!(named, ["@s/a@1.0.0", "@s/a@2.0.0", "b@1.0.0"]);
        assert!(lock(b"{}").is_err());
    }
}
