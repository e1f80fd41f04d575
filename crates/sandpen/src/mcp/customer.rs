//! A client of our own server over stdio, as small as can be: for measuring what a client sees.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use sandbox::{Error, Result};
use serde_json::{Value, json};

/// A server process and the talk with it. Dropped, it closes the server's input, which ends it.
#[derive(Debug)]
pub struct Customer {
    talk: Mutex<Talk>,
    server: Child,
}

#[derive(Debug)]
struct Talk {
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last_id: u64,
}

impl Customer {
    /// Starts the server and agrees with it on a revision.
    pub fn begin(server: &mut Command) -> Result<Self> {
        let started = server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut server = started.map_err(|cause| Error::unavailable("the server does not start").with_cause(cause))?;
        let (Some(input), Some(output)) = (server.stdin.take(), server.stdout.take()) else {
            return Err(Error::internal("the server has no pipes"));
        };
        let talk = Talk { input: Some(input), output: BufReader::new(output), last_id: 0 };
        let customer = Self { talk: Mutex::new(talk), server };
        customer.ask(
            "initialize",
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "sandpen bench", "version": env!("CARGO_PKG_VERSION") },
            }),
        )?;
        customer.tell(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(customer)
    }

    /// One call of a tool, from the first byte sent to the answer read: its structured part.
    pub fn call(&self, tool: &str, arguments: Value) -> Result<Value> {
        let result = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))?;
        if result["isError"] == json!(true) {
            return Err(Error::unavailable(result["content"][0]["text"].as_str().unwrap_or_default()));
        }
        Ok(result["structuredContent"].clone())
    }

    fn ask(&self, method: &str, params: Value) -> Result<Value> {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        talk.last_id += 1;
        let id = talk.last_id;
        talk.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let message = talk.receive()?;
            if message["id"] == json!(id) {
                return match message.get("error") {
                    None => Ok(message["result"].clone()),
                    Some(error) => Err(Error::unavailable(error["message"].as_str().unwrap_or_default())),
                };
            }
        }
    }

    fn tell(&self, message: &Value) -> Result<()> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner).send(message)
    }
}

impl Talk {
    fn send(&mut self, message: &Value) -> Result<()> {
        let line = format!("{message}\n");
        self.input.as_mut().ok_or_else(gone)?.write_all(line.as_bytes()).map_err(|_| gone())
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => serde_json::from_str(&line)
                .map_err(|cause| Error::internal("the server does not speak JSON").with_cause(cause)),
            Ok(0) | Err(_) => Err(gone()),
        }
    }
}

fn gone() -> Error {
    Error::unavailable("the server has ended").with_hint("sandpen mcp --log debug tells why")
}

impl Drop for Customer {
    fn drop(&mut self) {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner).input = None;
        let _ = self.server.wait();
    }
}
