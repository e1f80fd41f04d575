//! `--audit-log` and `sandpen audit verify`: what was done, by whom, and whether that is still what was written.

mod support;

use serde_json::{Value, json};
use support::server::{MCP, Server, request};
use support::{World, sandboxes_work};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_callers_do_is_written_down_and_what_is_changed_is_seen() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let made = world.run(&["--json", "token", "create", "--owner", "alice"]).stdout;
    let made: Value = serde_json::from_str(&made).unwrap();
    let token = made["token"].as_str().unwrap();
    let trail = world.state_dir().join("audit.jsonl");
    let path = trail.to_str().unwrap();
    let mut server = Server::guarded(&world, &["--audit-log", path]);

    let second = world.run(&["serve", "--listen", "127.0.0.1:0", "--audit-log", path]);
    second.expect(1, "").says("another process writes to the audit trail");

    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let bearer = format!("Bearer {token}");
    let call = |tool: &str, arguments: Value, bearer: &str| {
        let body = request(7, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
        let headers = [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", tool),
            ("authorization", bearer),
        ];
        server.open("POST", "/mcp", &[MCP, &headers].concat(), &body).whole()
    };
    let arguments = json!({ "command": "echo s3cret-argument; exit 3" });
    assert_eq!(call("run_command", arguments, &bearer).status, 200);
    let missing = json!({ "command": "true", "sandbox_id": "sb-7k2m9x4bqhtw3ecd" });
    assert_eq!(call("run_command", missing, &bearer).status, 200);
    assert_eq!(call("run_command", json!({}), "Bearer wrong-one").status, 401);
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().0.success());

    let text = std::fs::read_to_string(&trail).unwrap();
    let written = lines(&text);
    let all = |event: &str| written.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    assert_eq!(written[0]["event"], "opened");
    assert_eq!(written[0]["number"], 1);
    let called = all("called");
    assert_eq!(called.len(), 2, "{text}");
    assert_eq!((&called[0]["owner"], &called[0]["tool"]), (&json!("alice"), &json!("run_command")));
    assert_eq!(called[0]["outcome"], "done", "a program that fails is no failure of the call");
    assert_eq!((&called[1]["sandbox"], &called[1]["outcome"]), (&json!("sb-7k2m9x4bqhtw3ecd"), &json!("failed")));
    let ended = all("exec_ended");
    assert_eq!((&ended[0]["owner"], &ended[0]["exit_code"]), (&json!("alice"), &json!(3)));
    assert_eq!(all("created")[0]["network"], "none");
    let turned_away = all("turned_away");
    assert_eq!((&turned_away[0]["why"], &turned_away[0]["source"]), (&json!("wrong_token"), &json!("127.0.0.1")));
    for secret in [token, "wrong-one", "s3cret-argument"] {
        assert!(!text.contains(secret), "{secret} is in the trail");
    }

    let whole = world.run(&["--json", "audit", "verify", path]).stdout;
    let whole: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(whole["lines"], written.len());
    let head = whole["head"].as_str().unwrap();
    world
        .run(&["audit", "verify", path, "--head", head])
        .expect(0, &format!("{} lines, whole\n{head}\n", written.len()));
    let cut = text.trim_end().rsplit_once('\n').unwrap().0.to_owned() + "\n";
    std::fs::write(&trail, cut).unwrap();
    world.run(&["audit", "verify", path, "--head", head]).expect(1, "").says("another last line");
    std::fs::write(&trail, text.replacen("alice", "malice", 1)).unwrap();
    world.run(&["audit", "verify", path]).expect(1, "").says("line ");
}
