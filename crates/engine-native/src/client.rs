//! The server's side of the launcher: requests out, fates and sockets in.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egress::Sockets;
use tokio::sync::{oneshot, watch};

use crate::channel::Channel;
use crate::jail::Failure;
use crate::launcher::{
    self, Configuration, FromLauncher, LookRequest, PackFailure, PackRequest, PackedTree, Running, ToLauncher, Wanted,
};
use crate::plan::Plan;

/// What is known of a sandbox that the launcher was asked to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Alive,
    NotCreated(Failure),
    Gone,
    /// The launcher itself has ended, and with it everything that it made for us.
    LauncherGone,
}

/// A sandbox on its way: process 1 will speak on the channel when it is ready.
#[derive(Debug)]
pub struct Started {
    pub process: OwnedFd,
    /// `None` for one that listens on a path.
    pub channel: Option<OwnedFd>,
}

/// A sandbox that was asked for.
#[derive(Debug)]
pub struct Asked {
    pub started: oneshot::Receiver<Started>,
    /// Its end is told here, also when it never came to be.
    pub fate: watch::Receiver<Fate>,
    /// `None` when no sockets were wanted.
    pub sockets: Option<AskedSockets>,
}

/// Sockets that were asked for. Ends without a word when the launcher does.
pub type AskedSockets = oneshot::Receiver<Result<Sockets, Failure>>;

/// A tree that is being packed. Ends without a word when the launcher does.
pub type AskedPack = oneshot::Receiver<Result<PackedTree, PackFailure>>;

/// Changes that are looked for, and whether there are more than wanted. Ends without a word when the launcher does.
pub type AskedLook = oneshot::Receiver<Result<bool, Failure>>;

struct Entry {
    started: Option<oneshot::Sender<Started>>,
    fate: watch::Sender<Fate>,
}

/// What the launcher owes us, by the name under which it was asked for.
#[derive(Debug, Default)]
struct Owed {
    sandboxes: HashMap<String, Entry>,
    sockets: HashMap<String, oneshot::Sender<Result<Sockets, Failure>>>,
    looks: HashMap<String, oneshot::Sender<Result<bool, Failure>>>,
    packs: HashMap<String, oneshot::Sender<Result<PackedTree, PackFailure>>>,
}

type Entries = Arc<Mutex<Owed>>;

/// How long its end is waited for. It ends without being waited for too.
const CLOSING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Launcher {
    channel: Arc<Channel>,
    entries: Entries,
    listener: tokio::task::JoinHandle<()>,
    process: Option<Child>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("fate", &*self.fate.borrow()).finish_non_exhaustive()
    }
}

impl Launcher {
    pub fn start(configuration: Configuration) -> io::Result<Self> {
        let Running { channel, process } = launcher::start(configuration)?;
        let channel = Arc::new(Channel::new(channel)?);
        let entries = Entries::default();
        let listener = tokio::spawn(listen(channel.clone(), entries.clone()));
        Ok(Self { channel, entries, listener, process })
    }

    /// Whether it still serves. One that was killed is replaced by the next creation.
    pub fn is_running(&self) -> bool {
        !self.listener.is_finished()
    }

