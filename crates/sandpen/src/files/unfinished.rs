//! Uploads that go on over several requests.
//!
//! What has come is in the sandbox already, in a file that has no name yet: it counts as the sandbox's, ends with it, and is
//! nowhere on the host. What is kept here is the open end of it. So an upload ends with this process too.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use sandbox::{Error, EventKind, GuestPath, Owner, Result, SandboxId, SandboxService, WriteFile};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex as Queue, OwnedMutexGuard as Turn};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use crate::random;

/// For an upload of which nothing is heard. As long as it is there, its sandbox is in use.
pub const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Each that is not finished has a process in its sandbox and descriptors here.
const MOST_OF_SANDBOX: usize = 8;
const MOST_OF_OWNER: usize = 32;
const MOST: usize = 256;

/// How often those are looked for of which nothing was heard.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Long enough that nobody guesses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UploadId(String);

impl UploadId {
    fn random() -> Result<Self> {
        random::digits().map(Self)
    }
}

impl FromStr for UploadId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Self(text.to_owned()));
        }
        Err(unknown())
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One upload. Whoever works on it has its turn; the next who comes is let in instead.
pub struct Upload {
    pub id: UploadId,
    pub owner: Owner,
    pub sandbox: SandboxId,
    pub path: GuestPath,
    pub length: u64,
    /// As its sender wrote it.
    pub metadata: String,
    stage: Arc<Queue<Stage>>,
    /// Of whoever works on it now.
    working: Mutex<CancellationToken>,
    expires: Mutex<Expiry>,
}

#[derive(Clone, Copy)]
struct Expiry {
    at: Instant,
    told: SystemTime,
}

impl Expiry {
    fn from_now() -> Self {
        Self { at: Instant::now() + PATIENCE, told: SystemTime::now() + PATIENCE }
    }
}

/// How far an upload is.
pub enum Stage {
    Open {
        file: Box<dyn WriteFile>,
        offset: u64,
    },
    /// The file is in its place. That is remembered for a sender that did not hear of it.
    Finished,
    /// It cannot go on.
    Over,
}

impl Upload {
    /// Have it alone. Whoever had it stops where they are: a sender that comes again has lost its connection, which we may not
    /// have noticed yet.
    pub async fn turn(&self) -> (Turn<Stage>, CancellationToken) {
        let ours = CancellationToken::new();
        let before = std::mem::replace(&mut *lock(&self.working), ours.clone());
        before.cancel();
        let stage = self.stage.clone().lock_owned().await;
        *lock(&self.expires) = Expiry::from_now();
        (stage, ours)
    }

    pub fn expires(&self) -> SystemTime {
        lock(&self.expires).told
    }

    /// Whether nothing of it is kept but that it was.
    fn is_finished(&self) -> bool {
        self.stage.try_lock().is_ok_and(|stage| !matches!(*stage, Stage::Open { .. }))
    }

