//! A way to the daemon that can be closed, and that can lose or spoil what is asked for on it.

use std::sync::Arc;
use std::time::Duration;

use bollard::models::SystemInfo;
use engine_docker::{DockerConfig, DockerEngine, Wish};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, watch};

use crate::world::World;

/// What the daemon says of what it was not asked for.
const REFUSAL: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\n\
    Content-Length: 20\r\n\r\n{\"message\":\"broken\"}";

/// What a daemon says of itself that is not the one behind the door.
const ANOTHER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 91\r\n\r\n\
    {\"ID\":\"ANOTHER\",\"DockerRootDir\":\"/elsewhere\",\"IndexServerAddress\":\"https://index.invalid/\"}";

/// For the daemon to do what came late, before it hears that nobody waits for it.
const MEANWHILE: Duration = Duration::from_secs(5);

/// A socket that leads to the daemon's. Closed, it takes connections and nothing gets through, in neither direction.
pub struct Door {
    _directory: tempfile::TempDir,
    address: String,
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// To be closed before this is asked for.
    ClosesAt(&'static str),
    Closed,
    /// Open to all but this, which waits here.
    HoldsBack(&'static str),
    /// Open to all but this, where it is as if the daemon were gone.
    Loses(&'static str),
    /// Open, and somebody else says who the daemon is, in this answer.
    Poses(Vec<u8>),
    /// Open to all but these, which the daemon never hears of.
    Refuses(Vec<String>),
}

impl Door {
    pub fn open(world: &World) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let state = Arc::new(watch::Sender::new(State::Open));
        let (daemon, shared) = (world.place.address.trim_start_matches("unix://").to_owned(), state.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = UnixStream::connect(&daemon).await else { return };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let to_client = Arc::new(Mutex::new(to_client));
                tokio::spawn(pass_in(from_client, to_server, to_client.clone(), shared.clone()));
                tokio::spawn(pass_out(from_server, to_client, shared.clone()));
            }
        });
        Self { _directory: directory, address: format!("unix://{}", path.display()), state }
    }

    pub async fn engine(&self, world: &World) -> DockerEngine {
        let wish = Wish { host: Some(self.address.clone()), context: None };
        DockerEngine::start(DockerConfig { wish, ..world.config() }).await.unwrap()
    }

    pub fn close_at(&self, words: &'static str) {
        self.state.send_replace(State::ClosesAt(words));
    }

    pub fn close(&self) {
        self.state.send_replace(State::Closed);
    }

    pub fn reopen(&self) {
        assert_eq!(self.state.send_replace(State::Open), State::Closed, "nothing was asked for that closes it");
    }

    pub fn hold_back(&self, words: &'static str) {
        self.state.send_replace(State::HoldsBack(words));
    }

    pub fn refuse(&self, words: Vec<String>) {
        self.state.send_replace(State::Refuses(words));
    }

    pub fn lose(&self, words: &'static str) {
        self.state.send_replace(State::Loses(words));
    }

    /// Another daemon.
    pub fn pose(&self) {
        self.state.send_replace(State::Poses(ANOTHER.to_vec()));
    }

    /// The same one, which says other things of itself.
    pub fn pose_as(&self, info: &SystemInfo) {
        let body = serde_json::to_string(info).unwrap();
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        self.state.send_replace(State::Poses((head + &body).into_bytes()));
    }

    pub fn let_through(&self) {
        self.state.send_replace(State::Open);
    }
}

async fn pass_in(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    back: Arc<Mutex<OwnedWriteHalf>>,
    state: Arc<watch::Sender<State>>,
) {
    let mut bytes = vec![0; 64 << 10];
    let mut told = state.subscribe();
    let mut was_held_back = false;
    while let Ok(count) = from.read(&mut bytes).await {
        if count == 0 {
            break;
        }
        let line = bytes[..count].split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        state.send_if_modified(|state| {
            let closes = matches!(state, State::ClosesAt(words) if line.contains(*words));
            if closes {
                *state = State::Closed;
            }
            closes
        });
        let now = told.borrow().clone();
        match now {
            State::Refuses(words) if words.iter().any(|words| line.contains(words)) => {
                if back.lock().await.write_all(REFUSAL).await.is_err() {
                    return;
                }
                continue;
            }
            State::Poses(answer) if line.contains("/info ") => {
                if back.lock().await.write_all(&answer).await.is_err() {
                    return;
                }
                continue;
            }
            State::Loses(words) if line.contains(words) => {
                let _ = back.lock().await.shutdown().await;
                return;
            }
            State::HoldsBack(words) if line.contains(words) => {
                was_held_back = true;
                if told.wait_for(|state| !matches!(state, State::HoldsBack(_))).await.is_err() {
                    return;
                }
            }
            State::Open
            | State::ClosesAt(_)
            | State::Closed
            | State::HoldsBack(_)
            | State::Loses(_)
            | State::Poses(_)
            | State::Refuses(_) => {}
        }
        // What it gives must not be held while something is written.
        let is_open = told.wait_for(|state| *state != State::Closed).await.is_ok();
        if !is_open || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    if was_held_back {
        tokio::time::sleep(MEANWHILE).await;
    }
    let _ = to.shutdown().await;
}

async fn pass_out(mut from: OwnedReadHalf, to: Arc<Mutex<OwnedWriteHalf>>, state: Arc<watch::Sender<State>>) {
    let mut bytes = vec![0; 64 << 10];
    let mut told = state.subscribe();
    while let Ok(count) = from.read(&mut bytes).await {
        if count == 0 {
            break;
        }
        let is_open = told.wait_for(|state| *state != State::Closed).await.is_ok();
        if !is_open || to.lock().await.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.lock().await.shutdown().await;
}
