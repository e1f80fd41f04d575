//! One sandbox under test, and short words for what cases do with it.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::engine::{Engine, Files, Process};
use crate::error::{ErrorKind, Result};
use crate::exec::{ExecOutcome, ExecRequest, ExecStatus};
use crate::file::{ByteRange, ListOptions, WriteOptions};
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::spec::SandboxSpec;

pub(super) struct Subject {
    pub engine: Arc<dyn Engine>,
    pub id: SandboxId,
    pub files: Box<dyn Files>,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub outcome: ExecOutcome,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ended {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn status(&self) -> ExecStatus {
        self.outcome.status
    }
}

pub(super) fn spec() -> SandboxSpec {
    SandboxSpec::new(Owner::local())
}

pub(super) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(super) fn path(text: &str) -> GuestPath {
    text.parse().unwrap()
}

pub(super) fn shell(script: &str) -> ExecRequest {
    ExecRequest::shell(script, seconds(30)).unwrap()
}

pub(super) fn command(argv: &[&str]) -> ExecRequest {
    ExecRequest::new(argv.iter().copied(), seconds(30)).unwrap()
}

impl Subject {
    pub async fn new(engine: Arc<dyn Engine>) -> Self {
        Self::with(engine, spec()).await
    }

    pub async fn with(engine: Arc<dyn Engine>, spec: SandboxSpec) -> Self {
        let id = SandboxId::random().unwrap();
        engine.create(&id, &spec).await.unwrap();
        let files = engine.files(&id);
        Self { engine, id, files }
    }

    pub async fn destroy(self) {
        self.engine.destroy(&self.id).await.unwrap();
    }

    pub async fn start(&self, request: &ExecRequest) -> Process {
        self.engine.start(&self.id, request).await.unwrap()
    }

    /// With an empty stdin.
    pub async fn run(&self, request: &ExecRequest) -> Ended {
        finish(self.start(request).await).await
    }

    /// What a script printed; it must succeed.
    pub async fn says(&self, script: &str) -> String {
        let ended = self.run(&shell(script)).await;
        let complaint = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status(), ExecStatus::Exited(0), "{script}: {complaint}");
        ended.text()
    }

    pub async fn write(&self, place: &str, bytes: &[u8]) {
        self.write_with(place, bytes, WriteOptions::default()).await.unwrap();
    }

    pub async fn write_with(&self, place: &str, bytes: &[u8], options: WriteOptions) -> Result<()> {
        let mut file = self.files.write(&path(place), options).await?;
        let written = file.write_all(bytes).await;
        let committed = file.commit().await;
        assert!(written.is_ok() || committed.is_err(), "{place}: half a file was committed after {written:?}");
        committed
    }

    pub async fn read(&self, place: &str) -> Vec<u8> {
        self.try_read(place).await.unwrap()
    }

    pub async fn try_read(&self, place: &str) -> Result<Vec<u8>> {
        self.read_range(place, ByteRange::default()).await
    }

    pub async fn read_range(&self, place: &str, range: ByteRange) -> Result<Vec<u8>> {
        let mut file = self.files.read(&path(place), range).await?;
        let mut bytes = Vec::new();
        file.stream.read_to_end(&mut bytes).await.unwrap();
        Ok(bytes)
    }

    pub async fn exists(&self, place: &str) -> bool {
        match self.files.stat(&path(place)).await {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => panic!("{place}: {error:?}"),
        }
    }

    /// All paths below, as text.
    pub async fn tree(&self, place: &str) -> Vec<String> {
        let options = ListOptions { recursive: true, max_entries: 10_000 };
        let listing = self.files.list(&path(place), options).await.unwrap();
        assert!(!listing.truncated);
        listing.entries.iter().map(|entry| entry.path.to_string()).collect()
    }
}

/// Close stdin, read both streams at once, wait.
pub(super) async fn finish(process: Process) -> Ended {
    let Process { stdin, mut stdout, mut stderr, control } = process;
    drop(stdin);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (stdout, stderr, outcome) =
        tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err), control.wait());
    stdout.unwrap();
    stderr.unwrap();
    Ended { outcome: outcome.unwrap(), stdout: out, stderr: err }
}

pub(super) fn kind<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.kind(),
    }
}

/// Poll until `condition` holds; panics with `what` after `limit`.
pub(super) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> F,
) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < limit, "{what}, not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) async fn is_listed(engine: &Arc<dyn Engine>, id: &SandboxId) -> bool {
    engine.list().await.unwrap().iter().any(|sandbox| sandbox.id == *id)
}
