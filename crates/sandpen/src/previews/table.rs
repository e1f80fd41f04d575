//! Which previews there are: whose, of what, and until when.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sandbox::{Error, ErrorKind, GuestPort, Owner, Result, SandboxId, SandboxService};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::base::Base;
use super::upstream::Upstream;
use crate::random;

const MOST_OF_SANDBOX: usize = 16;
const MOST_OF_OWNER: usize = 64;

/// What one preview does at the same time.
const MOST_AT_ONCE: usize = 64;

/// What stands for a preview in its address. Whoever has it has the preview.
#[derive(Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    const CHARACTERS: usize = 26;
    /// Names of hosts are the same in upper case, so there are five bits in a character.
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

    pub fn random() -> Result<Self> {
        let bytes = random::bytes::<{ Self::CHARACTERS }>()?;
        Ok(Self(bytes.iter().map(|byte| char::from(Self::ALPHABET[usize::from(byte & 31)])).collect()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Looked up by its digest: how long that takes says nothing of the name.
    fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let is_name = text.len() == Self::CHARACTERS && text.bytes().all(|byte| Self::ALPHABET.contains(&byte));
        is_name.then(|| Self(text.to_owned())).ok_or(())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Name")
    }
}

/// One preview.
pub struct Shown {
    pub owner: Owner,
    pub sandbox: SandboxId,
    pub port: GuestPort,
    name: Name,
    expires: watch::Sender<Instant>,
    /// It is over, for those who are in the middle of it too.
    pub over: CancellationToken,
    pub places: Arc<Semaphore>,
    pub upstream: Upstream,
}

impl Shown {
    pub fn left(&self) -> Duration {
        self.expires.borrow().saturating_duration_since(Instant::now())
    }

    fn is_of(&self, owner: &Owner, sandbox: &SandboxId, port: GuestPort) -> bool {
        self.owner == *owner && self.sandbox == *sandbox && self.port == port
    }

    /// Have it end then. `false` when it is over already, which is decided in one place with [`Self::run_out`]: one that was moved
    /// is there.
    fn prolong(&self, until: Instant) -> bool {
        self.expires.send_if_modified(|expires| {
            let is_there = !self.over.is_cancelled();
            if is_there {
                *expires = until;
            }
            is_there
        })
    }

    /// Returns when it is over, by its time or otherwise.
    async fn run_out(&self) {
        let mut moved = self.expires.subscribe();
        while !self.over.is_cancelled() {
            let until = *moved.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep_until(until) => {
                    self.expires.send_if_modified(|expires| {
                        if *expires <= Instant::now() {
                            self.over.cancel();
                        }
                        false
                    });
                }
                () = self.over.cancelled() => {}
                _ = moved.changed() => {}
            }
        }
    }
}

/// All previews of a server.
pub struct Table {
    pub service: SandboxService,
    pub base: Base,
    shown: Mutex<HashMap<[u8; 32], Arc<Shown>>>,
}

impl Table {
    pub fn new(service: SandboxService, base: Base) -> Self {
        Self { service, base, shown: Mutex::default() }
    }

    /// The address of the one that there is, or of another; good from now on for so long.
    pub async fn open(
        self: &Arc<Self>,
        owner: &Owner,
        sandbox: &SandboxId,
        port: GuestPort,
        lifetime: Duration,
    ) -> Result<(String, SystemTime)> {
        let expires = Instant::now() + lifetime;
        if self.count_of(owner) >= MOST_OF_OWNER {
            self.forget_ended(owner).await;
        }
        let shown = {
            let mut all = self.all();
            match all.values().find(|shown| shown.is_of(owner, sandbox, port) && shown.prolong(expires)) {
                Some(shown) => Arc::clone(shown),
                None => {
                    check_room(&all, owner, sandbox)?;
                    let shown = Arc::new(Shown {
                        owner: owner.clone(),
                        sandbox: sandbox.clone(),
                        port,
                        name: Name::random()?,
                        expires: watch::Sender::new(expires),
                        over: CancellationToken::new(),
                        places: Arc::new(Semaphore::new(MOST_AT_ONCE)),
                        upstream: Upstream::default(),
                    });
                    all.insert(shown.name.digest(), Arc::clone(&shown));
                    tokio::spawn(expire(Arc::downgrade(self), Arc::clone(&shown)));
                    shown
                }
            }
        };
        Ok((format!("{}/", self.base.origin(&shown.name)), SystemTime::now() + lifetime))
    }

