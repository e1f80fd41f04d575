//! The main loop of process 1.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SocketFlags;

use crate::files;
use crate::syscall;
use crate::wire::{self, FromInit, ToInit, Work};
use crate::worker::Worker;

/// The worker that just got its work may share a processor with us, and it is waited for; its successor is not.
const WORK_FIRST: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// One connection, inherited; the sandbox ends with it.
    Attached,
    /// Whoever may open the socket's path connects; the sandbox ends when nobody has used it for so long.
    Listening { idle: Duration },
}

struct Init {
    mode: Mode,
    signals: OwnedFd,
    listener: Option<OwnedFd>,
    connections: Vec<OwnedFd>,
    /// Workers that have work.
    children: HashSet<i32>,
    /// Those of them that see to a command and what it leaves behind.
    commands: HashSet<i32>,
    command_ended: Option<Instant>,
    /// The one that stands by.
    worker: Option<Worker>,
    /// When the next one is made, if nobody needs it before.
    worker_due: Instant,
    deadline: Option<Instant>,
    unused_since: Instant,
}

pub fn serve(channel: OwnedFd, mode: Mode) -> io::Result<()> {
    let mut init = Init {
        mode,
        signals: syscall::signal_descriptor(&[libc::SIGCHLD])?,
        listener: None,
        connections: Vec::new(),
        children: HashSet::new(),
        commands: HashSet::new(),
        command_ended: None,
        worker: None,
        worker_due: Instant::now(),
        deadline: None,
        unused_since: Instant::now(),
    };
    match mode {
        Mode::Attached => {
            wire::send(channel.as_fd(), &FromInit::Ready, &[])?;
            init.connections.push(channel);
        }
        Mode::Listening { .. } => {
            // Listening from here makes us the peer that a client sees when it asks who is on the other side.
            rustix::net::listen(&channel, 64)?;
            init.listener = Some(channel);
        }
    }
    loop {
        init.keep_a_worker();
        let Some(ready) = init.wait()? else { return Ok(()) };
        if ready.signals {
            init.collect_dead()?;
        }
        if ready.listener {
            init.accept();
        }
        // From the back, so that removing one does not move those still to be looked at.
        for index in ready.connections.into_iter().rev() {
            if !init.hear(index) {
                drop(init.connections.swap_remove(index));
                init.touch();
                if matches!(init.mode, Mode::Attached) {
                    return Ok(());
                }
            }
        }
    }
}

struct Ready {
    signals: bool,
    listener: bool,
    connections: Vec<usize>,
}

impl Init {
    /// Wait until there is something to do; `None` when our time is over.
    fn wait(&self) -> io::Result<Option<Ready>> {
        let now = Instant::now();
        let end = self.end();
        if end.is_some_and(|end| end <= now) {
            return Ok(None);
        }
        let worker_due = self.worker.is_none().then_some(self.worker_due);
        let timeout = [end, worker_due].into_iter().flatten().min().map(|next| {
            let left = next.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        polled.extend(self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        polled.extend(self.connections.iter().map(|connection| PollFd::new(connection, PollFlags::IN)));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = polled.iter().map(|descriptor| !descriptor.revents().is_empty());
        let signals = events.next().unwrap_or(false);
        let listener = self.listener.is_some() && events.next().unwrap_or(false);
        let connections = events.enumerate().filter_map(|(index, ready)| ready.then_some(index)).collect();
        Ok(Some(Ready { signals, listener, connections }))
    }

    fn end(&self) -> Option<Instant> {
        let unused = self.children.is_empty() && self.connections.is_empty();
        let idle_end = match self.mode {
            Mode::Listening { idle } if unused => Some(self.unused_since + idle),
            Mode::Listening { .. } | Mode::Attached => None,
        };
        [self.deadline, idle_end].into_iter().flatten().min()
    }

    fn touch(&mut self) {
        self.unused_since = Instant::now();
    }

    fn collect_dead(&mut self) -> io::Result<()> {
        let mut record = [0; 128];
        while rustix::io::read(&self.signals, &mut record).is_ok() {}
        loop {
            match syscall::reap_any() {
                Ok(Some(reaped)) => {
                    if self.worker.as_ref().is_some_and(|worker| worker.pid == reaped.pid) {
                        self.worker = None;
                    }
                    if self.children.remove(&reaped.pid) {
                        self.touch();
                    }
                    if self.commands.remove(&reaped.pid) {
                        self.command_ended = Some(Instant::now());
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        // A client that is gone again, or no room for it: neither may end the sandbox.
        if let Ok(connection) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
            && wire::send(connection.as_fd(), &FromInit::Ready, &[]).is_ok()
        {
            self.connections.push(connection);
            self.touch();
        }
    }

    /// Serve one message; `false` when the connection is over.
    fn hear(&mut self, index: usize) -> bool {
        let connection = self.connections[index].as_fd();
        let Ok(Some((message, descriptors))) = wire::receive::<ToInit>(connection) else { return false };
        let answer = match message {
            ToInit::Work(work) => {
                self.give(&work, &descriptors);
                return true;
            }
            ToInit::SetDeadline { milliseconds } => {
                self.deadline = milliseconds.map(|milliseconds| Instant::now() + Duration::from_millis(milliseconds));
                FromInit::DeadlineSet
            }
            ToInit::Measure => {
                let helpers = 1 + usize::from(self.worker.is_some()) + self.children.len();
                let ended = self.command_ended.filter(|_| self.commands.is_empty());
                FromInit::Measured {
                    disk: files::used_bytes(),
                    helpers: helpers as u64,
                    quiet_milliseconds: ended.map(|ended| ended.elapsed().as_millis() as u64),
                }
            }
        };
        wire::send(self.connections[index].as_fd(), &answer, &[]).is_ok()
    }

    /// When there is no room for another child, dropping the work's channel tells its caller.
    fn give(&mut self, work: &Work, descriptors: &[OwnedFd]) {
        if let Ok(worker) = self.worker.take().map_or_else(Worker::new, Ok) {
            let pid = worker.pid;
            if worker.give(work, descriptors).is_ok() {
                self.children.insert(pid);
                if matches!(work, Work::Exec(_)) {
                    self.commands.insert(pid);
                }
                self.touch();
            }
        }
        self.worker_due = Instant::now() + WORK_FIRST;
    }

    fn keep_a_worker(&mut self) {
        if self.worker.is_none() && self.worker_due <= Instant::now() {
            self.worker = Worker::new().ok();
            // Where there is no room for one, it is tried again with the next work, or after a while.
            self.worker_due = Instant::now() + Duration::from_secs(1);
        }
    }
}
