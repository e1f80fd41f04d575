//! The server's side of the launcher: requests out, fates in.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{oneshot, watch};

use crate::channel::Channel;
use crate::jail::Failure;
use crate::launcher::{self, Configuration, FromLauncher, Running, ToLauncher};
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

struct Entry {
    started: Option<oneshot::Sender<Started>>,
    fate: watch::Sender<Fate>,
}

type Entries = Arc<Mutex<HashMap<String, Entry>>>;

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

    /// Ask for a sandbox. Its end is told by the second receiver, also when it never came to be.
    pub async fn create(&self, plan: Plan) -> io::Result<(oneshot::Receiver<Started>, watch::Receiver<Fate>)> {
        let (started, on_started) = oneshot::channel();
        let (fate, on_fate) = watch::channel(Fate::Alive);
        let entry = Entry { started: Some(started), fate };
        let id = plan.id.clone();
        lock(&self.entries).insert(id.clone(), entry);
        let sent = self.channel.send(&ToLauncher::Create(Box::new(plan)), &[]).await;
        if let Err(error) = sent {
            lock(&self.entries).remove(&id);
            return Err(error);
        }
        Ok((on_started, on_fate))
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
                let started = entries.get_mut(&id).and_then(|entry| entry.started.take());
                if let (Some(started), Some(process)) = (started, descriptors.next()) {
                    // A caller that went away has asked for its end already.
                    let _ = started.send(Started { process, channel: descriptors.next() });
                }
            }
            FromLauncher::NotCreated { id, failure } => settle(&entries, &id, Fate::NotCreated(failure)),
            FromLauncher::Gone { id } => settle(&entries, &id, Fate::Gone),
        }
    }
    let entries = std::mem::take(&mut *lock(&entries));
    for entry in entries.into_values() {
        entry.fate.send_replace(Fate::LauncherGone);
    }
}

fn settle(entries: &Entries, id: &str, fate: Fate) {
    if let Some(entry) = lock(entries).remove(id) {
        entry.fate.send_replace(fate);
    }
}

fn lock(entries: &Entries) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}
