//! One whole task, done by every client: create, write a file, run, see the plot, read it, fail, watch, cancel, stop.

use std::time::{Duration, Instant};

use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};

use crate::hands::Hands;
use crate::installed::Installed;
use crate::scene::Scene;
use crate::server::Server;
use crate::{Need, Plan};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    Python1,
    Python2(&'static str),
    Node1,
    Node2(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Stdio,
    Http,
    Sse,
    /// Over stdio to a bridge, and from there as the bridge is told.
    Bridge(&'static str),
}

const MODERN: &str = "2026-07-28";

pub(crate) fn plans() -> Vec<Plan> {
    let clients = [
        Client::Python1,
        Client::Python2("legacy"),
        Client::Python2("auto"),
        Client::Python2(MODERN),
        Client::Node1,
        Client::Node2("legacy"),
        Client::Node2("auto"),
        Client::Node2(MODERN),
    ];
    let transports = [Transport::Stdio, Transport::Http, Transport::Sse];
    let pairs = transports.into_iter().flat_map(|transport| clients.map(|client| (client, transport)));
    // HTTP+SSE is older than the newest revision by far, and was never given a way to speak it.
    let spoken = pairs.filter(|(client, transport)| *transport != Transport::Sse || client.era() == "legacy");
    let bridges = [(Client::Node1, Transport::Bridge("http-only")), (Client::Python1, Transport::Bridge("sse-only"))];
    let plan = |(client, transport): (Client, Transport)| {
        let name = format!("task::{}::{}", client.name(), transport.name());
        Plan::new(name, &client.needs(transport), move |installed| whole_task(installed, client, transport))
    };
    spoken.chain(bridges).map(plan).collect()
}

impl Client {
    pub fn name(self) -> String {
        match self {
            Self::Python1 => "python 1.30".to_owned(),
            Self::Python2(mode) => format!("python 2.3 {mode}"),
            Self::Node1 => "typescript 1.32".to_owned(),
            Self::Node2(mode) => format!("typescript 2.4 {mode}"),
        }
    }

    fn era(self) -> &'static str {
        match self {
            Self::Python1 | Self::Node1 => "legacy",
            Self::Python2(mode) | Self::Node2(mode) => mode,
        }
    }

    fn needs(self, transport: Transport) -> Vec<Need> {
        match transport {
            Transport::Stdio | Transport::Http | Transport::Sse => vec![self.need()],
            Transport::Bridge(_) => vec![self.need(), Need::Node],
        }
    }

    pub fn need(self) -> Need {
        match self {
            Self::Python1 => Need::Python("1.30"),
            Self::Python2(_) => Need::Python("2.3"),
            Self::Node1 | Self::Node2(_) => Need::Node,
        }
    }

    pub fn start(self, scene: &Scene<'_>, transport: &str, target: &[String]) -> Result<Hands> {
        let mut command = match self {
            Self::Python1 => scene.python("1.30", "v1.py"),
            Self::Python2(_) => scene.python("2.3", "v2.py"),
            Self::Node1 => scene.node_script("v1.mjs")?,
            Self::Node2(_) => scene.node_script("v2.mjs")?,
        };
        match self {
            Self::Python2(mode) | Self::Node2(mode) => _ = command.arg(mode),
            Self::Python1 | Self::Node1 => {}
        }
        Hands::start(command.arg(transport).args(target), &scene.path().join("client.log"))
    }
}

impl Transport {
    fn name(self) -> String {
        match self {
            Self::Stdio => "stdio".to_owned(),
            Self::Http => "http".to_owned(),
            Self::Sse => "sse".to_owned(),
            Self::Bridge(how) => format!("mcp-remote {how}"),
        }
    }
}

fn whole_task(installed: &Installed, client: Client, transport: Transport) -> Result<()> {
    let scene = Scene::new(installed)?;
    if transport == Transport::Stdio {
        let hands = client.start(&scene, "stdio", &scene.stdio_server())?;
        carry_out(hands, client, transport)?;
    } else {
        let server = Server::start(&scene, &installed.product)?;
        let (kind, target) = match transport {
            Transport::Stdio | Transport::Http => ("http", vec![server.url.clone()]),
            Transport::Sse => ("sse", vec![server.sse_url()]),
            Transport::Bridge(how) => ("stdio", bridge(&scene, &server, how)),
        };
        let done = client.start(&scene, kind, &target).and_then(|hands| carry_out(hands, client, transport));
        server.explain(done)?;
        server.stop()?;
    }
    let left = scene.running();
    ensure(left.is_empty(), || format!("still running: {left:?}"))?;
    let left = scene.containers()?;
    ensure(left.is_empty(), || format!("still on the daemon: {left:?}"))
}

fn bridge(scene: &Scene<'_>, server: &Server, how: &str) -> Vec<String> {
    let url = if how == "sse-only" { server.sse_url() } else { server.url.clone() };
    let program = scene.installed.packages().join("mcp-remote/dist/proxy.js");
    let programs = [scene.installed.node(), program].map(|path| path.to_string_lossy().into_owned());
    let rest = [url, "--allow-http".to_owned(), "--transport".to_owned(), how.to_owned()];
    programs.into_iter().chain(rest).collect()
}

fn carry_out(mut hands: Hands, client: Client, transport: Transport) -> Result<()> {
    let version = hands.version()?;
    let expected = if client.era() == "legacy" { "2025-11-25" } else { MODERN };
    // Over HTTP+SSE a server may answer with the revision that the transport belongs to.
    let agreed = version == expected || (transport == Transport::Sse && version == "2024-11-05");
    ensure(agreed, || format!("{version} was agreed upon, not {expected}"))?;
    let mut task = Task { hands, sandbox: String::new() };
    task.tools_are_described()?;
    task.create()?;
    task.plot()?;
    task.failures()?;
    task.watch()?;
    task.cancel()?;
    task.stop()?;
    task.hands.close()
}

struct Task {
    hands: Hands,
    sandbox: String,
}

impl Task {
    fn tools_are_described(&mut self) -> Result<()> {
        let tools = self.hands.tools()?;
        let tools = tools.as_array().ok_or("there is no list of tools")?;
        for name in ["run_code", "run_command", "create_sandbox", "stop_sandbox", "read_file", "write_file"] {
            let tool = tools.iter().find(|tool| tool["name"] == name).ok_or(Trouble(format!("there is no {name}")))?;
            let described = tool["description"].is_string() && tool["outputSchema"].is_object();
            ensure(described, || format!("{name} is not described: {tool}"))?;
        }
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        let created = self.good("create_sandbox", &json!({}))?;
        self.sandbox = text(&created["sandbox_id"]).to_owned();
        ensure(self.sandbox.starts_with("sb-"), || format!("{created} has no sandbox"))?;
        ensure(self.is_listed()?, || "the new sandbox is not listed".to_owned())
    }

    fn plot(&mut self) -> Result<()> {
        let sandbox = self.sandbox.clone();
        let file = json!({"sandbox_id": sandbox, "path": "data.csv", "content": "3,4\n20,30\n60,47\n"});
        self.good("write_file", &file)?;
        let arguments = json!({"sandbox_id": sandbox, "language": "python", "code": include_str!("plot.py")});
        let result = self.hands.call("run_code", &arguments)?;
        let run = &result["structuredContent"];
        let ran = run["status"] == "exited" && run["exit_code"] == 0 && run["stdout"] == "drew 3 points\n";
        ensure(ran, || format!("the run is not what it should be: {result}"))?;
        let shown = image(&result)?;
        let artifacts = run["artifacts"].as_array().cloned().unwrap_or_default();
        let plot = artifacts.iter().find(|artifact| text(&artifact["path"]).ends_with("plot.png"));
        let plot = plot.ok_or_else(|| Trouble(format!("the plot is no artifact: {run}")))?;
        let resource = self.hands.read(text(&plot["uri"]))?;
        ensure(resource["mimeType"] == "image/png", || format!("the resource is a {}", resource["mimeType"]))?;
        ensure(resource["blob"] == shown, || "the resource differs from the image".to_owned())?;
        let read = self.hands.call("read_file", &json!({"sandbox_id": sandbox, "path": "plot.png"}))?;
        ensure(image(&read)? == shown, || "the file differs from the image".to_owned())?;
        let listed = self.good("list_files", &json!({"sandbox_id": sandbox}))?;
        let names = listed["entries"].as_array().cloned().unwrap_or_default();
        let all_there =
            ["data.csv", "plot.png"].iter().all(|name| names.iter().any(|entry| text(&entry["path"]).ends_with(name)));
        ensure(all_there, || format!("not all files are listed: {listed}"))
    }

    /// A program that fails is a result; a request that fails says what to do next.
    fn failures(&mut self) -> Result<()> {
        let code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)";
        let arguments = json!({"sandbox_id": self.sandbox, "language": "python", "code": code});
        let run = self.good("run_code", &arguments)?;
        let told = run["exit_code"] == 3 && run["stdout"] == "out\n" && run["stderr"] == "err\n";
        ensure(told, || format!("the failed program is not told as it was: {run}"))?;
        let missing = json!({"sandbox_id": "sb-aaaaaaaaaaaaaaaa", "path": "x"});
        let refused = self.hands.call("read_file", &missing)?;
        let hint = refused["content"].to_string();
        let helpful = refused["isError"] == true && hint.contains("create_sandbox");
        ensure(helpful, || format!("the refusal does not help: {refused}"))
    }

    fn watch(&mut self) -> Result<()> {
        let command = "for i in 1 2 3; do echo line $i; sleep 0.4; done";
        let arguments = json!({"sandbox_id": self.sandbox, "command": command});
        let called = self.hands.call_with_progress("run_command", &arguments)?;
        let result = called.result.unwrap_or_default();
        let finished = result["structuredContent"]["stdout"] == "line 1\nline 2\nline 3\n";
        ensure(finished, || format!("the output is not whole: {result}"))?;
        let seen = called.progress.iter().any(|message| message.contains("line 1"));
        ensure(seen, || format!("no progress told of the first line: {:?}", called.progress))
    }

    fn cancel(&mut self) -> Result<()> {
        let arguments = json!({"sandbox_id": self.sandbox, "command": "echo ready; sleep 600", "timeout_s": 900});
        let started = Instant::now();
        let called = self.hands.call_and_cancel("run_command", &arguments)?;
        ensure(called.result.is_none(), || format!("a cancelled call has a result: {:?}", called.result))?;
        let question = json!({"sandbox_id": self.sandbox, "command": "cat /proc/[0-9]*/comm"});
        loop {
            let running = self.good("run_command", &question)?;
            if !text(&running["stdout"]).lines().any(|name| name == "sleep") {
                return Ok(());
            }
            ensure(started.elapsed() < Duration::from_secs(30), || "the cancelled run goes on".to_owned())?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.good("stop_sandbox", &json!({"sandbox_id": self.sandbox}))?;
        ensure(!self.is_listed()?, || "a stopped sandbox is still listed".to_owned())
    }

    fn is_listed(&mut self) -> Result<bool> {
        let listed = self.good("list_sandboxes", &json!({}))?;
        let sandboxes = listed["sandboxes"].as_array().cloned().unwrap_or_default();
        Ok(sandboxes.iter().any(|sandbox| sandbox["sandbox_id"] == self.sandbox))
    }

    /// The structured content of a call that must not be refused.
    fn good(&mut self, name: &str, arguments: &Value) -> Result<Value> {
        let mut result = self.hands.call(name, arguments)?;
        ensure(result["isError"] != true, || format!("{name} was refused: {result}"))?;
        Ok(result["structuredContent"].take())
    }
}

/// The one image in a result, as base64.
fn image(result: &Value) -> Result<String> {
    let blocks = result["content"].as_array().cloned().unwrap_or_default();
    let images: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "image").collect();
    let [image] = images[..] else { return Err(format!("there is not one image in {result}").into()) };
    let is_png = image["mimeType"] == "image/png" && text(&image["data"]).starts_with("iVBORw0KGgo");
    ensure(is_png, || format!("the image is no PNG: {image}"))?;
    Ok(text(&image["data"]).to_owned())
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
