//! Agents that connect to what their settings name.

use std::time::Duration;

use sandpen_tests::Result;
use sandpen_tests::program::{Ran, run};

use crate::installed::Installed;
use crate::scene::Scene;
use crate::server::Server;
use crate::{Need, Plan};

const GEMINI: &str = "@google/gemini-cli/bundle/gemini.js";
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn plans() -> Vec<Plan> {
    vec![Plan::new("agent::gemini", &[Need::Node], gemini_connects)]
}

/// `gemini mcp list` connects to every server that it knows before it lists them.
fn gemini_connects(installed: &Installed) -> Result<()> {
    let scene = Scene::new(installed)?;
    let server = Server::start(&scene, &installed.product)?;
    let settings = serde_json::json!({
        "privacy": {"usageStatisticsEnabled": false},
        "mcpServers": {
            "over-stdio": {"command": scene.stdio_server()[0], "args": scene.stdio_server()[1..]},
            "over-http": {"url": server.url, "type": "http"},
            "over-sse": {"url": server.sse_url(), "type": "sse"},
        },
    });
    let directory = scene.home().join(".gemini");
    std::fs::create_dir(&directory)?;
    std::fs::write(directory.join("settings.json"), settings.to_string())?;
    let mut command = scene.node_package(GEMINI);
    command.args(["mcp", "list"]).env("GEMINI_CLI_TRUST_WORKSPACE", "true");
    let listed = server.explain(run(&mut command, scene.path(), LIMIT).and_then(Ran::succeeded))?;
    for name in ["over-stdio", "over-http", "over-sse"] {
        let connected = listed
            .stdout
            .lines()
            .chain(listed.stderr.lines())
            .any(|line| line.contains(name) && line.contains("Connected"));
        if !connected {
            return server.explain(Err(listed.told(&format!("{name} is not connected"))));
        }
    }
    server.stop()
}
