//! A client with nothing between it and the server: lines of JSON, as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::daemon::Given;
use crate::program::{Program, built};
use crate::{Result, Trouble, processes};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long one answer may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Wire {
    stdin: Option<ChildStdin>,
    incoming: Receiver<std::result::Result<Value, String>>,
    gate: Arc<Mutex<()>>,
    program: Program,
    place: TempDir,
    last: u64,
    answers: BTreeMap<u64, Value>,
    cancelled: BTreeSet<u64>,
    /// Replies to requests that were cancelled.
    pub late: Vec<Value>,
    /// Progress notifications that came.
    pub progress: usize,
}

impl Wire {
    /// On the engine that the environment names.
    pub fn start() -> Result<Self> {
        let place = tempfile::Builder::new().prefix("sandpen-mcp-").tempdir()?;
        let mut command = Command::new(built("sandpen")?);
        command.arg("--state-dir").arg(place.path().join("state")).arg("mcp");
        if let Some(daemon) = Given::of_environment()? {
            // For code in a language it would look for the image that is published.
            command.envs(daemon.variables()).env("SANDPEN_IMAGE", &daemon.image);
        }
        Self::by(&mut command, place)
    }

    /// With a command that speaks MCP on its streams. What it logs is written to `stderr` in `place`.
    pub fn by(command: &mut Command, place: TempDir) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Program::start(command, &place.path().join("stderr"))?;
        let stdin = program.child.stdin.take();
        let stdout = BufReader::new(program.child.stdout.take().ok_or("the server has no output")?);
        let (sender, incoming) = mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let entrance = gate.clone();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(std::io::Result::ok) {
                drop(entrance.lock().unwrap_or_else(PoisonError::into_inner));
                let message = serde_json::from_str(&line).map_err(|error| format!("{error} in {line:?}"));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut wire = Self {
            stdin,
            incoming,
            gate,
            program,
            place,
            last: 0,
            answers: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            late: Vec::new(),
            progress: 0,
        };
        wire.greet()?;
        Ok(wire)
    }

    fn greet(&mut self) -> Result<()> {
        let about = json!({"name": "sandpen-tests", "version": "1"});
        let parameters = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about});
        let id = self.request("initialize", &parameters)?;
        self.answer(id)?;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    }

    pub fn send(&mut self, message: &Value) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or("stdin is closed")?;
        stdin
            .write_all(format!("{message}\n").as_bytes())
            .map_err(|error| self.program.tell(&format!("the server does not take a message: {error}")))
    }

    /// Sends a request and answers with its id.
    pub fn request(&mut self, method: &str, parameters: &Value) -> Result<u64> {
        self.last += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": parameters}))?;
        Ok(self.last)
    }

    pub fn call(&mut self, tool: &str, arguments: &Value) -> Result<u64> {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// A call that wants to be told what goes on.
    pub fn call_watched(&mut self, tool: &str, arguments: &Value) -> Result<u64> {
        let token = self.last + 1;
        let parameters = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": token}});
        self.request("tools/call", &parameters)
    }

    pub fn cancel(&mut self, id: u64) -> Result<()> {
        self.cancelled.insert(id);
        let parameters = json!({"requestId": id, "reason": "no longer wanted"});
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": parameters}))
    }

    /// The result of a request, or its error as trouble.
    pub fn answer(&mut self, id: u64) -> Result<Value> {
        let mut answer = self.reply(id, PATIENCE)?;
        match answer.get("error") {
            Some(error) => Err(format!("request {id}: {error}").into()),
            None => Ok(answer["result"].take()),
        }
    }

    /// What comes back for a request, an error too.
    pub fn reply(&mut self, id: u64, patience: Duration) -> Result<Value> {
        let started = Instant::now();
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return Ok(answer);
            }
            let left = patience.saturating_sub(started.elapsed());
            if !self.receive(left)? {
                return Err(self.program.tell(&format!("request {id} has no answer")));
            }
        }
    }

    /// The structured content of a call that must not be refused.
    pub fn good(&mut self, tool: &str, arguments: &Value) -> Result<Value> {
        let id = self.call(tool, arguments)?;
        let mut result = self.answer(id)?;
        if result["isError"] == true {
            return Err(format!("{tool} was refused: {result}").into());
        }
        Ok(result["structuredContent"].take())
    }

    /// Whatever comes within `time`, sorted away.
    pub fn listen(&mut self, time: Duration) -> Result<()> {
        let started = Instant::now();
        while self.receive(time.saturating_sub(started.elapsed()))? {}
        Ok(())
    }

    /// Every answer that had come before a server died.
    pub fn answers_of_the_dead(&mut self) -> BTreeMap<u64, Value> {
        // It ends when the output does, which tells nothing new.
        while let Ok(true) = self.receive(PATIENCE) {}
        std::mem::take(&mut self.answers)
    }

    /// As long as its lock is held, nothing more than a pipe and a line is read.
    pub fn gate(&self) -> Arc<Mutex<()>> {
        self.gate.clone()
    }

    /// One message, if one comes in time.
    fn receive(&mut self, time: Duration) -> Result<bool> {
        let message = match self.incoming.recv_timeout(time) {
            Ok(message) => message.map_err(|what| Trouble(format!("stdout carries something else: {what}")))?,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                let ended = self.program.child.try_wait();
                return Err(self.program.tell(&format!("the server closed its output: {ended:?}")));
            }
        };
        if let Some(id) = message["id"].as_u64().filter(|_| message.get("method").is_none()) {
            if self.cancelled.contains(&id) {
                self.late.push(message);
            } else if self.answers.insert(id, message).is_some() {
                return Err(format!("request {id} was answered twice").into());
            }
        } else if message["method"] == "notifications/progress" {
            self.progress += 1;
        }
        Ok(true)
    }

    pub fn close(&mut self) {
        drop(self.stdin.take());
    }

    pub fn end_within(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.program.wait_within(limit)
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        self.program.log()
    }

    pub fn pid(&self) -> u32 {
        self.program.child.id()
    }

    /// The directory that the server was given.
    pub fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// Everything below the server, dead or alive.
    pub fn descendants(&self) -> Vec<processes::Process> {
        processes::descendants(self.program.child.id())
    }

    /// From here on [`Wire::peak_kib`] counts anew.
    pub fn forget_peak(&self) -> Result<()> {
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.program.child.id()), "5")?)
    }

    /// The most memory that the server has had resident.
    pub fn peak_kib(&self) -> Result<u64> {
        let server = processes::Process::read(self.program.child.id()).ok_or("the server is gone")?;
        let text = server.status("VmHWM");
        let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
        number.ok_or_else(|| Trouble(format!("no peak in {text:?}")))
    }
}
