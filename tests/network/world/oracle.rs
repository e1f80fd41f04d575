//! How the checks, which run as the host, ask the outside: a socket in a directory that both see.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::namespace::Namespace;
use super::visits::{Visit, VisitKind, Visits};

const SOCKET: &str = "oracle";

/// Answers until the world ends.
pub fn serve(listener: UnixListener, visits: Visits, outside: Namespace) {
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(stream, visits.clone(), outside.clone()));
        }
    });
}

pub fn listen(directory: &Path) -> Result<UnixListener> {
    let path = directory.join(SOCKET);
    let listener = UnixListener::bind(&path)?;
    // The checks may run as an ordinary user.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    Ok(listener)
}

async fn converse(stream: UnixStream, visits: Visits, outside: Namespace) {
    let (reader, mut writer) = stream.into_split();
    let mut lines = tokio::io::BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match line.split_once(' ') {
            None => Value::Array(visits.take().iter().map(Visit::to_json).collect()),
            Some((_, address)) => json!(address.parse().is_ok_and(|address| dial(&outside, address))),
        };
        if writer.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

fn dial(outside: &Namespace, address: SocketAddr) -> bool {
    let connect = move || std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop);
    outside.enter(connect).is_ok()
}

/// The asking end.
#[derive(Clone, Debug)]
pub struct Oracle {
    directory: PathBuf,
}

impl Oracle {
    pub fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Who came since the last time this was asked.
    pub fn visits(&self) -> Result<Vec<Visit>> {
        // What was sent before a probe ended may still be on its way to whoever writes it down.
        std::thread::sleep(Duration::from_millis(50));
        let answer = self.ask("visits")?;
        let visits = answer.as_array().and_then(|all| all.iter().map(Visit::from_json).collect());
        visits.ok_or_else(|| Trouble(format!("the oracle says {answer}")))
    }

    /// Names that the host's resolver was asked for.
    pub fn questions(visits: &[Visit]) -> Vec<String> {
        let asked = visits.iter().filter(|visit| visit.kind == VisitKind::Question);
        asked.map(|visit| visit.text.clone()).collect()
    }

    /// Whether somebody outside can connect to this address.
    pub fn can_dial(&self, address: SocketAddr) -> Result<bool> {
        Ok(self.ask(&format!("dial {address}"))? == true)
    }

    fn ask(&self, what: &str) -> Result<Value> {
        let mut connection = Connection::connect(self.directory.join(SOCKET))?;
        connection.set_read_timeout(Some(Duration::from_secs(20)))?;
        writeln!(connection, "{what}")?;
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|error| Trouble(format!("the oracle says {line:?}: {error}")))
    }
}
