//! A client that writes HTTP by hand, in bytes, so that it can write it wrong and stop in the middle.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Long enough for the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// False when the answer broke off.
    pub is_whole: bool,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// What it is like, without what differs from one moment to the next.
    pub fn shape(&self) -> (u16, Vec<String>, Vec<u8>) {
        let mut names: Vec<_> = self
            .headers
            .iter()
            .filter(|(name, _)| name != "date")
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        names.sort();
        (self.status, names, self.body.clone())
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self}");
        self
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = String::from_utf8_lossy(&self.body[..self.body.len().min(2000)]);
        write!(f, "{} {:?} {body}", self.status, self.headers)
    }
}

pub type Headers<'a> = &'a [(&'a str, &'a str)];

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The head of a request alone.
pub fn begin(address: SocketAddr, method: &str, path: &str, headers: Headers<'_>) -> TcpStream {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut stream = connect(address);
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    stream
}

/// A whole request with a body of known length, and its answer.
#[track_caller]
pub fn send(address: SocketAddr, method: &str, path: &str, headers: Headers<'_>, body: &[u8]) -> Reply {
    let length = body.len().to_string();
    let has_body = !matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE");
    let length: Headers<'_> = if has_body { &[("content-length", &length)] } else { &[] };
    let mut stream = begin(address, method, path, &[headers, length].concat());
    // A server that refuses early need not read the rest.
    let _ = stream.write_all(body);
    finish(stream, method == "HEAD")
}

/// The answer to what was sent.
#[track_caller]
pub fn finish(mut stream: TcpStream, is_head: bool) -> Reply {
    let mut bytes = Vec::new();
    let broke = stream.read_to_end(&mut bytes).is_err();
    let mut reply = read(&bytes, is_head).unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
    reply.is_whole &= !broke || reply.header("content-length").is_some();
    reply
}

fn read(bytes: &[u8], is_head: bool) -> Option<Reply> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut rest = &bytes[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    if status == 100 {
        return read(rest, is_head);
    }
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut reply = Reply { status, headers, body: Vec::new(), is_whole: true };
    if reply.header("transfer-encoding") == Some("chunked") {
        loop {
            let Some(line) = rest.windows(2).position(|window| window == b"\r\n") else {
                reply.is_whole = false;
                break;
            };
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?, 16).ok()?;
            rest = &rest[line + 2..];
            if size == 0 {
                break;
            }
            if rest.len() < size + 2 {
                reply.body.extend_from_slice(rest);
                reply.is_whole = false;
                break;
            }
            reply.body.extend_from_slice(&rest[..size]);
            rest = &rest[size + 2..];
        }
    } else {
        let length = reply.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(rest.len());
        reply.is_whole = is_head || rest.len() == length;
        reply.body = rest[..length.min(rest.len())].to_vec();
    }
    Some(reply)
}

/// Escaped as an address has it.
pub fn escaped(name: &[u8]) -> String {
    name.iter().map(|byte| format!("%{byte:02X}")).collect()
}
