//! A client in another language, made to do what the task says: one JSON line to it, one from it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use sandpen_tests::program::Program;
use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};

/// How long one answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Hands {
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    process: Program,
}

/// What a client made of one call.
#[derive(Clone, Debug)]
pub struct Called {
    /// Absent when the call was cancelled.
    pub result: Option<Value>,
    /// The messages of the progress notifications that came.
    pub progress: Vec<String>,
}

impl Hands {
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let mut process = Program::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()), log)?;
        let stdin = process.child.stdin.take();
        let stdout = BufReader::new(process.child.stdout.take().ok_or("the client has no output")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(std::io::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { stdin, lines, process })
    }

    /// The revision that was agreed upon.
    pub fn version(&mut self) -> Result<String> {
        let about = self.ask(&json!({"do": "about"}))?;
        Ok(about["result"]["version"].as_str().unwrap_or_default().to_owned())
    }

    pub fn tools(&mut self) -> Result<Value> {
        Ok(self.ask(&json!({"do": "tools"}))?["result"]["tools"].take())
    }

    pub fn read(&mut self, uri: &str) -> Result<Value> {
        Ok(self.ask(&json!({"do": "read", "uri": uri}))?["result"]["contents"][0].take())
    }

    pub fn call(&mut self, name: &str, arguments: &Value) -> Result<Value> {
        let called = self.order(json!({"do": "call", "name": name, "arguments": arguments}))?;
        called.result.ok_or_else(|| Trouble(format!("{name} was cancelled, but nobody asked for it")))
    }

    pub fn call_with_progress(&mut self, name: &str, arguments: &Value) -> Result<Called> {
        self.order(json!({"do": "call", "name": name, "arguments": arguments, "progress": true}))
    }

    /// Cancelled when the first progress notification comes.
    pub fn call_and_cancel(&mut self, name: &str, arguments: &Value) -> Result<Called> {
        self.order(json!({"do": "call", "name": name, "arguments": arguments, "progress": true, "cancel": true}))
    }

    /// As a client ends: it closes its connection and goes.
    pub fn close(mut self) -> Result<()> {
        drop(self.stdin.take());
        let status = self.process.wait_within(Duration::from_secs(20))?;
        if status.success() { Ok(()) } else { Err(self.process.tell(&format!("the client ended with {status}"))) }
    }

    fn order(&mut self, order: Value) -> Result<Called> {
        let mut answer = self.ask(&order)?;
        let messages = answer["progress"].as_array().cloned().unwrap_or_default();
        let progress = messages.iter().map(|one| one["message"].as_str().unwrap_or_default().to_owned()).collect();
        Ok(Called { result: answer.get_mut("result").map(Value::take), progress })
    }

    fn ask(&mut self, order: &Value) -> Result<Value> {
        let stdin = self.stdin.as_mut().ok_or("the client is closed")?;
        if writeln!(stdin, "{order}").is_err() {
            return Err(self.process.tell("the client has ended"));
        }
        let line = self.lines.recv_timeout(PATIENCE);
        let line = line.map_err(|_| self.process.tell(&format!("the client does not answer {order}")))?;
        let answer: Value =
            serde_json::from_str(&line).map_err(|error| Trouble(format!("the client wrote {line:?}: {error}")))?;
        match answer.get("error") {
            Some(error) => Err(self.process.tell(&format!("{order}: {error}"))),
            None => Ok(answer),
        }
    }
}
