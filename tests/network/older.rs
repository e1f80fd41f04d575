//! Older servers gave their containers the network. What sandboxes of their profiles reach, as their clients would see it; and
//! that the operator's word counts more.

use sandpen_tests::check::shortened;
use sandpen_tests::daemon::Given;
use sandpen_tests::random::unique;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};

use crate::backend::IMAGE;
use crate::product::Product;
use crate::scene::arrivals;
use crate::world::oracle::Oracle;
use crate::world::visits::{Visit, VisitKind};

/// One of them: how a client has a script run.
struct Older {
    profile: &'static str,
    run: fn(&mut Wire, &str) -> Result<Value>,
}

const OLDER: &[Older] = &[
    Older { profile: "cloudflare", run: cloudflare },
    Older { profile: "sandbox-server", run: sandbox_server },
    Older { profile: "automata", run: automata },
    Older { profile: "philschmid", run: philschmid },
    Older { profile: "code-runner", run: code_runner },
];

/// Each reaches what is public, as its server's containers did, and nothing that is private. Where the operator gives no network
/// there is none.
pub fn reach(oracle: &Oracle) -> Result<String> {
    for older in OLDER {
        let mark = unique("older");
        let (answer, came) = visit(oracle, older, &mark, &[])?;
        let reached = |visit: &Visit| visit.text.contains(&mark);
        if !came.iter().any(|visit| visit.kind == VisitKind::Request && visit.place == "public" && reached(visit)) {
            return Err(Trouble(format!("{}: the public place was not reached: {answer}", older.profile)));
        }
        let breaches = arrivals(&came, |visit| visit.place == "public");
        if !breaches.is_empty() {
            return Err(Trouble(format!("{}: {}", older.profile, shortened(&breaches))));
        }
        let (answer, came) = visit(oracle, older, &mark, &["--max-network", "none"])?;
        if let Some(visit) = came.first() {
            return Err(Trouble(format!("{}: without a network {visit} came: {answer}", older.profile)));
        }
    }
    for (network, how) in [(Some(false), "is false"), (None, "is not given")] {
        let run = move |wire: &mut Wire, script: &str| run_code(wire, script, network);
        let mark = unique("unasked");
        let (answer, came) = visit_by(oracle, "code-runner", run, &mark, &[])?;
        if let Some(visit) = came.first() {
            return Err(Trouble(format!("code-runner: where network {how} {visit} came: {answer}")));
        }
        // The script ran to its end: nobody came because nobody could.
        if !answer["content"][0]["text"].as_str().is_some_and(|text| text.contains("\"success\": true")) {
            return Err(Trouble(format!("code-runner: where network {how} it says {answer}")));
        }
    }
    Ok(format!("{} profiles, each with the operator's leave and without, and one unasked", OLDER.len()))
}

fn visit(oracle: &Oracle, older: &Older, mark: &str, arguments: &[&str]) -> Result<(Value, Vec<Visit>)> {
    visit_by(oracle, older.profile, older.run, mark, arguments)
}

fn visit_by(
    oracle: &Oracle,
    profile: &str,
    run: impl FnOnce(&mut Wire, &str) -> Result<Value>,
    mark: &str,
    arguments: &[&str],
) -> Result<(Value, Vec<Visit>)> {
    let product = Product::new()?;
    let mut command = product.command();
    command.args(["mcp", "--profile", profile, "--image", image()?]).args(arguments);
    command.args(["--profile-option", "end-containers"]);
    let mut wire = Wire::by(&mut command, product.place)?;
    let script = format!(
        "curl -sS -m 20 http://public.example.com/{mark}; curl -sS -m 5 http://ten.example.com/{mark}; \
         curl -sS -m 5 http://loopback.example.com/{mark}; curl -sS -m 5 --noproxy '*' http://10.20.0.5/{mark}; true"
    );
    oracle.visits()?;
    let answer = run(&mut wire, &script)?;
    wire.close();
    Ok((answer, oracle.visits()?))
}

fn image() -> Result<&'static str> {
    Ok(if Given::of_environment()?.is_some() { IMAGE } else { "host" })
}

/// The result, whether the tool calls it a failure or not: without a network it may.
fn ask(wire: &mut Wire, tool: &str, arguments: &Value) -> Result<Value> {
    let id = wire.call(tool, arguments)?;
    wire.answer(id)
}

fn cloudflare(wire: &mut Wire, script: &str) -> Result<Value> {
    ask(wire, "container_initialize", &json!({}))?;
    ask(wire, "container_exec", &json!({"args": {"args": script}}))
}

fn sandbox_server(wire: &mut Wire, script: &str) -> Result<Value> {
    let made = ask(wire, "create_container_environment", &json!({"image": image()?, "persist": false}))?;
    let told = made["content"][0]["text"].as_str().unwrap_or_default();
    let id = told.strip_prefix("Container created with ID: ").and_then(|rest| rest.lines().next());
    let id = id.ok_or_else(|| Trouble(format!("no container: {made}")))?;
    // It has no shell of its own.
    let command = format!("bash -c \"{script}\"");
    ask(wire, "execute_command_in_container", &json!({"container_id": id, "command": command}))
}

fn automata(wire: &mut Wire, script: &str) -> Result<Value> {
    let made = ask(wire, "sandbox_initialize", &json!({}))?;
    let told = made["content"][0]["text"].as_str().unwrap_or_default();
    let id = told.strip_prefix("container_id: ").ok_or_else(|| Trouble(format!("no container: {made}")))?;
    ask(wire, "sandbox_exec", &json!({"container_id": id, "commands": [script]}))
}

fn philschmid(wire: &mut Wire, script: &str) -> Result<Value> {
    let code = format!("import subprocess\nsubprocess.run(['bash', '-c', {script:?}])\nprint('done')");
    ask(wire, "run_python_code", &json!({"code": code}))
}

fn code_runner(wire: &mut Wire, script: &str) -> Result<Value> {
    run_code(wire, script, Some(true))
}

fn run_code(wire: &mut Wire, script: &str, network: Option<bool>) -> Result<Value> {
    let mut arguments = json!({"conversationId": "one", "language": "bash", "code": script});
    if let Some(network) = network {
        arguments["network"] = json!(network);
    }
    ask(wire, "run_code", &arguments)
}
