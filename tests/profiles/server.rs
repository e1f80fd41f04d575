//! The product as one of the older servers, and a client that says no more than it must.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandpen_tests::daemon::Given;
use sandpen_tests::program::{Program, built, run};
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An answer may take a sandbox of a busy daemon, and the time limit of a run.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Stdio,
    Http,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdio => "stdio",
            Self::Http => "HTTP",
        })
    }
}

pub(crate) enum Server {
    Stdio(Box<Wire>),
    Http(Http),
}

impl Server {
    pub fn start(
        transport: Transport,
        profile: &str,
        place: TempDir,
        flags: &[String],
        variables: &BTreeMap<String, String>,
        daemon: Option<&Given>,
    ) -> Result<Self> {
        let mut command = product(place.path(), daemon)?;
        command.envs(variables);
        match transport {
            Transport::Stdio => {
                command.args(["mcp", "--profile", profile]);
                opened(&mut command, place.path()).args(flags);
                Ok(Self::Stdio(Box::new(Wire::by(&mut command, place)?)))
            }
            Transport::Http => {
                // Beside all others, with what a server for this one alone would grant its clients.
                command.args(["--json", "serve", "--no-auth", "--listen", "127.0.0.1:0"]);
                command.args(["--max-network", "internet", "--allow-image", "*", "--allow-image", "host"]);
                opened(&mut command, place.path()).args(flags);
                let token = variables.get("MCP_API_TOKEN").cloned();
                Ok(Self::Http(Http::start(&mut command, profile, token, place)?))
            }
        }
    }

    /// The whole reply, a refusal too.
    pub fn ask(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        match self {
            Self::Stdio(wire) => {
                let id = wire.request(method, parameters)?;
                wire.reply(id, PATIENCE)
            }
            Self::Http(http) => http.ask(method, parameters),
        }
    }

    pub fn tell(&self, what: &str) -> Trouble {
        match self {
            Self::Stdio(wire) => Trouble(format!("{what}; its log:\n{}", wire.log())),
            Self::Http(http) => http.program.tell(what),
        }
    }

    /// Nothing that it keeps may hold it up.
    pub fn end(self) -> Result<()> {
        match self {
            Self::Stdio(mut wire) => {
                wire.close();
                wire.end_within(PATIENCE).map(drop)
            }
            Self::Http(mut http) => {
                http.program.terminate();
                http.program.wait_within(PATIENCE).map(drop)
            }
        }
    }
}

/// The program, with nothing of whoever runs the tests, and its state in this place.
pub(crate) fn product(place: &Path, daemon: Option<&Given>) -> Result<Command> {
    let mut command = Command::new(built("sandpen")?);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", place);
    if let Some(daemon) = daemon {
        command.envs(daemon.variables());
    }
    command.current_dir(place).arg("--state-dir").arg(place.join("state"));
    Ok(command)
}

/// What it says, once it has ended well.
pub(crate) fn told(place: &Path, daemon: Option<&Given>, words: &[&str]) -> Result<String> {
    Ok(run(product(place, daemon)?.args(words), place, PATIENCE)?.succeeded()?.stdout)
}

fn opened<'a>(command: &'a mut Command, place: &Path) -> &'a mut Command {
    command.arg("--allow-path").arg(place.join("host"))
}

/// One connection for each message, without anything that a client could leave out.
pub(crate) struct Http {
    program: Program,
    address: String,
    path: String,
    token: Option<String>,
    session: Option<String>,
    last: u64,
    _place: TempDir,
}

impl Http {
    fn start(command: &mut Command, profile: &str, token: Option<String>, place: TempDir) -> Result<Self> {
        let mut program = Program::start(command.stdout(Stdio::piped()), &place.path().join("stderr"))?;
        let stdout = program.child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let told: Value = serde_json::from_str(&line).map_err(|_| program.tell("it does not say where it is"))?;
        let url = told["url"].as_str().ok_or_else(|| Trouble(format!("it says {told}")))?;
        let address = url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
        let path = format!("/profiles/{profile}/mcp");
        let mut http = Self { program, address, path, token, session: None, last: 0, _place: place };
        let about = json!({"name": "sandpen-tests", "version": "1"});
        let parameters = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about});
        http.ask("initialize", &parameters)?;
        http.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(http)
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.last += 1;
        let reply = self.post(&json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": parameters}))?;
        reply.ok_or_else(|| self.program.tell(&format!("{method} has no answer")))
    }

    /// In the version of HTTP whose answers end with the connection, so that nothing has to be put together.
    fn post(&mut self, message: &Value) -> Result<Option<Value>> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = message.to_string();
        let mut head = format!(
            "POST {} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Accept: application/json, text/event-stream\r\n",
            self.path,
            self.address,
            body.len()
        );
        head.extend(self.session.iter().map(|session| format!("Mcp-Session-Id: {session}\r\n")));
        head.extend(self.token.iter().map(|token| format!("Authorization: Bearer {token}\r\n")));
        stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| Trouble(format!("no answer: {answer}")))?;
        let id = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
        });
        self.session = id.or(self.session.take());
        // Alone, or as events on a stream.
        let data = body.lines().filter_map(|line| line.strip_prefix("data:"));
        let messages = data.chain([body]).filter_map(|text| serde_json::from_str::<Value>(text).ok());
        Ok(messages.into_iter().find(|message| message.get("id").is_some() && message.get("method").is_none()))
    }
}
