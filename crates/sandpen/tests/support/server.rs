//! `sandpen serve` and a client that writes HTTP by hand, so that it can write it wrong.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{World, is_running, processes_below};

/// Long enough for the slowest machine, short enough to notice a server that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    child: Option<Child>,
    pub address: SocketAddr,
    /// All that it said on standard error.
    log: Arc<Mutex<Vec<u8>>>,
}

impl Server {
    pub fn start(world: &World, arguments: &[&str]) -> Self {
        Self::start_with(world, arguments, &[])
    }

    /// With these in its environment.
    pub fn start_with(world: &World, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::by(world, &[&["serve", "--listen", "127.0.0.1:0", "--no-auth"], arguments].concat(), variables)
    }

    /// One that asks who they are.
    pub fn guarded(world: &World, arguments: &[&str]) -> Self {
        Self::by(world, &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat(), &[])
    }

    /// By another command, which says where it listens in the same words.
    pub fn by(world: &World, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::of(world.command(arguments).envs(variables.iter().copied()))
    }

    /// Whatever is started, which says where it listens first.
    pub fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let log = Arc::new(Mutex::new(first.clone().into_bytes()));
        let kept = Arc::clone(&log);
        // What else it says must not fill the pipe.
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let _ = std::io::stderr().write_all(&line);
                kept.lock().unwrap().append(&mut line);
            }
        });
        let address = first.split("://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("no address in {first:?}")).parse().unwrap();
        Self { child: Some(child), address, log }
    }

    /// One that was started by the test, and listens here.
    pub fn at(child: Child, address: SocketAddr) -> Self {
        Self { child: Some(child), address, log: Arc::default() }
    }

    /// One that nobody has to end: another address, or a server of the test's own.
    pub fn known_at(address: SocketAddr) -> Self {
        Self { child: None, address, log: Arc::default() }
    }

    fn child(&self) -> &Child {
        self.child.as_ref().expect("it is the one that was started")
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// One request on a connection of its own; its answer as a stream that has not ended.
    pub fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if method == "POST" {
            head += &format!("content-length: {}\r\n", body.len());
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // A server that refuses early need not read the rest.
        let _ = stream.write_all(body);
        Answer::read_head(stream)
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.open(method, path, headers, b"").whole()
    }

    /// A body to `/mcp` with the headers that every client sends.
    pub fn post(&self, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.open("POST", "/mcp", &[MCP, headers].concat(), body)
    }

    pub fn hello(&self, version: &str) -> String {
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client });
        let hello = request(1, "initialize", params);
        let answer = self.post(&[], &hello).whole();
        assert_eq!(answer.status, 200, "{answer:?}");
        let id = answer.header("mcp-session-id").unwrap().to_owned();
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
        assert_eq!(self.post(&[("mcp-session-id", &id)], initialized.as_bytes()).status, 202);
        id
    }

    /// A call of 2026-07-28.
    pub fn call_modern(&self, tool: &str, arguments: Value) -> Answer {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": 1,
        });
        let body = request(7, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
        let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", tool)];
        self.post(&headers, &body)
    }

    /// How many of the processes below the server have this in their command line.
    pub fn running(&self, part: &str) -> usize {
        let has_part = |process: &u32| {
            let command_line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            is_running(*process) && String::from_utf8_lossy(&command_line).contains(part)
        };
        processes_below(self.child().id()).iter().filter(|process| has_part(process)).count()
    }

    pub fn process(&self) -> u32 {
        self.child().id()
    }

    pub fn processes(&self) -> Vec<u32> {
        processes_below(self.child().id())
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child()), signal).unwrap();
    }

    /// How it ended, and how long that took.
    #[track_caller]
    pub fn wait(&mut self) -> (ExitStatus, Duration) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.as_mut().expect("it was started").try_wait().unwrap() {
                return (status, started.elapsed());
            }
            assert!(started.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ends a server that a test has started by itself.
pub fn end(child: &mut Child) {
    kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    child.wait().unwrap();
}

pub const MCP: &[(&str, &str)] =
    &[("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

pub fn request(id: u64, method: &str, params: Value) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string().into_bytes()
}

/// An answer whose body is read as far as it is asked for.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
    stream: BufReader<TcpStream>,
}

impl Answer {
    #[track_caller]
    fn read_head(stream: TcpStream) -> Self {
        let mut stream = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("the server answers");
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let status = lines.first().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let headers = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Self { status: status.expect("a status line"), headers, body: String::new(), stream }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All of it that was read, but for the time and for a word that was sent.
    pub fn told(&self, sent: &str) -> String {
        let headers = self.headers.iter().filter(|(name, _)| name != "date");
        format!("{} {:?} {}", self.status, headers.collect::<Vec<_>>(), self.body).replace(sent, "…")
    }

    /// To its end.
    #[track_caller]
    pub fn whole(mut self) -> Self {
        while self.more() {}
        self
    }

    /// As far as this.
    #[track_caller]
    pub fn until(&mut self, part: &str) {
        while !self.body.contains(part) {
            assert!(self.more(), "the answer ended before {part:?}: {}", self.body);
        }
    }

    /// The events so far that are messages.
    pub fn messages(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The next piece; `false` when there is none.
    #[track_caller]
    pub fn more(&mut self) -> bool {
        if let Some(length) = self.header("content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            if !self.body.is_empty() || body.is_empty() {
                return false;
            }
            self.stream.read_exact(&mut body).unwrap();
            self.body = String::from_utf8(body).unwrap();
            return true;
        }
        if self.header("transfer-encoding").is_none() {
            return false;
        }
        let mut size = String::new();
        self.stream.read_line(&mut size).unwrap();
        let Ok(size) = usize::from_str_radix(size.trim_end(), 16) else { return false };
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        self.body += std::str::from_utf8(&chunk[..size]).unwrap();
        size > 0
    }
}
