//! What a server is at when it is killed.

use sandpen_tests::random::Random;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, images};
use serde_json::{Value, json};

use super::rounds::Kept;
use crate::packages;
use crate::scene::Scene;

/// Bytes of a file that takes several messages.
pub(super) const LARGE: usize = 512 << 10;

/// Few names, so that images are replaced too. The last two are of the keeper whose programs are root.
pub(super) const SAVED: [&str; 5] = ["kept-0", "kept-1", "kept-2", "root-0", "root-1"];
const OF_ROOT: u64 = 2;
/// What sandboxes with a network may reach, though none of them asks for it.
pub(super) const REACHED: &str = "nowhere.example";

/// What holds once a call was answered.
#[derive(Clone, Debug)]
pub(super) enum Promise {
    File { name: String, content: String },
    Image(String),
    Persistent,
    Nothing,
}

/// Calls under way, each with what its answer means.
pub(super) type Calls = Vec<(u64, Promise)>;

const KINDS: u64 = 18;

/// An image that has to be fetched.
pub(super) fn to_be_pulled(scene: &Scene) -> Result<String> {
    let name = format!("{}/killed:1", scene.registry.host);
    scene.daemon.run(&["tag", images::DEBIAN, &name])?;
    scene.daemon.run(&["push", "--quiet", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    Ok(name)
}

/// What a client says that waits for no answer: a greeting, and some of what makes containers first.
pub(super) fn first() -> Vec<Value> {
    let about = json!({"name": "sandpen-tests", "version": "1"});
    let greeting = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about});
    let call = |id: u64, tool: &str, arguments: Value| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    vec![
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        call(2, "create_sandbox", json!({})),
        call(3, "create_sandbox", json!({"persist": true, "network": REACHED})),
        call(4, "run_code", json!({"language": "bash", "code": "sleep 60", "image": images::DEBIAN})),
    ]
}

/// Some of everything, in another order each time.
pub(super) fn begin(server: &mut Wire, random: &mut Random, kept: &Kept<'_>, round: u64) -> Result<Calls> {
    let (keeper, root) = (kept.keeper, kept.root);
    let doomed = server.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    let before = json!({"sandbox_id": doomed, "command": "echo first > file", "checkpoint": true});
    let checkpoint = server.good("run_command", &before)?["checkpoint"].take();
    let first = random.below(KINDS);
    let mut calls = Vec::new();
    for step in 0..KINDS {
        if random.below(2) == 0 {
            continue;
        }
        let (tool, arguments, promise): (&str, Value, Promise) = match (first + step) % KINDS {
            0 => ("create_sandbox", json!({}), Promise::Nothing),
            1 => ("create_sandbox", json!({"persist": true}), Promise::Persistent),
            2 => {
                ("run_code", json!({"language": "bash", "code": "sleep 60", "image": images::DEBIAN}), Promise::Nothing)
            }
            3 => ("run_command", json!({"command": "echo a; sleep 60"}), Promise::Nothing),
            4 => ("run_command", json!({"command": "sleep 60", "background": true}), Promise::Nothing),
            5 => ("run_command", json!({"command": "true", "image": kept.image}), Promise::Nothing),
            6 => {
                let name = SAVED[random.below(SAVED.len() as u64 - OF_ROOT) as usize];
                ("save_sandbox", json!({"sandbox_id": keeper, "name": name}), Promise::Image(name.to_owned()))
            }
            7 => ("fork_sandbox", json!({"sandbox_id": keeper}), Promise::Nothing),
            8 => ("stop_sandbox", json!({"sandbox_id": doomed}), Promise::Nothing),
            9 => {
                let digit = (round % 10).to_string();
                let file =
                    json!({"sandbox_id": keeper, "path": format!("big-{}", round % 2), "content": digit.repeat(LARGE)});
                ("write_file", file, Promise::Nothing)
            }
            10 => ("restore_sandbox", json!({"sandbox_id": doomed, "checkpoint": checkpoint}), Promise::Nothing),
            11 => {
                let code = json!({"language": "python", "code": "import small", "image": packages::IMAGE, "packages": ["small"]});
                ("run_code", code, Promise::Nothing)
            }
            12 => ("export_dockerfile", json!({"sandbox_id": keeper}), Promise::Nothing),
            13 => ("run_command", json!({"command": "sleep 60", "network": REACHED}), Promise::Nothing),
            14 => ("create_sandbox", json!({"persist": true, "network": REACHED}), Promise::Persistent),
            15 => {
                let name = SAVED[SAVED.len() - 1 - random.below(OF_ROOT) as usize];
                ("save_sandbox", json!({"sandbox_id": root, "name": name}), Promise::Image(name.to_owned()))
            }
            16 => ("fork_sandbox", json!({"sandbox_id": root}), Promise::Nothing),
            _ => {
                let (name, content) = (format!("round-{round}-more"), format!("more of {round}"));
                let file = json!({"sandbox_id": keeper, "path": name, "content": content});
                ("write_file", file, Promise::File { name, content })
            }
        };
        calls.push((server.call(tool, &arguments)?, promise));
    }
    Ok(calls)
}
