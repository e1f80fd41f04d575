//! The main loop of process 1.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::files;
use crate::gate::Gate;
use crate::network::Network;
use crate::signs::{Heard, Signs};
use crate::syscall;
use crate::wire::{self, FromExec, FromInit, ToInit, Work};
use crate::worker::Worker;

/// The worker that just got its work may share a processor with us, and it is waited for; its successor is not.
const WORK_FIRST: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// One connection, inherited; the sandbox ends with it.
    Attached,
    /// Whoever may open the socket's path connects; the sandbox ends when nobody has used it for so long.
    Listening { idle: Duration, tenure: Tenure },
}

/// For how long one that listens is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    Own,
    /// It is to take the place of another, which is still there: whoever made it has to confirm it before going away.
    OnTrial,
    /// It ends with the connection that came first, and when none comes.
    WithFirst,
}

/// Whoever asked for a sandbox connects to it by then.
const FIRST_PATIENCE: Duration = Duration::from_secs(30);

/// What is only there in a sandbox that somebody else's daemon made.
#[derive(Debug, Default)]
pub struct Around {
    /// Asks those who connect who they are.
    pub gate: Option<Gate>,
    /// For whoever serves the sandbox's network.
    pub network: Network,
    /// When it went on with the files of an earlier one. That is a use, although no command has run yet.
    pub resumed_at: Option<Instant>,
    /// Of one who comes as all others do, and is there from the start.
    pub bridge: Option<OwnedFd>,
}

/// How long a freeze waits for what is about to end: helpers end a moment after their work was answered.
const FREEZE_PATIENCE: Duration = Duration::from_millis(200);

/// No work is taken any more.
#[derive(Clone, Copy, Debug)]
struct Freeze {
    /// The connection that asked for it.
    by: RawFd,
    /// Until when it may be refused; `None` once it was answered.
    refused_at: Option<Instant>,
}

struct Init {
    mode: Mode,
    signals: OwnedFd,
    listener: Option<OwnedFd>,
    gate: Option<Gate>,
    network: Network,
    connections: Vec<OwnedFd>,
    /// Of those behind the gate, which are bridges.
    signs: Signs,
    /// The connection that came first.
    first: Option<RawFd>,
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
    freeze: Option<Freeze>,
    scratch: Vec<OwnedFd>,
    /// Inodes of the writable layer when we started.
    first_inodes: u64,
    /// More children may be dead than were collected.
    left_dead: bool,
}

/// Dead children that are collected in one go: whoever has something to say is heard, however fast programs end.
const MOST_COLLECTED: usize = 256;

/// Whether a record of a signal is a stop by the daemon. Programs that are root can send us the same signal, and the kernel says
/// of a sender whether it is inside: one that is not has no number here. That is true of what was sent by `kill`, whose code
/// nobody else can give; with other codes a sender says itself who it is.
fn is_stop(record: &[u8; 128]) -> bool {
    let number = |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    let (signal, code, sender) = (number(0), number(8), number(12));
    (signal, code, sender) == (libc::SIGTERM, libc::SI_USER, 0)
}

/// Why process 1 has nothing more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its time is over, or nobody is there for whom it was.
    Over,
    /// The daemon that started it wants it to stop.
    Stopped,
}

