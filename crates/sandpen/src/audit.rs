//! What was done, by whom, in which sandbox, and with whom it spoke: a line of the log for each, and a line of the audit
//! trail where there is one.

use std::path::Path;
use std::time::SystemTime;

use sandbox::{Event, EventBus, Result};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::line::Line;
pub use self::line::{CallOutcome, CalledTool, Deed};
use self::trail::Trail;
use crate::metrics::Metrics;

mod line;
pub mod recent;
pub mod trail;

/// Deeds on their way to be written. Who finds no place does not wait: nobody is held up by who watches.
const QUEUE: usize = 4096;

/// Writes for as long as it is there.
#[derive(Debug)]
pub struct Audit {
    task: Option<JoinHandle<()>>,
    over: CancellationToken,
    recorder: Recorder,
}

/// Where deeds are told. Copies tell the same.
#[derive(Clone, Debug)]
pub struct Recorder {
    sender: Option<mpsc::Sender<Deed>>,
    metrics: Metrics,
}

impl Recorder {
    pub fn record(&self, deed: Deed) {
        self.metrics.saw(&deed);
        if let Some(sender) = &self.sender
            && let Err(error) = sender.try_send(deed)
        {
            self.metrics.lost_lines(1);
            tracing::warn!(%error, "a deed came faster than it could be written");
        }
    }
}

impl Audit {
    /// From now on. Where nobody reads the lines, nobody listens either.
    pub fn start(events: &EventBus, trail: Option<&Path>, metrics: &Metrics) -> Result<Self> {
        let metrics = metrics.clone();
        let trail = trail.map(Trail::open).transpose()?;
        let over = CancellationToken::new();
        if trail.is_none() && !tracing::enabled!(tracing::Level::INFO) {
            return Ok(Self { task: None, over, recorder: Recorder { sender: None, metrics } });
        }
        let (sender, deeds) = mpsc::channel(QUEUE);
        let writer = Writer { trail, metrics: metrics.clone() };
        let task = tokio::spawn(listen(events.subscribe(), deeds, writer, over.clone()));
        Ok(Self { task: Some(task), over, recorder: Recorder { sender: Some(sender), metrics } })
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
}

impl Writer {
    fn write(&mut self, line: &Line) {
        log(line);
        if let Some(trail) = &mut self.trail
            && !trail.add(line, SystemTime::now())
        {
            self.metrics.lost_lines(1);
        }
    }

    fn write_missed(&mut self, count: u64) {
        self.metrics.lost_lines(count);
        self.write(&Line::missed(count));
    }
}

async fn listen(
    mut events: Receiver<Event>,
    mut deeds: mpsc::Receiver<Deed>,
    mut writer: Writer,
    over: CancellationToken,
) {
    loop {
        tokio::select! {
            received = events.recv() => match received {
                Ok(event) => writer.write(&Line::from(&event)),
                Err(RecvError::Lagged(count)) => writer.write_missed(count),
                Err(RecvError::Closed) => break,
            },
            Some(deed) = deeds.recv() => writer.write(&Line::from(deed)),
            () = over.cancelled() => break,
        }
    }
    while let Ok(deed) = deeds.try_recv() {
        writer.write(&Line::from(deed));
    }
    loop {
        match events.try_recv() {
            Ok(event) => writer.write(&Line::from(&event)),
            Err(TryRecvError::Lagged(count)) => writer.write_missed(count),
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    if let Some(trail) = writer.trail {
        trail.close();
    }
}

fn log(line: &Line) {
    tracing::info!("{line}");
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
