//! Somebody with a token, who calls tools over HTTP.

use serde_json::{Value, json};

use super::World;
use super::server::{Answer, Server, request};

pub struct Caller {
    pub token: String,
    header: String,
}

impl Caller {
    /// With a new token, made with these arguments.
    pub fn new(world: &World, arguments: &[&str]) -> Self {
        let made = world.run(&[&["--json", "token", "create"], arguments].concat());
        let made: Value = serde_json::from_str(&made.stdout).unwrap();
        let token = made["token"].as_str().unwrap().to_owned();
        Self { header: format!("Bearer {token}"), token }
    }

    pub fn shown(&self) -> (&str, &str) {
        ("authorization", &self.header)
    }

    /// A call of 2026-07-28, which needs no session, as it was answered.
    pub fn send(&self, server: &Server, tool: &str, arguments: Value) -> Answer {
        self.send_with(server, tool, arguments, &[], json!({}))
    }

    /// The same with more headers, and more that is said about the request.
    pub fn send_with(
        &self,
        server: &Server,
        tool: &str,
        arguments: Value,
        headers: &[(&str, &str)],
        mut meta: Value,
    ) -> Answer {
        meta["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let body = request(7, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
        let usual =
            [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", tool), self.shown()];
        server.post(&[&usual, headers].concat(), &body).whole()
    }

    /// What the tool answered.
    #[track_caller]
    pub fn call(&self, server: &Server, tool: &str, arguments: Value) -> Value {
        result(&self.send(server, tool, arguments))
    }

    /// A session of 2025-11-25.
    #[track_caller]
    pub fn session<'a>(&'a self, server: &'a Server) -> Session<'a> {
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        let begun = server.post(&[self.shown()], &request(1, "initialize", params)).whole();
        assert_eq!(begun.status, 200, "{begun:?}");
        let session = Session { caller: self, server, id: begun.header("mcp-session-id").unwrap().to_owned() };
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
        assert_eq!(session.post(initialized.as_bytes()).status, 202);
        session
    }
}

pub struct Session<'a> {
    caller: &'a Caller,
    server: &'a Server,
    id: String,
}

impl Session<'_> {
    fn post(&self, body: &[u8]) -> Answer {
        let headers = [("mcp-session-id", self.id.as_str()), ("mcp-protocol-version", "2025-11-25")];
        self.server.post(&[&headers, &[self.caller.shown()][..]].concat(), body).whole()
    }

    #[track_caller]
    pub fn call(&self, tool: &str, arguments: Value) -> Value {
        result(&self.post(&request(7, "tools/call", json!({ "name": tool, "arguments": arguments }))))
    }
}

#[track_caller]
pub fn result(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let message = answer.messages().into_iter().find(|message| message["id"] == 7).unwrap_or_else(|| answer.json());
    message["result"].clone()
}