    pub fn find(&self, name: &Name) -> Option<Arc<Shown>> {
        let shown = self.all().get(&name.digest()).cloned()?;
        (!shown.over.is_cancelled() && !shown.left().is_zero()).then_some(shown)
    }

    /// Whether there was one.
    pub fn close(&self, owner: &Owner, sandbox: &SandboxId, port: GuestPort) -> bool {
        let is_there = |shown: &&Arc<Shown>| shown.is_of(owner, sandbox, port) && !shown.over.is_cancelled();
        let found = self.all().values().find(is_there).cloned();
        found.is_some_and(|shown| {
            self.end(&shown);
            true
        })
    }

    pub fn end(&self, shown: &Shown) {
        self.all().remove(&shown.name.digest());
        shown.over.cancel();
    }

    fn count_of(&self, owner: &Owner) -> usize {
        self.all().values().filter(|shown| shown.owner == *owner).count()
    }

    /// Those whose sandbox is gone, which nobody may have noticed.
    async fn forget_ended(&self, owner: &Owner) {
        let all: Vec<_> = self.all().values().filter(|shown| shown.owner == *owner).cloned().collect();
        for shown in all {
            let found = self.service.find(owner, shown.sandbox.as_str()).await;
            if found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                self.end(&shown);
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<[u8; 32], Arc<Shown>>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_room(all: &HashMap<[u8; 32], Arc<Shown>>, owner: &Owner, sandbox: &SandboxId) -> Result<()> {
    let of_owner = all.values().filter(|shown| shown.owner == *owner);
    let of_sandbox = of_owner.clone().filter(|shown| shown.sandbox == *sandbox);
    let (of_owner, of_sandbox) = (of_owner.count(), of_sandbox.count());
    if of_sandbox >= MOST_OF_SANDBOX {
        return Err(Error::limit_exceeded(format!("the sandbox has {of_sandbox} previews, which is all it may have"))
            .with_hint("stop one of them first"));
    }
    if of_owner >= MOST_OF_OWNER {
        return Err(Error::limit_exceeded(format!("you have {of_owner} previews, which is all you may have"))
            .with_hint("stop one of them first"));
    }
    Ok(())
}

async fn expire(table: std::sync::Weak<Table>, shown: Arc<Shown>) {
    shown.run_out().await;
    if let Some(table) = table.upgrade() {
        table.end(&shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    fn shown() -> Arc<Shown> {
        Arc::new(Shown {
            owner: Owner::local(),
            sandbox: SandboxId::random().unwrap(),
            port: GuestPort::new(80).unwrap(),
            name: Name::random().unwrap(),
            expires: watch::Sender::new(Instant::now() + TIME),
            over: CancellationToken::new(),
            places: Arc::new(Semaphore::new(1)),
            upstream: Upstream::default(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_prolonged_as_it_ends_is_there_or_says_that_it_is_not() {
        let mut prolonged = 0;
        for _ in 0..64 {
            let shown = shown();
            let ending = tokio::spawn({
                let shown = Arc::clone(&shown);
                async move { shown.run_out().await }
            });
            // Both wake at the same moment, and either may be first.
            tokio::time::sleep(TIME).await;
            let is_there = shown.prolong(Instant::now() + TIME);
            tokio::time::sleep(TIME / 2).await;
            assert_eq!(shown.over.is_cancelled(), !is_there);
            tokio::time::sleep(TIME).await;
            assert!(shown.over.is_cancelled() && ending.is_finished(), "it ends all the same");
            prolonged += usize::from(is_there);
        }
        assert!(prolonged > 0, "nothing was tried");
    }
}