pub fn serve(channel: OwnedFd, mode: Mode, scratch: Vec<OwnedFd>, around: Around) -> io::Result<End> {
    // Only a daemon has something to say by a signal, and others may not send one.
    let signals: &[i32] = if around.gate.is_some() { &[libc::SIGCHLD, libc::SIGTERM] } else { &[libc::SIGCHLD] };
    let mut init = Init {
        mode,
        signals: syscall::signal_descriptor(signals)?,
        listener: None,
        gate: around.gate,
        network: around.network,
        connections: Vec::new(),
        signs: Signs::default(),
        first: None,
        children: HashSet::new(),
        commands: HashSet::new(),
        command_ended: around.resumed_at,
        worker: None,
        worker_due: Instant::now(),
        deadline: None,
        unused_since: Instant::now(),
        freeze: None,
        first_inodes: files::used(&scratch).inodes,
        scratch,
        left_dead: false,
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
            if let Some(bridge) = around.bridge {
                init.receive(bridge);
            }
        }
    }
    loop {
        init.keep_a_worker();
        let Some(ready) = init.wait()? else { return Ok(End::Over) };
        if ready.signals && init.hear_signals()? == Some(End::Stopped) {
            return Ok(End::Stopped);
        }
        init.answer_freeze();
        for index in ready.waiting.into_iter().rev() {
            if let Some(connection) = init.gate.as_mut().and_then(|gate| gate.hear(index)) {
                init.welcome(connection);
            }
        }
        // After those who waited: whoever comes may take the place of one of them, and the others move.
        if ready.listener {
            init.accept();
        }
        // From the back, so that removing one does not move those still to be looked at.
        for index in ready.connections.into_iter().rev() {
            if !init.hear(index) && init.part_with(index) {
                return Ok(End::Over);
            }
        }
        // After they were heard: all of us may have been stopped for a while.
        while let Some(index) = init.silent() {
            if init.part_with(index) {
                return Ok(End::Over);
            }
        }
    }
}

struct Ready {
    signals: bool,
    listener: bool,
    waiting: Vec<usize>,
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
        let refused_at = self.freeze.and_then(|freeze| freeze.refused_at);
        let sign_due = self.signs.due(self.heard());
        let at_once = self.left_dead.then_some(now);
        let timeout = [end, worker_due, refused_at, sign_due, at_once].into_iter().flatten().min().map(|next| {
            let left = next.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        // Whoever else wants something waits in line, until it goes on here or at a successor.
        let heard = |connection: &OwnedFd| match self.freeze.is_none_or(|freeze| freeze.by == connection.as_raw_fd()) {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        };
        let accepted = if self.freeze.is_none() { PollFlags::IN } else { PollFlags::empty() };
        polled.extend(self.listener.iter().map(|listener| PollFd::new(listener, accepted)));
        let waiting = self.gate.as_ref().map_or(&[][..], Gate::waiting);
        polled.extend(waiting.iter().map(|connection| PollFd::new(connection, accepted)));
        polled.extend(self.connections.iter().map(|connection| PollFd::new(connection, heard(connection))));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = polled.iter().map(|descriptor| !descriptor.revents().is_empty());
        let signals = events.next().unwrap_or(false) || self.left_dead;
        let listener = self.listener.is_some() && events.next().unwrap_or(false);
        let waiting = events.by_ref().take(waiting.len()).enumerate();
        let waiting = waiting.filter_map(|(index, ready)| ready.then_some(index)).collect();
        let connections = events.enumerate().filter_map(|(index, ready)| ready.then_some(index)).collect();
        Ok(Some(Ready { signals, listener, waiting, connections }))
    }

    fn end(&self) -> Option<Instant> {
        let unused = self.children.is_empty() && self.connections.is_empty();
        let idle_end = match self.mode {
            Mode::Listening { tenure: Tenure::WithFirst, .. } if unused => Some(self.unused_since + FIRST_PATIENCE),
            Mode::Listening { idle, tenure: Tenure::Own | Tenure::OnTrial } if unused => Some(self.unused_since + idle),
            Mode::Listening { .. } | Mode::Attached => None,
        };
        [self.deadline, idle_end].into_iter().flatten().min()
    }

    fn touch(&mut self) {
        self.unused_since = Instant::now();
    }

    /// Collect the dead, and hear whether we are to stop.
    fn hear_signals(&mut self) -> io::Result<Option<End>> {
        let mut record = [0; 128];
        let mut end = None;
        // One record for each of the two; one that comes meanwhile is for the next round.
        for _ in 0..2 {
            if rustix::io::read(&self.signals, &mut record).is_err() {
                break;
            }
            if is_stop(&record) {
                end = Some(End::Stopped);
            }
        }
        self.left_dead = false;
        for _ in 0..MOST_COLLECTED {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => self.collect(pid, status)?,
                Ok(None) | Err(Errno::CHILD) => return Ok(end),
                Err(error) => return Err(error.into()),
            }
        }
        self.left_dead = true;
        Ok(end)
    }

