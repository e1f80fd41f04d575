//! A client over HTTP that keeps its connection, as small as can be.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sandbox::{Error, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

pub struct Client {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Client {
    pub async fn connect(address: SocketAddr, token: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\n"
        );
        Ok(Self { stream: BufReader::new(stream), head })
    }

    /// One call, from the first byte sent to the last one read, and what the tool answered.
    pub async fn timed(&mut self, tool: &str, arguments: &Value) -> Result<(Duration, Value)> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let request = format!("{}mcp-name: {tool}\r\ncontent-length: {}\r\n\r\n{body}", self.head, body.len());
        let started = Instant::now();
        self.stream.get_mut().write_all(request.as_bytes()).await.map_err(lost)?;
        let answer = self.answer().await?;
        let took = started.elapsed();
        let text = answer.lines().filter_map(|line| line.strip_prefix("data: ")).find(|data| !data.is_empty());
        let message: Value = serde_json::from_str(text.unwrap_or(&answer)).unwrap_or_default();
        match &message["result"] {
            Value::Object(result) if result.get("isError") != Some(&json!(true)) => {
                Ok((took, message["result"].clone()))
            }
            _ => Err(Error::unavailable("a call was not answered well").with_cause(answer)),
        }
    }

    /// How long both took together.
    pub async fn make_and_stop(&mut self) -> Result<Duration> {
        let (made, result) = self.timed("create_sandbox", &json!({})).await?;
        let id = result["structuredContent"]["sandbox_id"].clone();
        let (stopped, _) = self.timed("stop_sandbox", &json!({ "sandbox_id": id })).await?;
        Ok(made + stopped)
    }

    async fn answer(&mut self) -> Result<String> {
        let (mut length, mut line) = (None, String::new());
        loop {
            line.clear();
            if self.stream.read_line(&mut line).await.map_err(lost)? == 0 {
                return Err(Error::unavailable("the server has closed the connection"));
            }
            match line.trim_end() {
                "" => break,
                header => {
                    if let Some((name, value)) = header.split_once(": ")
                        && name.eq_ignore_ascii_case("content-length")
                    {
                        length = value.parse().ok();
                    }
                }
            }
        }
        let mut body = Vec::new();
        match length {
            Some(length) => {
                body.resize(length, 0);
                self.stream.read_exact(&mut body).await.map_err(lost)?;
            }
            None => self.pieces(&mut body).await?,
        }
        String::from_utf8(body).map_err(|_| Error::unavailable("an answer is not text"))
    }

    async fn pieces(&mut self, body: &mut Vec<u8>) -> Result<()> {
        loop {
            let mut size = String::new();
            self.stream.read_line(&mut size).await.map_err(lost)?;
            let size = usize::from_str_radix(size.trim_end(), 16)
                .map_err(|_| Error::unavailable("an answer is not in pieces as it must be"))?;
            let start = body.len();
            body.resize(start + size + 2, 0);
            self.stream.read_exact(&mut body[start..]).await.map_err(lost)?;
            body.truncate(start + size);
            if size == 0 {
                return Ok(());
            }
        }
    }
}

/// Says this, and then a byte each second, until it is given up.
pub async fn trickle(mut stream: TcpStream, begin: &[u8]) -> std::io::Result<()> {
    stream.write_all(begin).await?;
    let mut byte = [0];
    loop {
        let given_up = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut byte)).await;
        match given_up {
            Ok(Ok(0) | Err(_)) => return Ok(()),
            Ok(Ok(_)) => {}
            // Silent ones stay silent.
            Err(_) if begin.is_empty() => {}
            Err(_) => stream.write_all(b"x").await?,
        }
    }
}

fn lost(cause: std::io::Error) -> Error {
    Error::unavailable("the connection to the server is lost").with_cause(cause)
}
