//! A client that speaks to the real binary by lines and believes nothing: each line that it is sent must be JSON-RPC.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{World, processes_below};

/// Long enough for the slowest machine, short enough to notice a server that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The newest revision.
pub const MODERN: &str = "2026-07-28";

pub struct Client {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    /// What came while something else was waited for.
    pub notifications: Vec<Value>,
}

impl Client {
    pub fn start(world: &World, arguments: &[&str]) -> Self {
        Self::start_with(world, arguments, |_| {})
    }

    fn start_with(world: &World, arguments: &[&str], set_up: impl FnOnce(&mut Command)) -> Self {
        let mut command = world.command(&[&["mcp"], arguments].concat());
        set_up(&mut command);
        Self::by(command)
    }

    /// By a command that nothing was said to yet.
    pub fn by(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, stdin, lines, next_id: 1000, notifications: Vec::new() }
    }

    /// With the handshake done, at this revision.
    pub fn hello(world: &World, arguments: &[&str], version: &str) -> Self {
        Self::hello_with(world, arguments, version, |_| {})
    }

    /// The same in an environment of its own.
    pub fn hello_with(world: &World, arguments: &[&str], version: &str, set_up: impl FnOnce(&mut Command)) -> Self {
        let mut client = Self::start_with(world, arguments, set_up);
        let result = client.initialize(version);
        assert_eq!(result["protocolVersion"], version);
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    pub fn initialize(&mut self, version: &str) -> Value {
        let client = json!({ "name": "test", "version": "1" });
        self.ask("initialize", json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client }))
    }

    pub fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    pub fn send_text(&mut self, text: &str) {
        self.send_bytes(format!("{text}\n").as_bytes());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("the input is open");
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    /// The next message of any kind.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        self.next_within(PATIENCE).expect("the server does not answer")
    }

    /// `None` if nothing comes in time, or ever again.
    #[track_caller]
    pub fn next_within(&mut self, patience: Duration) -> Option<Value> {
        let line = match self.lines.recv_timeout(patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        };
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let parts = message.as_array().cloned().unwrap_or_else(|| vec![message.clone()]);
        assert!(parts.iter().all(|part| part["jsonrpc"] == "2.0"), "not JSON-RPC: {line}");
        Some(message)
    }

    /// The answer to the request with this id. Notifications that come before are kept.
    #[track_caller]
    pub fn answer(&mut self, id: &Value) -> Value {
        loop {
            let message = self.next();
            if message.get("id") == Some(id) {
                return message;
            }
            assert!(message.get("method").is_some(), "an answer that nobody waits for: {message}");
            self.notifications.push(message);
        }
    }

    pub fn begin(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = Value::from(self.next_id);
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        let answer = self.answer(&id);
        answer.get("result").unwrap_or_else(|| panic!("{method} was refused: {answer}")).clone()
    }

    /// The code of the error that a request is refused with.
    #[track_caller]
    pub fn refused(&mut self, method: &str, params: Value) -> i64 {
        let id = self.begin(method, params);
        let answer = self.answer(&id);
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method} was not refused: {answer}"))
    }

    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    #[track_caller]
    pub fn is_alive(&mut self) {
        assert_eq!(self.ask("ping", json!({})), json!({}));
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The exit code, and how long it took.
    #[track_caller]
    pub fn wait(&mut self) -> (Option<i32>, Duration) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), started.elapsed());
            }
            assert!(started.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Everything that this server started and that still runs.
    pub fn processes(&self) -> Vec<u32> {
        processes_below(self.child.id())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parameters as the newest revision wants them, with what the client can do.
pub fn modern(mut params: Value, capabilities: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    params
}