    /// Programs may be the same user as our helpers, and can then signal them. One that sees to a
    /// command, or stands by and may have been given one meanwhile, takes the sandbox with it: nobody could end that command
    /// and what it started any more.
    fn collect(&mut self, pid: Pid, status: WaitStatus) -> io::Result<()> {
        let number = pid.as_raw_pid();
        let stood_by = self.worker.as_ref().is_some_and(|worker| worker.pid == number);
        if status.stopped() {
            if stood_by || self.children.contains(&number) {
                // It may have been continued and have ended meanwhile.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            return Ok(());
        }
        if stood_by {
            self.worker = None;
        }
        if self.children.remove(&number) {
            self.touch();
        }
        let saw_to_command = self.commands.remove(&number);
        if saw_to_command {
            self.command_ended = Some(Instant::now());
        }
        if status.signaled() && (stood_by || saw_to_command) {
            return Err(io::Error::other("the supervisor of a command was killed"));
        }
        Ok(())
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        // A client that is gone again, or no room for it: neither may end the sandbox.
        let Ok(connection) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else { return };
        self.receive(connection);
    }

    fn receive(&mut self, connection: OwnedFd) {
        match &mut self.gate {
            Some(gate) => gate.receive(connection),
            None => self.welcome(connection),
        }
    }

    fn welcome(&mut self, connection: OwnedFd) {
        if wire::send(connection.as_fd(), &FromInit::Ready, &[]).is_ok() {
            self.first.get_or_insert(connection.as_raw_fd());
            if self.gate.is_some() {
                self.signs.saw(connection.as_raw_fd());
            }
            self.connections.push(connection);
            self.touch();
        }
    }

    fn heard(&self) -> Heard {
        self.freeze.map_or(Heard::All, |freeze| Heard::Only(freeze.by))
    }

    /// Whoever has not been heard for too long. While we are frozen that can be only the one who has asked for it: without it
    /// we would be frozen for ever.
    fn silent(&self) -> Option<usize> {
        let silent = self.signs.missed(self.heard())?;
        self.connections.iter().position(|connection| connection.as_raw_fd() == silent)
    }

    /// A connection is over; whether we are too.
    fn part_with(&mut self, index: usize) -> bool {
        let connection = self.connections.swap_remove(index);
        let descriptor = connection.as_raw_fd();
        self.network.left(descriptor, &self.connections);
        self.signs.forget(descriptor);
        if self.freeze.is_some_and(|freeze| freeze.by == descriptor) {
            self.thaw();
        }
        drop(connection);
        self.touch();
        match self.mode {
            Mode::Attached | Mode::Listening { tenure: Tenure::OnTrial, .. } => true,
            Mode::Listening { tenure: Tenure::WithFirst, .. } => self.first == Some(descriptor),
            Mode::Listening { tenure: Tenure::Own, .. } => false,
        }
    }

    fn thaw(&mut self) {
        self.freeze = None;
        self.signs.saw_all();
    }

    /// Serve one message; `false` when the connection is over.
    fn hear(&mut self, index: usize) -> bool {
        let connection = self.connections[index].as_fd();
        let Ok(Some((message, descriptors))) = wire::receive::<ToInit>(connection) else { return false };
        self.signs.saw_again(connection.as_raw_fd());
        let answer = match message {
            // Only whoever froze us is heard, and has no other work meanwhile.
            ToInit::Work(Work::Exec(_) | Work::Logs | Work::Dial { .. }) if self.freeze.is_some() => return true,
            ToInit::Work(work) => {
                self.give(&work, descriptors);
                return true;
            }
            ToInit::SetDeadline { milliseconds } => {
                self.deadline = milliseconds.map(|milliseconds| Instant::now() + Duration::from_millis(milliseconds));
                FromInit::DeadlineSet
            }
            ToInit::Measure => {
                // Behind a gate each connection is a bridge, which is a process in here too.
                let bridges = if self.gate.is_some() { self.connections.len() } else { 0 };
                let helpers = 1 + usize::from(self.worker.is_some()) + self.children.len() + bridges;
                let ended = self.command_ended.filter(|_| self.commands.is_empty());
                FromInit::Measured {
                    disk: files::used(&self.scratch).bytes,
                    helpers: helpers as u64,
                    quiet_milliseconds: ended.map(|ended| ended.elapsed().as_millis() as u64),
                }
            }
            ToInit::Freeze => {
                let by = connection.as_raw_fd();
                self.freeze = Some(Freeze { by, refused_at: Some(Instant::now() + FREEZE_PATIENCE) });
                self.answer_freeze();
                return true;
            }
            ToInit::Thaw => {
                self.thaw();
                return true;
            }
            ToInit::Beat => return true,
            ToInit::Stay => {
                if let Mode::Listening { idle, .. } = self.mode {
                    self.mode = Mode::Listening { idle, tenure: Tenure::Own };
                }
                FromInit::Staying
            }
            ToInit::Network => return self.network.ask(connection),
            ToInit::Present { .. } => FromInit::Ready,
        };
        wire::send(self.connections[index].as_fd(), &answer, &[]).is_ok()
    }

    fn answer_freeze(&mut self) {
        let Some(Freeze { by, refused_at: Some(refused_at) }) = self.freeze else { return };
        let answer = if self.children.is_empty() {
            let used = files::used(&self.scratch);
            FromInit::Frozen {
                bytes: used.bytes,
                inodes: used.inodes,
                untouched: used.inodes == self.first_inodes,
                deadline_milliseconds: self
                    .deadline
                    .map(|end| end.saturating_duration_since(Instant::now()).as_millis() as u64),
            }
        } else if refused_at <= Instant::now() {
            FromInit::Busy
        } else {
            return;
        };
        self.freeze = matches!(answer, FromInit::Frozen { .. }).then_some(Freeze { by, refused_at: None });
        if let Some(connection) = self.connections.iter().find(|connection| connection.as_raw_fd() == by) {
            // One that is gone is noticed by the next turn.
            let _ = wire::send(connection.as_fd(), &answer, &[]);
        }
    }

    /// When there is no room for another child, whoever wanted a command is told so, because silence would mean that the
    /// command was the end of whoever saw to it. For other work, dropping its channel tells enough.
    fn give(&mut self, work: &Work, descriptors: Vec<OwnedFd>) {
        let hand = |worker: Worker| {
            let pid = worker.pid;
            worker.give(work, &descriptors).ok().map(|()| pid)
        };
        let stood_by = self.worker.take();
        // Behind a gate one limit counts our processes with the programs'. The successor's place is taken before there is one
        // that could take it: a program that forks at once would be one more than allowed, and nobody could look in on it.
        if self.gate.is_some() && stood_by.is_some() {
            self.worker = Worker::new().ok();
        }
        // The one that stood by may have been killed meanwhile.
        let taken = stood_by.and_then(hand).or_else(|| Worker::new().ok().and_then(hand));
        if let Some(pid) = taken {
            self.children.insert(pid);
            if matches!(work, Work::Exec(_)) {
                self.commands.insert(pid);
            }
            self.touch();
        } else if let (Work::Exec(_), Some(channel)) = (work, descriptors.first()) {
            let _ = wire::send(channel.as_fd(), &FromExec::NO_ROOM, &[]);
        }
        drop(descriptors);
        if let Some(worker) = &mut self.worker {
            worker.settle();
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
