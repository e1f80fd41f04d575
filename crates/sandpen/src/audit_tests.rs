use std::io;
use std::sync::{Arc, Mutex};

use std::time::Duration;

use sandbox::{
    Checkpoint, Denial, ErrorKind, EventKind, ExecOutcome, ExecStatus, ExecUsage, GuestPath, Limits, Network,
    NetworkActivity, Owner, Persistence, SandboxId, StopReason, TreeWork,
};
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::metrics::Metrics;

/// All that was logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }

    /// What `work` writes to a log like that of a server.
    fn of(work: impl FnOnce()) -> String {
        let lines = Self::default();
        let log = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(log, work);
        lines.take()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn id() -> SandboxId {
    "sb-7k2m9x4bqhtw3ecd".parse().unwrap()
}

fn event(kind: EventKind) -> Event {
    Event { owner: Owner::local(), id: Some(id()), kind }
}

fn every_kind() -> Vec<EventKind> {
    let path = || "/workspace/a\nb".parse::<GuestPath>().unwrap();
    let program = || "ev\u{1b}[2Jil\n2026-01-01 INFO forged".to_owned();
    let (took, limits) = (Duration::from_millis(12), Limits::default());
    let outcome =
        ExecOutcome { status: ExecStatus::Exited(3), usage: ExecUsage::default(), network: NetworkActivity::default() };
    vec![
        EventKind::Created {
            persistence: Persistence::Ephemeral,
            limits,
            network: Network::Internet,
            secrets: ["API_KEY".parse().unwrap()].into(),
            took,
        },
        EventKind::CreateRefused { kind: ErrorKind::Denied },
        EventKind::CreateFailed { kind: ErrorKind::Internal },
        EventKind::Adopted,
        EventKind::ExecStarted { program: program() },
        EventKind::ExecRefused { kind: ErrorKind::NotFound },
        EventKind::ExecEnded { program: program(), outcome, stdout_bytes: 1, stderr_bytes: 2 },
        EventKind::FileRead { path: path(), bytes: 3 },
        EventKind::FileWritten { path: path(), bytes: 4 },
        EventKind::FileRemoved { path: path() },
        EventKind::FileRenamed { from: path(), to: path() },
        EventKind::Connected {
            host: "api.example.com".parse().unwrap(),
            port: 443,
            bytes_in: 5,
            bytes_out: 6,
            took,
            secrets: vec!["API_KEY".parse().unwrap(), "OTHER".parse().unwrap()],
        },
        EventKind::ConnectionRefused {
            host: "169.254.169.254".parse().unwrap(),
            port: Some(80),
            denial: Denial::MetadataAddress,
        },
        EventKind::Renewed,
        EventKind::Saved { name: "lab".parse().unwrap(), bytes: 7, took },
        EventKind::Forgotten { name: "lab".parse().unwrap() },
        EventKind::Forked { into: id() },
        EventKind::Checkpointed { checkpoint: Checkpoint(1), took },
        EventKind::Restored { checkpoint: Checkpoint(1), took },
        EventKind::TreeFailed { work: TreeWork::Save, kind: ErrorKind::LimitExceeded },
        EventKind::Stopped { reason: StopReason::Idle },
        EventKind::StopFailed { reason: StopReason::Total, kind: ErrorKind::Internal },
    ]
}

#[test]
fn every_event_is_one_line_with_its_owner_and_its_sandbox() {
    for kind in every_kind() {
        let lines = Lines::of(|| log(&Line::from(&event(kind.clone()))));
        assert_eq!(lines.matches('\n').count(), 1, "{kind:?}: {lines}");
        assert!(!lines.contains('\u{1b}'), "{kind:?}: {lines}");
        for part in ["INFO", "owner=local", &format!("sandbox={}", id()), &format!("event=\"{}\"", kind.as_str())] {
            assert!(lines.contains(part), "{part} is not in {lines}");
        }
    }
}

#[test]
fn a_connection_is_told_with_its_bytes_and_secrets_by_name() {
    let lines: Vec<String> =
        every_kind().into_iter().map(|kind| Lines::of(|| log(&Line::from(&event(kind))))).collect();
    let line = |word: &str| lines.iter().find(|line| line.contains(&format!("event=\"{word}\""))).unwrap();
    for part in ["host=\"api.example.com\"", "port=443", "bytes_in=5", "bytes_out=6", "secrets=\"API_KEY,OTHER\""] {
        assert!(line("connected").contains(part), "{part} is not in {}", line("connected"));
    }
    for part in ["host=\"169.254.169.254\"", "port=80", "rule=\"metadata_address\""] {
        assert!(line("connection_refused").contains(part), "{part} is not in {}", line("connection_refused"));
    }
    assert!(line("created").contains("network=\"internet\""), "{}", line("created"));
}

#[tokio::test]
async fn what_happened_before_the_end_is_written_and_what_was_missed_is_counted() {
    let lines = Lines::default();
    let log = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(log);
    let events = EventBus::default();
    let audit = Audit::start(&events, None, &Metrics::default()).unwrap();
    // More than the bus keeps, in one go: the listener had no turn meanwhile.
    for _ in 0..5000 {
        events.emit(&Owner::local(), &id(), EventKind::Renewed);
    }
    audit.finish().await;
    let written = lines.take();
    let told = written.matches("event=\"renewed\"").count() as u64;
    let missed = written.split_once("count=").map(|(_, rest)| rest.split_whitespace().next().unwrap().to_owned());
    assert!(written.contains("event=\"missed\""), "{written}");
    assert_eq!(missed.unwrap().parse::<u64>().unwrap() + told, 5000);
}

fn called(owner: &str) -> Deed {
    let (owner, tool) = (owner.parse().unwrap(), CalledTool::Known("run_command"));
    Deed::Called { owner, tool, sandbox: None, outcome: CallOutcome::Done, took: Duration::ZERO }
}

/// The lines of a trail to which `work` told something while nobody had a turn to write, and what its check says of it.
async fn trail_of(work: impl FnOnce(&Recorder)) -> (Vec<serde_json::Value>, trail::Verified) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.jsonl");
    let audit = Audit::start(&EventBus::default(), Some(&path), &Metrics::default()).unwrap();
    work(&audit.recorder());
    audit.finish().await;
    let text = std::fs::read_to_string(&path).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), trail::verify(&path).unwrap())
}

