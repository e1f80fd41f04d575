//! `sandpen serve --profile cloudflare`: the one container that a user has, and how long it is kept.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::server::{MCP, Server, request};
use support::{World, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

const SESSION: &str = "mcp-session-id";

/// A session at one of the addresses that take messages.
struct Session<'a> {
    server: &'a Server,
    path: &'static str,
    id: String,
}

impl<'a> Session<'a> {
    fn begin(server: &'a Server, path: &'static str) -> Self {
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
        let answer = server.open("POST", path, MCP, &request(1, "initialize", params)).whole();
        Self { server, path, id: answer.header(SESSION).unwrap().to_owned() }
    }

    fn call(&self, tool: &str, arguments: Value) -> Value {
        let body = request(2, "tools/call", json!({ "name": tool, "arguments": arguments }));
        let answer = self.server.open("POST", self.path, &[MCP, &[(SESSION, &self.id)]].concat(), &body).whole();
        answer.messages().into_iter().find(|message| message["id"] == 2).unwrap()["result"].clone()
    }

    /// What a call says, or why it is refused.
    fn says(&self, tool: &str, arguments: Value) -> String {
        self.call(tool, arguments)["content"][0]["text"].as_str().unwrap().to_owned()
    }

    fn exec(&self, command: &str) -> String {
        self.says("container_exec", json!({ "args": { "args": command } }))
    }
}

#[test]
fn all_sessions_of_a_user_have_one_container() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &["--profile", "cloudflare"]);
    let sessions = ["/mcp", "/sse"].map(|path| Session::begin(&server, path));
    assert_ne!(sessions[0].id, sessions[1].id);
    for session in &sessions {
        assert_eq!(session.says("container_initialize", json!({})), "Created new container");
    }
    // Files of one, and processes too.
    assert_eq!(sessions[0].exec("echo shared > note"), "Process exited with code: 0");
    assert_eq!(sessions[1].exec("cat note"), "shared\nProcess exited with code: 0");
    let seen = sessions.each_ref().map(|session| session.exec("readlink /proc/self/ns/mnt /proc/self/ns/pid"));
    assert!(seen[0].contains("pid:[") && seen[0] == seen[1], "{seen:?}");
}

/// With seconds in place of its ten minutes, which a test of the settings looks at.
#[test]
fn a_container_is_kept_for_a_while_after_its_last_use() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &["--profile", "cloudflare", "--idle", "4s"]);
    let session = Session::begin(&server, "/mcp");
    session.says("container_initialize", json!({}));
    session.exec("echo x > note");
    // In use it goes on.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(6) {
        assert_eq!(session.exec("cat note"), "x\nProcess exited with code: 0");
        std::thread::sleep(Duration::from_millis(500));
    }
    let started = Instant::now();
    std::thread::sleep(Duration::from_secs(6));
    support::wait_until("it is gone", || session.says("container_ping", json!({})) != "pong!");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let told = session.exec("cat note");
    assert!(told.contains("no container is running, call container_initialize first"), "{told}");
    session.says("container_initialize", json!({}));
    let told = session.exec("cat note");
    assert!(told.ends_with("Process exited with code: 1"), "the files are there again: {told}");
}
