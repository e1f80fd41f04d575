//! A service on a fake host, and short words for what tests ask of it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sandbox::engine::fake::{FakeEngine, FakeHost};
use sandbox::{
    Captured, Error, ErrorKind, Event, EventKind, ExecRequest, ExecStatus, InstanceId, Lifetime, OutputCaps, Owner,
    Persistence, SandboxId, SandboxInfo, SandboxService, SandboxSpec, ServiceSettings, WriteOptions,
};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

/// The record of a sandbox in this directory, whoever owns it.
pub fn record_in(directory: &Path, id: &SandboxId) -> Option<PathBuf> {
    let mut paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_record = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(&format!("{id}.")) && name.ends_with(".json")
    };
    paths.find(is_record)
}

pub struct World {
    pub host: FakeHost,
    pub state: TempDir,
}

impl World {
    pub fn new() -> Self {
        Self { host: FakeHost::new(), state: TempDir::new().unwrap() }
    }

    pub fn settings(&self) -> ServiceSettings {
        ServiceSettings::new(self.state.path(), InstanceId::random().unwrap())
    }

    /// One more process on this host, with the same state directory.
    pub async fn process(&self) -> SandboxService {
        self.process_with(self.settings()).await
    }

    pub async fn process_set(&self, change: impl FnOnce(&mut ServiceSettings)) -> SandboxService {
        let mut settings = self.settings();
        change(&mut settings);
        self.process_with(settings).await
    }

    pub async fn process_with(&self, mut settings: ServiceSettings) -> SandboxService {
        let engine = self.engine();
        settings.powers = engine.powers();
        SandboxService::start(engine, settings).await.unwrap()
    }

    pub fn engine(&self) -> Arc<FakeEngine> {
        self.host.engine()
    }

    /// Where a sandbox is written down: its owner is in the name, too.
    pub fn record(&self, id: &SandboxId) -> PathBuf {
        record_in(&self.state.path().join("ledger"), id).expect("it is written down")
    }

    /// What is written down, without the lock that everybody shares.
    pub fn ledger_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.state.path().join("ledger")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !["admission.lock", "quarantine", "saving"].contains(&name.as_str()));
        names.sort();
        names
    }
}

pub fn owner() -> Owner {
    Owner::local()
}

pub fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub fn spec() -> SandboxSpec {
    SandboxSpec::new(owner())
}

pub fn persistent(name: &str) -> SandboxSpec {
    SandboxSpec { persistence: Persistence::Persistent, name: Some(name.parse().unwrap()), ..spec() }
}

pub fn living(idle: u64, total: Option<u64>) -> SandboxSpec {
    SandboxSpec { lifetime: Lifetime { idle: seconds(idle), total: total.map(seconds) }, ..spec() }
}

pub async fn create(service: &SandboxService, spec: SandboxSpec) -> SandboxInfo {
    service.create(&owner(), spec).await.unwrap()
}

pub async fn shell(service: &SandboxService, id: &SandboxId, script: &str) -> Result<Captured, Error> {
    let request = ExecRequest::shell(script, seconds(60)).unwrap();
    service.exec(&owner(), id, request).await?.capture(OutputCaps::default()).await
}

pub async fn says(service: &SandboxService, id: &SandboxId, script: &str) -> String {
    let captured = shell(service, id, script).await.unwrap();
    assert_eq!(captured.outcome.status, ExecStatus::Exited(0), "{}", captured.stderr.to_text());
    captured.stdout.to_text()
}

pub async fn write(service: &SandboxService, id: &SandboxId, path: &str, bytes: &[u8]) {
    let files = service.files(&owner(), id).unwrap();
    let mut file = files.write(&path.parse().unwrap(), WriteOptions::default()).await.unwrap();
    file.write_all(bytes).await.unwrap();
    file.commit().await.unwrap();
}

pub fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Let everything that can happen now happen, without moving a paused clock far.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Poll at most `polls` times, letting others run in between. Whether it came to its end.
pub async fn poll_times<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(value) = polled {
            return Some(value);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    None
}

pub fn drain(events: &mut tokio::sync::broadcast::Receiver<Event>) -> Vec<EventKind> {
    std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.kind).collect()
}

pub fn words(events: &[EventKind]) -> Vec<&'static str> {
    events.iter().map(EventKind::as_str).collect()
}
