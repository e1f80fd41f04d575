//! One connection, from the moment it is let through to the event that tells of it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbox::{Denial, EventKind, Host, SecretName};

use crate::activity::{Activity, Direction};

/// Tells of the connection when it is dropped, so that one which is cut off is told of too.
pub(crate) struct Record {
    activity: Arc<Activity>,
    host: Host,
    port: u16,
    began: Instant,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// When the last byte was moved, in milliseconds after the beginning.
    moved_at: AtomicU64,
    secrets: Mutex<BTreeSet<SecretName>>,
}

impl Record {
    pub fn begin(activity: &Arc<Activity>, host: &Host, port: u16) -> Arc<Self> {
        activity.connected();
        Arc::new(Self {
            activity: Arc::clone(activity),
            host: host.clone(),
            port,
            began: Instant::now(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            moved_at: AtomicU64::new(0),
            secrets: Mutex::default(),
        })
    }

    pub fn moved(&self, direction: Direction, bytes: u64) {
        self.activity.moved(direction, bytes);
        self.moved_at.store(self.age(), Ordering::Relaxed);
        match direction {
            Direction::In => self.bytes_in.fetch_add(bytes, Ordering::Relaxed),
            Direction::Out => self.bytes_out.fetch_add(bytes, Ordering::Relaxed),
        };
    }

    /// Wait until nothing was moved for this long.
    pub async fn idle(&self, limit: Duration) {
        loop {
            let idle = Duration::from_millis(self.age().saturating_sub(self.moved_at.load(Ordering::Relaxed)));
            match limit.checked_sub(idle) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left).await,
                Some(_) | None => return,
            }
        }
    }

    /// This secret was put into something that went to the host.
    pub fn put_in(&self, secret: &SecretName) {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner).insert(secret.clone());
    }

    /// Something was asked for on this connection and not given.
    pub fn refuse(&self, denial: Denial) {
        self.activity.refuse(&self.host, Some(self.port), denial);
    }

    /// The same, for another host than the one that the connection was made for.
    pub fn refuse_host(&self, host: &Host, denial: Denial) {
        self.activity.refuse(host, Some(self.port), denial);
    }

    fn age(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let secrets = std::mem::take(&mut *self.secrets.lock().unwrap_or_else(PoisonError::into_inner));
        self.activity.emit(EventKind::Connected {
            host: self.host.clone(),
            port: self.port,
            bytes_in: *self.bytes_in.get_mut(),
            bytes_out: *self.bytes_out.get_mut(),
            took: self.began.elapsed(),
            secrets: secrets.into_iter().collect(),
        });
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
