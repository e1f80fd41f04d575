//! What was done, by whom, in which sandbox, and with whom it spoke: a line of the log for each, and a line of the audit
//! trail where there is one.

use std::path::Path;
use std::time::SystemTime;

use sandbox::{Event, EventBus, Result};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::line::Line;
pub use self::line::{CallOutcome, CalledTool, Deed};
pub use self::queue::Recorder;
use self::queue::{Kind, Waiting};
use self::trail::Trail;
use crate::metrics::Metrics;

mod line;
mod queue;
pub mod recent;
pub mod trail;

/// Writes for as long as it is there.
#[derive(Debug)]
pub struct Audit {
    task: Option<JoinHandle<()>>,
    over: CancellationToken,
    recorder: Recorder,
}

impl Audit {
    /// From now on. Where nobody reads the lines, nobody listens either.
    pub fn start(events: &EventBus, trail: Option<&Path>, metrics: &Metrics) -> Result<Self> {
        let metrics = metrics.clone();
        let trail = trail.map(Trail::open).transpose()?;
        let over = CancellationToken::new();
        if trail.is_none() && !tracing::enabled!(tracing::Level::INFO) {
            return Ok(Self { task: None, over, recorder: Recorder::deaf(metrics) });
        }
        let (recorder, waiting) = queue::queue(metrics.clone());
        let writer = Writer { trail, metrics, told_of_lost: None };
        let task = tokio::spawn(listen(events.subscribe(), waiting, writer, over.clone()));
        Ok(Self { task: Some(task), over, recorder })
    }

    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Returns when everything that has happened is written.
    pub async fn finish(self) {
        self.over.cancel();
        if let Some(task) = self.task {
            let _ = task.await;
        }
    }
}

struct Writer {
    trail: Option<Trail>,
    metrics: Metrics,
    told_of_lost: Option<Instant>,
}

impl Writer {
    /// Whether it stands where lines stand, if there is such a place.
    fn write(&mut self, line: &Line) -> bool {
        log(line);
        let is_written = self.trail.as_mut().is_none_or(|trail| trail.add(line, SystemTime::now()));
        if !is_written {
            self.metrics.lost_lines(1);
        }
        is_written
    }

    fn lagged(&self, waiting: &Waiting, count: u64) {
        self.metrics.lost_lines(count);
        waiting.lost.add(Kind::Event, count);
    }

    /// A gap is part of the chain, so that nobody can make one unseen, not even who fills the queue on purpose.
    fn write_lost(&mut self, waiting: &Waiting) {
        self.told_of_lost = Some(Instant::now());
        for kind in Kind::ALL {
            let count = waiting.lost.take(kind);
            if count > 0 {
                tracing::warn!(count, of = kind.as_str(), "lines came faster than they could be written");
                if !self.write(&Line::missed(kind.as_str(), count)) {
                    waiting.lost.add(kind, count);
                }
            }
        }
    }
}

async fn listen(mut events: Receiver<Event>, mut waiting: Waiting, mut writer: Writer, over: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = over.cancelled() => break,
            () = waiting.lost.due(writer.told_of_lost) => writer.write_lost(&waiting),
            done = next(&mut events, &mut waiting.deeds) => match done {
                Ok(line) => _ = writer.write(&line),
                Err(RecvError::Lagged(count)) => writer.lagged(&waiting, count),
                Err(RecvError::Closed) => break,
            },
            // Last: however many there are, they hold up nothing that was done.
            Some(stranger) = waiting.strangers.recv() => {
                writer.write(&Line::from(stranger));
            }
        }
    }
    while let Ok(deed) = waiting.deeds.try_recv() {
        writer.write(&Line::from(deed));
    }
    while let Ok(stranger) = waiting.strangers.try_recv() {
        writer.write(&Line::from(stranger));
    }
    loop {
        match events.try_recv() {
            Ok(event) => _ = writer.write(&Line::from(&event)),
            Err(TryRecvError::Lagged(count)) => writer.lagged(&waiting, count),
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    writer.write_lost(&waiting);
    if let Some(trail) = writer.trail {
        trail.close();
    }
}

/// What somebody did or what came of it. Neither holds up the other.
async fn next(events: &mut Receiver<Event>, deeds: &mut mpsc::Receiver<Deed>) -> std::result::Result<Line, RecvError> {
    tokio::select! {
        received = events.recv() => received.map(|event| Line::from(&event)),
        Some(deed) = deeds.recv() => Ok(Line::from(deed)),
    }
}

fn log(line: &Line) {
    tracing::info!("{line}");
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
