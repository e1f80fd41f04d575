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
use super::search::{self, Needles};
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
            Some(("dial", address)) => json!(address.parse().is_ok_and(|address| dial(&outside, address))),
            Some(("search", request)) => tokio::task::block_in_place(|| search(request)),
            Some(_) | None => Value::Array(visits.take().iter().map(Visit::to_json).collect()),
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

fn search(request: &str) -> Value {
    let request: Value = serde_json::from_str(request).unwrap_or_default();
    let needles = Needles::of(request["value"].as_str().unwrap_or_default());
    let numbers = request["processes"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    let pids: Vec<u32> = numbers.filter_map(|pid| pid.try_into().ok()).collect();
    let paths = |key: &str| -> Vec<PathBuf> {
        request[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(PathBuf::from).collect()
    };
    let mut found = search::in_processes(&pids, &needles);
    for directory in paths("directories") {
        search::in_directory(&directory, &paths("except"), &needles, &mut found);
    }
    json!({"places": found.places, "bytes": found.bytes, "processes": found.processes})
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

    /// Where a value is found in the memory, the environment, the arguments and the files of these processes, and below
    /// these directories. `except` are the files that may have it.
    pub fn search(&self, value: &str, pids: &[u32], directories: &[&Path], except: &[&Path]) -> Result<Vec<String>> {
        let request = json!({"value": value, "processes": pids, "directories": directories, "except": except});
        let answer = self.ask(&format!("search {request}"))?;
        let places = answer["places"].as_array().ok_or("the search says nothing")?;
        if answer["processes"].as_u64() < Some(pids.len() as u64) {
            return Err(
                format!("the memory of only {} of {} processes was read", answer["processes"], pids.len()).into()
            );
        }
        Ok(places.iter().filter_map(|place| place.as_str().map(str::to_owned)).collect())
    }

    fn ask(&self, what: &str) -> Result<Value> {
        let mut connection = Connection::connect(self.directory.join(SOCKET))?;
        connection.set_read_timeout(Some(Duration::from_secs(60)))?;
        writeln!(connection, "{what}")?;
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|error| Trouble(format!("the oracle says {line:?}: {error}")))
    }
}
