//! The Inspector's command line: its check of schemas, and many calls at once.

use std::process::Command;
use std::time::Duration;

use sandpen_tests::program::run;
use sandpen_tests::{Result, Trouble};
use serde_json::Value;

use crate::installed::Installed;
use crate::scene::Scene;
use crate::server::Server;
use crate::{Need, Plan};

const INSPECTOR: &str = "@modelcontextprotocol/inspector/clients/launcher/build/index.js";
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for era in ["legacy", "modern"] {
        plans.push(Plan::new(format!("inspector::strict::stdio {era}"), &[Need::Node], move |installed| {
            let scene = Scene::new(installed)?;
            let mut command = inspector(&scene, era);
            strict(&scene, command.args(scene.stdio_server()))
        }));
        plans.push(Plan::new(format!("inspector::strict::http {era}"), &[Need::Node], move |installed| {
            let scene = Scene::new(installed)?;
            let server = Server::start(&scene, &installed.product)?;
            let mut command = inspector(&scene, era);
            server.explain(strict(&scene, command.args(["--transport", "http", "--server-url", &server.url])))?;
            server.stop()
        }));
        let name = format!("inspector::load::http {era}");
        plans.push(Plan::new(name, &[Need::Node], move |installed| load(installed, era)));
    }
    plans
}

fn inspector(scene: &Scene<'_>, era: &str) -> Command {
    let mut command = scene.node_package(INSPECTOR);
    command.args(["--cli", "--format", "json", "--protocol-era", era]);
    command
}

/// Errors and warnings alike are findings.
fn strict(scene: &Scene<'_>, command: &mut Command) -> Result<()> {
    let found = result(scene, command.args(["--strict", "--method", "tools/list"]))?;
    if !found["result"]["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == "run_code")) {
        return Err(format!("run_code is not listed: {found}").into());
    }
    match found.get("schemaFindings").and_then(Value::as_array) {
        Some(findings) if !findings.is_empty() => Err(format!("{findings:#?}").into()),
        Some(_) | None => Ok(()),
    }
}

fn load(installed: &Installed, era: &str) -> Result<()> {
    let scene = Scene::new(installed)?;
    let server = Server::start(&scene, &installed.product)?;
    let mut command = inspector(&scene, era);
    command.args(["--transport", "http", "--server-url", &server.url, "--method", "tools/call"]);
    command.args(["--tool-name", "run_command", "--tool-args-json", r#"{"command": "echo loaded"}"#]);
    command.args(["--load", "--load-requests", "60", "--load-concurrency", "6"]);
    let told = server.explain(result(&scene, &mut command))?["result"].take();
    let clean = told["requests"] == 60 && told["ok"] == 60 && told["toolErrors"] == 0 && told["errors"] == 0;
    if !clean {
        return server.explain(Err(format!("not every call was answered: {told:#}").into()));
    }
    server.stop()
}

fn result(scene: &Scene<'_>, command: &mut Command) -> Result<Value> {
    let said = run(command, scene.path(), LIMIT)?.succeeded()?.stdout;
    serde_json::from_str(&said).map_err(|error| Trouble(format!("{error} in:\n{said}")))
}
