//! A daemon that hangs in the middle of something: what is asked of it goes through a door that we can close.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_docker::{DockerConfig, DockerEngine, Wish};
use sandbox::{Engine, Error, ErrorKind, SandboxId, Snapshots};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::Case;
use crate::world::{World, eventually, make, says, spec};

pub const CASES: &[Case] = &[
    ("hangs::a_start_that_hangs_is_told_before_it_is_undone", |world| Box::pin(at_a_start(world))),
    ("hangs::many_who_ask_are_told_together", |world| Box::pin(with_many(world))),
    ("hangs::files_that_do_not_get_through_are_given_up", |world| Box::pin(with_files(world))),
];

/// What is promised.
const PROMISED: Duration = Duration::from_secs(30);

async fn at_a_start(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let first = make(&engine, &spec()).await;
    engine.destroy(&first).await.unwrap();
    door.close_at("/start");
    let id = SandboxId::random().unwrap();
    let started = Instant::now();
    is_unavailable(&engine.create(&id, &spec()).await.unwrap_err(), started);
    door.reopen();
    let name = format!("sandpen-{id}");
    eventually("what was half made is removed", async || world.containers(&name).await.is_empty()).await;
    let id = make(&engine, &spec()).await;
    assert_eq!(says(&engine, &id, "echo here").await, "here\n");
    engine.destroy(&id).await.unwrap();
}

async fn with_many(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let runners = engine.runners(|_| false);
    runners.list().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    door.close_at("/images/json");
    let started = Instant::now();
    let answers = tokio::join!(runners.list(), runners.list(), runners.refused(), runners.list());
    for error in [answers.0.unwrap_err(), answers.1.unwrap_err(), answers.2.unwrap_err(), answers.3.unwrap_err()] {
        is_unavailable(&error, started);
    }
    door.reopen();
    runners.list().await.unwrap();
}

async fn with_files(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let id = make(&engine, &spec()).await;
    assert_eq!(says(&engine, &id, "head -c 20000000 /dev/urandom > large; echo made").await, "made\n");
    door.close_at("PUT ");
    let name = "hangs".parse().unwrap();
    let started = Instant::now();
    is_unavailable(&engine.save(&id, &name).await.unwrap_err(), started);
    door.reopen();
    assert_eq!(says(&engine, &id, "wc -c < large").await, "20000000\n", "it goes on");
    engine.save(&id, &name).await.unwrap();
    engine.destroy(&id).await.unwrap();
    assert!(engine.forget(&spec().owner, &name).await.unwrap());
}

fn is_unavailable(error: &Error, started: Instant) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let waited = started.elapsed();
    assert!(waited < PROMISED, "it took {} s to say that the daemon hangs", waited.as_secs());
}

/// A socket that leads to the daemon's. Closed, it takes connections and nothing gets through, in neither direction.
struct Door {
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
}

impl Door {
    fn open(world: &World) -> Self {
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
                tokio::spawn(pass(from_client, to_server, shared.clone(), Direction::In));
                tokio::spawn(pass(from_server, to_client, shared.clone(), Direction::Out));
            }
        });
        Self { _directory: directory, address: format!("unix://{}", path.display()), state }
    }

    async fn engine(&self, world: &World) -> DockerEngine {
        let wish = Wish { host: Some(self.address.clone()), context: None };
        DockerEngine::start(DockerConfig { wish, ..world.config() }).await.unwrap()
    }

    fn close_at(&self, words: &'static str) {
        self.state.send_replace(State::ClosesAt(words));
    }

    fn reopen(&self) {
        assert_eq!(self.state.send_replace(State::Open), State::Closed, "nothing was asked for that closes it");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: Arc<watch::Sender<State>>,
    direction: Direction,
) {
    let mut bytes = vec![0; 64 << 10];
    let mut told = state.subscribe();
    while let Ok(count) = from.read(&mut bytes).await {
        if count == 0 {
            break;
        }
        state.send_if_modified(|state| {
            let line = bytes[..count].split(|byte| *byte == b'\r').next().unwrap_or_default();
            let closes = match state {
                State::ClosesAt(words) => direction == Direction::In && String::from_utf8_lossy(line).contains(*words),
                State::Open | State::Closed => false,
            };
            if closes {
                *state = State::Closed;
            }
            closes
        });
        // What it gives must not be held while something is written.
        let is_open = told.wait_for(|state| *state != State::Closed).await.is_ok();
        if !is_open || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