fn told_of_lost(lines: &[serde_json::Value]) -> Vec<(String, u64)> {
    let lost = lines.iter().filter(|line| line["event"] == "missed");
    lost.map(|line| (line["of"].as_str().unwrap().to_owned(), line["count"].as_u64().unwrap())).collect()
}

#[tokio::test]
async fn deeds_that_found_no_place_are_a_line_of_the_trail_and_its_check_says_so() {
    let (lines, verified) = trail_of(|recorder| (0..5000).for_each(|_| recorder.record(called("alice")))).await;
    let written = lines.iter().filter(|line| line["event"] == "called").count() as u64;
    assert!(written < 5000, "none was lost, so that nothing is shown");
    assert_eq!(told_of_lost(&lines), [("deeds".to_owned(), 5000 - written)]);
    assert_eq!(verified.missed, 5000 - written);
}

#[tokio::test]
async fn a_flood_of_strangers_takes_no_place_from_what_is_done() {
    let (lines, verified) = trail_of(|recorder| {
        (0..9000).for_each(|_| recorder.record(Deed::TurnedAway { source: None, why: "wrong_token" }));
        (0..10).for_each(|_| recorder.record(called("alice")));
        (0..9000).for_each(|_| recorder.record(Deed::TurnedAway { source: None, why: "wrong_token" }));
    })
    .await;
    let count = |event: &str| lines.iter().filter(|line| line["event"] == event).count() as u64;
    assert_eq!(count("called"), 10);
    let lost = 18_000 - count("turned_away");
    assert_eq!((told_of_lost(&lines), verified.missed), (vec![("turned_away".to_owned(), lost)], lost));
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_is_told_while_the_server_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.jsonl");
    let events = EventBus::default();
    let audit = Audit::start(&events, Some(&path), &Metrics::default()).unwrap();
    for expected in [904, 1808] {
        (0..5000).for_each(|_| audit.recorder().record(called("alice")));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(trail::verify(&path).unwrap().missed, expected);
    }
    audit.finish().await;
}
