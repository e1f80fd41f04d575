//! What a preview costs: a large download from a server in a sandbox, beside the same server on the host's own loopback.
//!
//! Both ends are the same two programs; what differs is the sandbox and the way to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox::{Error, ExecRequest, GuestPort, Limits, Owner, Result, SandboxId, SandboxService, SandboxSpec};
use serde::Serialize;
use tokio::io::AsyncBufReadExt;
use tools::Previews as _;

use super::report::Skipped;
use crate::http::drain::Drain;
use crate::previews::{Place, Previews};
use crate::wiring::Outlet;

pub const NAMES: [&str; 1] = ["preview-download"];

const BYTES: u64 = 1 << 30;
const ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers each connection with as many bytes, and says first on which port.
const SERVER: &str = r#"
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
piece = bytes(1 << 18)
while True:
    client, _ = listener.accept()
    with client:
        # One who only looked whether we are there asks nothing.
        if not client.recv(65536):
            continue
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (1 << 30))
        for _ in range((1 << 30) // len(piece)):
            client.sendall(piece)
"#;

#[derive(Debug, Default, Serialize)]
pub struct Figures {
    pub preview_bytes_per_second: Option<f64>,
    pub preview_times_loopback: Option<f64>,
}

pub async fn measure(
    service: &SandboxService,
    outlet: &Outlet,
    wanted: impl Fn(&str) -> bool,
) -> Result<(Figures, Vec<Skipped>)> {
    let [name] = NAMES;
    if !wanted(name) {
        return Ok((Figures::default(), Vec::new()));
    }
    let owner = Owner::local();
    let limits = Limits { cpu_millis: 2000, ..Limits::default() };
    let id = service.create(&owner, SandboxSpec { limits, ..SandboxSpec::new(owner.clone()) }).await?.id;
    let measured = compare(service, outlet, &owner, &id).await;
    service.stop(&owner, &id).await?;
    match measured {
        Ok(figures) => Ok((figures, Vec::new())),
        Err(error) => Ok((Figures::default(), vec![Skipped::new(name, &error)])),
    }
}

async fn compare(service: &SandboxService, outlet: &Outlet, owner: &Owner, id: &SandboxId) -> Result<Figures> {
    let mut bare = Command::new("python3")
        .args(["-c", SERVER])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| Error::not_found("python3 is not installed").with_cause(cause))?;
    let compared = compare_with(&mut bare, service, outlet, owner, id).await;
    // It is ours, and has nothing to lose.
    let _ = bare.kill();
    let _ = bare.wait();
    compared
}

async fn compare_with(
    bare: &mut std::process::Child,
    service: &SandboxService,
    outlet: &Outlet,
    owner: &Owner,
    id: &SandboxId,
) -> Result<Figures> {
    let mut line = String::new();
    if let Some(stdout) = bare.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(broken)?;
    }
    let direct = SocketAddr::from((Ipv4Addr::LOCALHOST, port(&line)?.number()));
    let request = ExecRequest::new(["python3", "-c", SERVER], PATIENCE)?;
    let inside = service.exec(owner, id, request).await?;
    let mut line = String::new();
    tokio::io::BufReader::new(inside.stdout).read_line(&mut line).await.map_err(broken)?;
    let previews = Arc::new(Previews::new(service.clone(), Arc::clone(&outlet.gateway), Place::Here, Drain::default()));
    let url = previews.open(owner, id, port(&line)?, None).await?.url;
    let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let shown = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let shown = SocketAddr::from((Ipv4Addr::LOCALHOST, shown.ok_or_else(|| Error::internal("a preview has no port"))?));
    let (mut bare, mut through) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(download(direct, "localhost".to_owned()).await?);
        through.push(download(shown, host.clone()).await?);
    }
    drop(inside.control);
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (bare, through) = (median(&mut bare), median(&mut through));
    Ok(Figures { preview_bytes_per_second: Some(BYTES as f64 / through), preview_times_loopback: Some(bare / through) })
}

fn port(line: &str) -> Result<GuestPort> {
    line.trim().parse().map_err(|_| Error::unavailable("the server that is downloaded from does not start"))
}

/// Seconds until all of it is there. On a thread of its own, as another program would be.
async fn download(from: SocketAddr, host: String) -> Result<f64> {
    let downloading = tokio::task::spawn_blocking(move || -> std::io::Result<(u64, f64)> {
        let started = Instant::now();
        let mut stream = TcpStream::connect(from)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())?;
        let (mut piece, mut bytes) = (vec![0; 256 << 10], 0);
        loop {
            match stream.read(&mut piece)? {
                0 => return Ok((bytes, started.elapsed().as_secs_f64())),
                count => bytes += count as u64,
            }
        }
    });
    let (bytes, seconds) = downloading.await.map_err(|_| Error::internal("a download panicked"))?.map_err(broken)?;
    if bytes < BYTES {
        return Err(Error::unavailable(format!("a download ended after {bytes} bytes")));
    }
    Ok(seconds)
}

fn broken(cause: std::io::Error) -> Error {
    Error::unavailable("the server that is downloaded from does not answer").with_cause(cause)
}