    /// Nothing was heard of it for too long, and nobody works on it.
    fn is_overdue(&self, now: Instant) -> bool {
        lock(&self.expires).at <= now && self.stage.try_lock().is_ok()
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("owner", &self.owner).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Those that there are.
#[derive(Debug, Default)]
pub struct Uploads {
    all: Mutex<HashMap<UploadId, Arc<Upload>>>,
}

/// One that is to begin.
pub struct NewUpload {
    pub owner: Owner,
    pub sandbox: SandboxId,
    pub path: GuestPath,
    pub length: u64,
    pub metadata: String,
}

impl Uploads {
    /// Those whose time is over, or whose sandbox is gone, are let go of for as long as this is there.
    pub fn start(service: &SandboxService) -> Arc<Self> {
        let uploads = Arc::new(Self::default());
        tokio::spawn(watch(Arc::downgrade(&uploads), service.subscribe()));
        uploads
    }

    /// Before a file is opened for it.
    pub fn check(&self, owner: &Owner, sandbox: &SandboxId) -> Result<(), Failure> {
        let mut all = self.lock();
        let room = |all: &HashMap<UploadId, Arc<Upload>>| {
            let count = |is_one: &dyn Fn(&Upload) -> bool| all.values().filter(|upload| is_one(upload)).count();
            all.len() < MOST
                && count(&|upload| upload.owner == *owner) < MOST_OF_OWNER
                && count(&|upload| upload.sandbox == *sandbox) < MOST_OF_SANDBOX
        };
        if !room(&all) {
            // That they are finished is worth less than that others can begin.
            all.retain(|_, upload| upload.owner != *owner || !upload.is_finished());
        }
        if room(&all) { Ok(()) } else { Err(Failure::Busy("too many uploads are not finished; finish or delete some")) }
    }

    pub fn add(&self, new: NewUpload, stage: Stage) -> Result<Arc<Upload>> {
        let NewUpload { owner, sandbox, path, length, metadata } = new;
        let upload = Arc::new(Upload {
            id: UploadId::random()?,
            owner,
            sandbox,
            path,
            length,
            metadata,
            stage: Arc::new(Queue::new(stage)),
            working: Mutex::new(CancellationToken::new()),
            expires: Mutex::new(Expiry::from_now()),
        });
        self.lock().insert(upload.id.clone(), upload.clone());
        Ok(upload)
    }

    /// One of somebody else, or of another sandbox, is not there.
    pub fn find(&self, owner: &Owner, sandbox: &SandboxId, id: &UploadId) -> Result<Arc<Upload>> {
        let found = self.lock().get(id).cloned();
        let found = found.filter(|upload| upload.owner == *owner && upload.sandbox == *sandbox);
        found.filter(|upload| !upload.is_overdue(Instant::now())).ok_or_else(unknown)
    }

    pub fn remove(&self, id: &UploadId) {
        self.lock().remove(id);
    }

    fn let_go(&self, goes: impl Fn(&Upload) -> bool) {
        self.lock().retain(|_, upload| !goes(upload));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UploadId, Arc<Upload>>> {
        lock(&self.all)
    }
}

async fn watch(uploads: Weak<Uploads>, mut events: tokio::sync::broadcast::Receiver<sandbox::Event>) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        let heard = tokio::select! {
            heard = events.recv() => Some(heard),
            _ = look.tick() => None,
        };
        let Some(uploads) = uploads.upgrade() else { return };
        match heard {
            Some(Ok(event)) if matches!(event.kind, EventKind::Stopped { .. }) => {
                uploads.let_go(|upload| event.id.as_ref() == Some(&upload.sandbox));
            }
            // What was missed is found by its time.
            Some(Ok(_) | Err(RecvError::Lagged(_))) => {}
            Some(Err(RecvError::Closed)) => return,
            None => uploads.let_go(|upload| upload.is_overdue(Instant::now())),
        }
    }
}

fn unknown() -> Error {
    Error::not_found("there is no such upload: it is over, its time has passed, or the server was started anew")
        .with_hint("begin another")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(owner: &str, sandbox: &str) -> NewUpload {
        NewUpload {
            owner: owner.parse().unwrap(),
            sandbox: sandbox.parse().unwrap(),
            path: GuestPath::workspace(),
            length: 1,
            metadata: String::new(),
        }
    }

    const ONE: &str = "sb-7k2m9x4bqhtw3ecd";
    const OTHER: &str = "sb-7k2m9x4bqhtw3ecf";

    fn open() -> Stage {
        Stage::Open { file: Box::new(Nowhere), offset: 0 }
    }

    struct Nowhere;

    #[async_trait::async_trait]
    impl WriteFile for Nowhere {
        async fn commit(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    impl tokio::io::AsyncWrite for Nowhere {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::task::Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_is_its_owners_until_nothing_was_heard_of_it_for_too_long() {
        let uploads = Uploads::default();
        let upload = uploads.add(new("alice", ONE), open()).unwrap();
        let find = |owner: &str, sandbox: &str| {
            uploads.find(&owner.parse().unwrap(), &sandbox.parse().unwrap(), &upload.id).map(|_| ())
        };
        assert!(find("alice", ONE).is_ok());
        let messages: Vec<_> =
            [("bob", ONE), ("alice", OTHER)].map(|(owner, id)| find(owner, id).unwrap_err().to_string()).into();
        assert_eq!(messages[0], "not-an-upload".parse::<UploadId>().unwrap_err().to_string());
        assert_eq!(messages[0], messages[1]);
        tokio::time::advance(PATIENCE - Duration::from_secs(1)).await;
        drop(upload.turn().await);
        tokio::time::advance(PATIENCE - Duration::from_secs(1)).await;
        assert!(find("alice", ONE).is_ok(), "it was heard of");
        let turn = upload.turn().await;
        tokio::time::advance(PATIENCE).await;
        assert!(find("alice", ONE).is_ok(), "somebody works on it");
        drop(turn);
        assert!(find("alice", ONE).is_err());
        uploads.let_go(|upload| upload.is_overdue(Instant::now()));
        assert!(uploads.lock().is_empty());
    }

    #[tokio::test]
    async fn there_are_so_many_and_no_more() {
        let uploads = Uploads::default();
        let begin = |owner: &str, sandbox: &str| {
            let (owner, sandbox) = (owner.parse().unwrap(), sandbox.parse().unwrap());
            uploads.check(&owner, &sandbox)
        };
        for _ in 0..MOST_OF_SANDBOX {
            begin("alice", ONE).unwrap();
            uploads.add(new("alice", ONE), open()).unwrap();
        }
        assert!(begin("alice", ONE).is_err());
        begin("alice", OTHER).unwrap();
        let finished = uploads.lock().values().next().cloned().unwrap();
        *finished.turn().await.0 = Stage::Finished;
        begin("alice", ONE).unwrap();
    }

    #[tokio::test]
    async fn the_next_who_comes_is_let_in() {
        let uploads = Uploads::default();
        let upload = uploads.add(new("alice", ONE), open()).unwrap();
        let (stage, first) = upload.turn().await;
        let second = upload.turn();
        let first = async {
            first.cancelled().await;
            drop(stage);
        };
        let (_, (_stage, second)) = tokio::join!(first, second);
        assert!(!second.is_cancelled());
    }
}