    /// Ask for a sandbox. What keeps its image and what is attached is passed on to process 1.
    pub async fn create(&self, plan: Plan, wanted: Wanted, holds: &[BorrowedFd<'_>]) -> io::Result<Asked> {
        let (started, on_started) = oneshot::channel();
        let (fate, on_fate) = watch::channel(Fate::Alive);
        let entry = Entry { started: Some(started), fate };
        let id = plan.id.clone();
        let sockets = match wanted {
            Wanted::Sandbox => None,
            Wanted::SandboxAndSockets => Some(self.expect_sockets(&id)),
        };
        lock(&self.entries).sandboxes.insert(id.clone(), entry);
        let sent = self.channel.send(&ToLauncher::Create { plan: Box::new(plan), wanted }, holds).await;
        if let Err(error) = sent {
            settle(&self.entries, &id, Fate::LauncherGone);
            return Err(error);
        }
        Ok(Asked { started: on_started, fate: on_fate, sockets })
    }

    /// Ask for sockets in the network of a sandbox that runs. Under a name of its own: that of the sandbox may be the name of
    /// another process 1, whose end is about to be told and takes along what waits under it.
    pub async fn listen(&self, process: BorrowedFd<'_>, namespaces: u64) -> io::Result<AskedSockets> {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let id = format!("sockets-{}", ASKED.fetch_add(1, Ordering::Relaxed));
        let sockets = self.expect_sockets(&id);
        let sent = self.channel.send(&ToLauncher::Listen { id: id.clone(), namespaces }, &[process]).await;
        if let Err(error) = sent {
            lock(&self.entries).sockets.remove(&id);
            return Err(error);
        }
        Ok(sockets)
    }

    /// Have the tree of a sandbox that runs written to a pipe. Whoever does not want it any more closes the other end.
    pub async fn pack(
        &self,
        request: PackRequest,
        process: BorrowedFd<'_>,
        pipe: BorrowedFd<'_>,
    ) -> io::Result<AskedPack> {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let id = format!("pack-{}", ASKED.fetch_add(1, Ordering::Relaxed));
        let (pack, on_pack) = oneshot::channel();
        lock(&self.entries).packs.insert(id.clone(), pack);
        let sent = self.channel.send(&ToLauncher::Pack { id: id.clone(), request }, &[process, pipe]).await;
        if let Err(error) = sent {
            lock(&self.entries).packs.remove(&id);
            return Err(error);
        }
        Ok(on_pack)
    }

    /// Have what a sandbox that runs has changed written to a pipe.
    pub async fn look(
        &self,
        request: LookRequest,
        process: BorrowedFd<'_>,
        pipe: BorrowedFd<'_>,
    ) -> io::Result<AskedLook> {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let id = format!("look-{}", ASKED.fetch_add(1, Ordering::Relaxed));
        let (look, on_look) = oneshot::channel();
        lock(&self.entries).looks.insert(id.clone(), look);
        let sent = self.channel.send(&ToLauncher::Look { id: id.clone(), request }, &[process, pipe]).await;
        if let Err(error) = sent {
            lock(&self.entries).looks.remove(&id);
            return Err(error);
        }
        Ok(on_look)
    }

    /// Have it end all that is ephemeral, and itself, and wait until it has.
    pub async fn close(&self) {
        self.channel.finish();
        let gone = async {
            // It closes its end of the channel as the last thing that it does.
            while self.is_running() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(CLOSING, gone).await.is_err() {
            tracing::warn!("the launcher takes its time to end; what it has made ends with it");
        }
    }

    fn expect_sockets(&self, id: &str) -> AskedSockets {
        let (sockets, on_sockets) = oneshot::channel();
        lock(&self.entries).sockets.insert(id.to_owned(), sockets);
        on_sockets
    }

    /// Ask for the end of a sandbox without waiting for it.
    pub fn destroy(&self, id: &str) {
        let message = ToLauncher::Destroy { id: id.to_owned() };
        if matches!(self.channel.try_send(&message), Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            let channel = self.channel.clone();
            tokio::spawn(async move {
                // A launcher that is gone has ended the sandbox already.
                let _ = channel.send(&message, &[]).await;
            });
        }
    }
}

impl Drop for Launcher {
    /// The listener holds the channel; when it is gone, the launcher ends all that is ephemeral and then itself.
    fn drop(&mut self) {
        self.listener.abort();
        if let Some(mut process) = self.process.take() {
            // It ends a moment after us, and a program that lives on must not keep it as a zombie.
            std::thread::spawn(move || process.wait());
        }
    }
}

async fn listen(channel: Arc<Channel>, entries: Entries) {
    while let Ok(Some((message, descriptors))) = channel.receive::<FromLauncher>().await {
        let mut descriptors = descriptors.into_iter();
        match message {
            FromLauncher::Started { id } => {
                let mut entries = lock(&entries);
                let started = entries.sandboxes.get_mut(&id).and_then(|entry| entry.started.take());
                if let (Some(started), Some(process)) = (started, descriptors.next()) {
                    // A caller that went away has asked for its end already.
                    let _ = started.send(Started { process, channel: descriptors.next() });
                }
            }
            FromLauncher::NotCreated { id, failure } => settle(&entries, &id, Fate::NotCreated(failure)),
            FromLauncher::Gone { id } => settle(&entries, &id, Fate::Gone),
            FromLauncher::Listening { id } => {
                if let (Some(streams), Some(names)) = (descriptors.next(), descriptors.next()) {
                    hand_over(&entries, &id, Ok(Sockets { streams, names }));
                }
            }
            FromLauncher::NotListening { id, failure } => hand_over(&entries, &id, Err(failure)),
            FromLauncher::Looked { id, truncated } => tell_looker(&entries, &id, Ok(truncated)),
            FromLauncher::NotLooked { id, failure } => tell_looker(&entries, &id, Err(failure)),
            FromLauncher::Packed { id, packed } => tell_packer(&entries, &id, Ok(packed)),
            FromLauncher::NotPacked { id, failure } => tell_packer(&entries, &id, Err(failure)),
        }
    }
    let entries = std::mem::take(&mut *lock(&entries));
    for entry in entries.sandboxes.into_values() {
        entry.fate.send_replace(Fate::LauncherGone);
    }
}

fn settle(entries: &Entries, id: &str, fate: Fate) {
    let mut entries = lock(entries);
    // Nobody will make them any more.
    entries.sockets.remove(id);
    if let Some(entry) = entries.sandboxes.remove(id) {
        entry.fate.send_replace(fate);
    }
}

fn hand_over(entries: &Entries, id: &str, sockets: Result<Sockets, Failure>) {
    if let Some(waiting) = lock(entries).sockets.remove(id) {
        // A caller that went away has no use for them, and dropping them closes them.
        let _ = waiting.send(sockets);
    }
}

fn tell_looker(entries: &Entries, id: &str, looked: Result<bool, Failure>) {
    if let Some(waiting) = lock(entries).looks.remove(id) {
        // A caller that went away has closed the pipe already.
        let _ = waiting.send(looked);
    }
}

fn tell_packer(entries: &Entries, id: &str, packed: Result<PackedTree, PackFailure>) {
    if let Some(waiting) = lock(entries).packs.remove(id) {
        // A caller that went away has closed the pipe already.
        let _ = waiting.send(packed);
    }
}

fn lock(entries: &Entries) -> MutexGuard<'_, Owed> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}
