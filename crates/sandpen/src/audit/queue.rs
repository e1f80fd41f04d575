//! Deeds on their way to be written, and how many found no place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::line::Deed;
use crate::metrics::Metrics;

/// Who finds no place does not wait: nobody is held up by who watches.
pub(super) const DEEDS: usize = 4096;

/// Strangers need no right to be many, so they have places of their own: none of them takes one from what somebody did.
pub(super) const STRANGERS: usize = 1024;

/// Between two lines about what was lost, so that these do not become a flood themselves.
const PAUSE: Duration = Duration::from_secs(1);

/// Where deeds are told. Copies tell the same.
#[derive(Clone, Debug)]
pub struct Recorder {
    places: Option<Places>,
    metrics: Metrics,
}

#[derive(Clone, Debug)]
struct Places {
    deeds: mpsc::Sender<Deed>,
    strangers: mpsc::Sender<Deed>,
    lost: Arc<Lost>,
}

/// The other end.
#[derive(Debug)]
pub struct Waiting {
    pub deeds: mpsc::Receiver<Deed>,
    pub strangers: mpsc::Receiver<Deed>,
    pub lost: Arc<Lost>,
}

pub fn queue(metrics: Metrics) -> (Recorder, Waiting) {
    let (deeds_in, deeds) = mpsc::channel(DEEDS);
    let (strangers_in, strangers) = mpsc::channel(STRANGERS);
    let lost = Arc::new(Lost::default());
    let places = Places { deeds: deeds_in, strangers: strangers_in, lost: lost.clone() };
    (Recorder { places: Some(places), metrics }, Waiting { deeds, strangers, lost })
}

impl Recorder {
    /// One whose lines nobody reads.
    pub fn deaf(metrics: Metrics) -> Self {
        Self { places: None, metrics }
    }

    pub fn record(&self, deed: Deed) {
        self.metrics.saw(&deed);
        let Some(places) = &self.places else { return };
        let (kind, sender) = match deed {
            Deed::Called { .. } | Deed::Files { .. } | Deed::Granted { .. } => (Kind::Deed, &places.deeds),
            Deed::TurnedAway { .. } => (Kind::Stranger, &places.strangers),
        };
        if sender.try_send(deed).is_err() {
            self.metrics.lost_lines(1);
            places.lost.add(kind, 1);
        }
    }
}

/// What a line that is missing would have been about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Event,
    Deed,
    Stranger,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Event, Self::Deed, Self::Stranger];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Event => "events",
            Self::Deed => "deeds",
            Self::Stranger => "turned_away",
        }
    }
}

/// Lines that were not written, until a line says so.
#[derive(Debug, Default)]
pub struct Lost {
    events: AtomicU64,
    deeds: AtomicU64,
    strangers: AtomicU64,
    noticed: Notify,
}

impl Lost {
    pub fn add(&self, kind: Kind, count: u64) {
        self.of(kind).fetch_add(count, Ordering::Relaxed);
        self.noticed.notify_one();
    }

    pub fn take(&self, kind: Kind) -> u64 {
        self.of(kind).swap(0, Ordering::Relaxed)
    }

    /// Until something was lost, and some time after it was last told.
    pub async fn due(&self, told: Option<Instant>) {
        while Kind::ALL.iter().all(|kind| self.of(*kind).load(Ordering::Relaxed) == 0) {
            self.noticed.notified().await;
        }
        if let Some(told) = told {
            sleep_until(told + PAUSE).await;
        }
    }

    fn of(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Event => &self.events,
            Kind::Deed => &self.deeds,
            Kind::Stranger => &self.strangers,
        }
    }
}
