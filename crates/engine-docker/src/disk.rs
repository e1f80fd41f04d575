//! The disk limit of sandboxes whose files are in their container's own layer.
//!
//! Few daemons can bound a layer, so it is looked at: while something runs, as often as that costs little. A sandbox that is
//! over its limit is ended, and what was asked of it says why. Between two looks a program can write more; how large a single
//! file gets is bounded by the kernel.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sandbox::{ByteSize, Error};

use crate::client::Daemon;
use crate::live::Live;
use crate::record::Storage;

/// Between two looks, at least; and how much of its time a daemon may spend on them.
const PAUSE: Duration = Duration::from_secs(1);
const ONE_IN: u32 = 20;
/// While nothing runs that could write.
const QUIET_PAUSE: Duration = Duration::from_secs(15);

/// Look at a sandbox until nobody holds it any more, or it is over.
pub fn watch(daemon: &Daemon, live: &Arc<Live>) {
    match live.description.storage {
        Storage::Memory => return,
        Storage::Layer => {}
    }
    let (daemon, live) = (daemon.clone(), Arc::downgrade(live));
    tokio::spawn(async move {
        let mut pause = PAUSE;
        while let Some(next) = look(&daemon, &live, pause).await {
            pause = next;
        }
    });
}

/// After a pause, one look; and how long to wait for the next.
async fn look(daemon: &Daemon, live: &Weak<Live>, pause: Duration) -> Option<Duration> {
    tokio::time::sleep(pause).await;
    let live = live.upgrade()?;
    if live.connection.is_closed() {
        return None;
    }
    let begun = Instant::now();
    // One that cannot be asked is asked again; when it is gone its stream says so.
    let used = daemon.layer_bytes(&live.container).await.unwrap_or_default().unwrap_or(0);
    let most = live.description.limits.disk;
    if used > most.bytes() {
        tracing::info!(sandbox = %live.id(), used, limit = most.bytes(), "a sandbox is ended: its files are over its disk limit");
        live.end_for(Overflow { used: ByteSize::new(used), most });
        if let Err(error) = daemon.remove(&live.container).await {
            tracing::warn!(?error, sandbox = %live.id(), "a sandbox that is over its disk limit cannot be ended");
            return Some(PAUSE);
        }
        return None;
    }
    let is_quiet =
        live.connection.measure().await.is_ok_and(|measured| measured.quiet.is_some_and(|quiet| quiet > pause));
    Some(PAUSE.max(begun.elapsed() * ONE_IN).max(if is_quiet { QUIET_PAUSE } else { PAUSE }))
}

/// Why a sandbox was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    used: ByteSize,
    most: ByteSize,
}

impl Overflow {
    pub fn error(self, live: &Live) -> Error {
        let Self { used, most } = self;
        Error::limit_exceeded(format!(
            "sandbox {} was ended: its files took {used}, and its disk limit is {most}",
            live.id()
        ))
        .with_hint("create another with a larger disk, or write less")
    }
}
