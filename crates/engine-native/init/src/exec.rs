//! One exec: a supervisor that owns the whole tree of processes, and the command itself.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::ahead::Ahead;
use crate::identity;
use crate::leaving::{Exits, Handover};
use crate::log::Log;
use crate::memory;
use crate::syscall::{self, Reaped};
use crate::tree::{self, Doings};
use crate::weaken;
use crate::wire::{self, EndCause, Exec, ExecEnd, ExecStage, FromExec, LogEnd, Prelude, Terminal, ToExec};

type Failure = (ExecStage, i32);

/// Starting takes a millisecond. Whoever hangs for so long is ended, and the sandbox with it.
pub const MOST_START_SECONDS: u32 = 30;

/// What was begun ahead may do so much as it starts, modules and all. Then it does nothing until somebody wants it: an image can
/// have its interpreters do what it likes, and no owner would answer for that.
const START_AHEAD: Duration = Duration::from_secs(5);

/// How often what was stopped is looked at. A process can have a timer wake it, so being told to stop is no bound; whoever does
/// something all the same is ended.
const LOOK: Duration = Duration::from_secs(5);

fn failed(stage: ExecStage) -> impl Fn(rustix::io::Errno) -> Failure {
    move |error| (stage, error.raw_os_error())
}

/// Run one exec to its end, in a process of its own that has no other child. `signals` tells when a child ends.
pub fn supervise(request: Exec, channel: OwnedFd, streams: Vec<OwnedFd>, signals: OwnedFd) {
    match start(&request, streams, signals) {
        Err((stage, errno)) => {
            let _ = wire::send(channel.as_fd(), &FromExec::NotStarted { stage, errno }, &[]);
        }
        Ok(started) => {
            let passed: Vec<_> = started.controller.iter().map(AsFd::as_fd).collect();
            let told = wire::send(channel.as_fd(), &FromExec::Started, &passed);
            // The terminal is the server's now: it hangs up when the server closes it.
            let started = Started { controller: None, ..started };
            let channel = told.is_ok().then_some(channel);
            Supervisor { request, channel, started, ended: None, left_dead: false, waiting: Waiting::Starts }.run();
        }
    }
}

struct Started {
    pid: i32,
    at: Instant,
    memory_kills: Option<u64>,
    orphans: tree::Orphans,
    signals: OwnedFd,
    /// The side of the terminal that is not the command's.
    controller: Option<OwnedFd>,
    log: Option<Log>,
    /// Of a command with a terminal, for as long as it runs: closing it tells its end to who reads from there.
    lifeline: Vec<OwnedFd>,
    /// It was begun, and has no script yet.
    ahead: Option<Ahead>,
    /// What it had used of processors before it got one.
    cpu_before: Duration,
    /// Where it asks before it ends, if it was begun ahead: whoever has it run waits for nothing but its end.
    exits: Option<Exits>,
}

fn start(request: &Exec, streams: Vec<OwnedFd>, signals: OwnedFd) -> Result<Started, Failure> {
    let (controller, log, streams, lifeline) = match request.terminal {
        _ if request.logged => {
            let (log, streams) = open_log(request).map_err(|error| (ExecStage::Log, errno_of(&error)))?;
            (None, Some(log), streams, Vec::new())
        }
        Some(size) => {
            let (controller, terminal) = open_terminal(size, request.account).map_err(failed(ExecStage::Terminal))?;
            (Some(controller), None, vec![terminal], streams)
        }
        None => (None, None, streams, Vec::new()),
    };
    let ahead = match (&request.script, request.ahead) {
        (Some((path, _)), true) => Some(Ahead::new(path, request.account).map_err(failed(ExecStage::Script))?),
        (Some(_) | None, _) => None,
    };
    let handover = ahead.as_ref().and_then(|_| Handover::new().ok());
    let (at, memory_kills) = (Instant::now(), memory::kills());
    let mut failure = None;
    // Before it is the program it is the programs' user already, and they could stop it: then we hang until it goes on.
    syscall::end_after(MOST_START_SECONDS);
    let pid = syscall::run_in_borrowed_memory(&mut || failure = Some(become_command(request, &streams, &handover)));
    syscall::end_after(0);
    let failure = match (pid, failure) {
        (Ok(pid), None) => {
            let (orphans, cpu_before) = (tree::Orphans::of(pid), Duration::ZERO);
            let exits = handover.and_then(Handover::listener);
            return Ok(Started {
                pid,
                at,
                memory_kills,
                orphans,
                signals,
                controller,
                log,
                lifeline,
                ahead,
                cpu_before,
                exits,
            });
        }
        (Ok(pid), Some(failure)) => {
            let _ = syscall::reap(pid);
            failure
        }
        (Err(error), _) => (ExecStage::Fork, errno_of(&error)),
    };
    if let Some(ahead) = ahead {
        ahead.remove();
    }
    Err(failure)
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Nothing to read, and both streams into the log.
fn open_log(request: &Exec) -> io::Result<(Log, Vec<OwnedFd>)> {
    let (log, output) = Log::open(&request.argv)?;
    let errors = output.try_clone()?;
    Ok((log, vec![open_nothing()?, output, errors]))
}

/// A program that is root in its sandbox may have put something else there, which we would wait for.
fn open_nothing() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let nothing = rustix::fs::open("/dev/null", flags, Mode::empty())?;
    let found = rustix::fs::fstat(&nothing)?;
    let is_nothing = FileType::from_raw_mode(found.st_mode).is_char_device()
        && (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev)) == (1, 3);
    if !is_nothing {
        return Err(Errno::NODEV);
    }
    rustix::io::ioctl_fionbio(&nothing, false)?;
    Ok(nothing)
}

fn open_terminal(size: Terminal, account: Option<(u32, u32)>) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    identity::as_user(account, || {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = rustix::pty::openpt(flags)?;
        rustix::pty::unlockpt(&controller)?;
        let terminal = match rustix::pty::ioctl_tiocgptpeer(&controller, flags) {
            // Kernels that are programs themselves may have it by its name only (gVisor).
            Err(Errno::NOTTY) => {
                let name = rustix::pty::ptsname(&controller, Vec::new())?;
                rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?
            }
            result => result?,
        };
        set_size(&controller, size)?;
        Ok((controller, terminal))
    })
}

fn set_size(controller: &OwnedFd, size: Terminal) -> rustix::io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(controller, size)
}

/// The last steps before the user's program. Returns only when one of them fails.
fn become_command(request: &Exec, streams: &[OwnedFd], handover: &Option<Handover>) -> Failure {
    let prepare = || -> Result<(), Failure> {
        let terminal = |error: rustix::io::Errno| (ExecStage::Terminal, error.raw_os_error());
        rustix::process::setsid().map_err(terminal)?;
        if request.terminal.is_some() {
            rustix::process::ioctl_tiocsctty(&streams[0]).map_err(terminal)?;
        }
        let stream = |index: usize| streams.get(index).or(streams.first()).ok_or((ExecStage::Terminal, libc::EBADF));
        rustix::stdio::dup2_stdin(stream(0)?).map_err(terminal)?;
        rustix::stdio::dup2_stdout(stream(1)?).map_err(terminal)?;
        rustix::stdio::dup2_stderr(stream(if request.joined { 1 } else { 2 })?).map_err(terminal)?;
        identity::become_user(request.account).map_err(failed(ExecStage::Identity))?;
        let directory = c_string(request.work_directory.clone())?;
        rustix::process::chdir(&directory).map_err(failed(ExecStage::WorkDirectory))?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        if let (Some((path, contents)), false) = (&request.script, request.ahead) {
            write_script(path, contents).map_err(failed(ExecStage::Script))?;
        }
        if let Some(Prelude { directory, file, contents }) = request.prelude.as_deref() {
            let _ = rustix::fs::mkdir(directory.as_slice(), Mode::RWXU);
            let _ = write_script(&[directory.as_slice(), file].join(&b'/'), contents);
        }
        syscall::reset_signals();
        if weaken::is_asked(weaken::LEAK_DESCRIPTOR) {
            let root = rustix::fs::open("/", OFlags::RDONLY, Mode::empty());
            std::mem::forget(root);
            if let Some(layer) = syscall::inherited_descriptor(wire::INIT_SCRATCH) {
                let _ = syscall::place_descriptor(layer.as_fd(), wire::INIT_SCRATCH);
                std::mem::forget(layer);
            }
        }
        Ok(())
    };
    let run = || -> Result<Failure, Failure> {
        prepare()?;
        let argv = request.argv.iter().map(|text| c_string(text.as_str())).collect::<Result<Vec<_>, _>>()?;
        let environment = request
            .environment
            .iter()
            .map(|(name, value)| c_string(format!("{name}={value}")))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(handover) = handover {
            handover.ask_before_exit().map_err(|error| (ExecStage::Program, errno_of(&error)))?;
        }
        Ok((ExecStage::Program, exec_in_search_path(request, &argv, &environment)))
    };
    run().unwrap_or_else(|failure| failure)
}

pub fn write_script(path: &[u8], contents: &[u8]) -> rustix::io::Result<()> {
    // Programs may have put something there that is waited for.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)) {
        Err(Errno::NXIO) => return Err(Errno::INVAL),
        opened => opened?,
    };
    if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file() {
        return Err(Errno::INVAL);
    }
    write_all(&file, contents)
}

pub fn write_all(file: impl AsFd, contents: &[u8]) -> rustix::io::Result<()> {
    let mut rest = contents;
    while !rest.is_empty() {
        rest = &rest[rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?..];
    }
    Ok(())
}

fn c_string(bytes: impl Into<Vec<u8>>) -> Result<CString, Failure> {
    CString::new(bytes).map_err(|_| (ExecStage::Program, libc::EINVAL))
}

/// What `execvp` does, with the `PATH` of the new program instead of ours.
fn exec_in_search_path(request: &Exec, argv: &[CString], environment: &[CString]) -> i32 {
    let program = request.argv[0].as_str();
    if program.contains('/') {
        return syscall::exec(&argv[0], argv, environment).raw_os_error().unwrap_or(libc::EIO);
    }
    let search_path =
        request.environment.iter().find(|(name, _)| name == "PATH").map_or("/usr/bin:/bin", |(_, value)| value);
    let mut errno = libc::ENOENT;
    for directory in search_path.split(':').filter(|directory| directory.starts_with('/')) {
        let Ok(path) = CString::new(format!("{directory}/{program}")) else { continue };
        match syscall::exec(&path, argv, environment).raw_os_error().unwrap_or(libc::EIO) {
            libc::ENOENT | libc::ENOTDIR => {}
            // A program that may not be run here may still be found in a later directory.
            libc::EACCES => errno = libc::EACCES,
            other => return other,
        }
    }
    errno
}

/// Dead children that are collected in one go. A command whose children end as fast as they are collected must not keep its
/// supervisor from its deadline and from the server.
const MOST_COLLECTED: usize = 256;

struct Supervisor {
    request: Exec,
    /// `None` once the server is gone and the exec may go on without it.
    channel: Option<OwnedFd>,
    started: Started,
    ended: Option<i32>,
    /// More children may be dead than were collected.
    left_dead: bool,
    waiting: Waiting,
}

/// How far one has come that was begun ahead and has no script yet.
enum Waiting {
    Starts,
    /// It has had its time. Stopping may take a moment, so what it has done is read later.
    Stopped {
        done: Option<Doings>,
        next_look: Instant,
    },
}

struct Ready {
    signals: bool,
    channel: bool,
    exits: bool,
}

enum Event {
    Ended,
    Asked(ToExec),
    Disconnected,
    DeadlinePassed,
}

impl Supervisor {
    fn run(&mut self) {
        let cause = loop {
            match self.wait() {
                Event::Ended => break EndCause::Itself,
                Event::Asked(ToExec::Signal(number)) => self.signal(number),
                Event::Asked(ToExec::Kill) => break EndCause::Asked,
                Event::Asked(ToExec::Go { script, timeout_milliseconds }) => {
                    if !self.go(&script, timeout_milliseconds) {
                        break EndCause::Asked;
                    }
                }
                Event::Disconnected if self.request.detached => self.channel = None,
                Event::Disconnected => break EndCause::Asked,
                Event::DeadlinePassed => break EndCause::Deadline,
            }
        };
        let wall = self.started.at.elapsed();
        let mut main_status = self.ended;
        // What a command of a build changed is kept when it has ended, and must not change any more.
        let leaves_nothing = cause != EndCause::Itself || self.request.account.is_some();
        let tree_empty = leaves_nothing && {
            let main = self.started.pid;
            tree::kill_descendants(self.started.orphans, |reaped| {
                if reaped.pid == main {
                    main_status = Some(reaped.status);
                }
            })
        };
        if let Some(ahead) = self.started.ahead.take() {
            ahead.remove();
        }
        let usage = syscall::children_usage();
        let end = ExecEnd { tree_empty, ..self.end(main_status.unwrap_or(libc::SIGKILL), cause, wall, usage) };
        if let Some(log) = &mut self.started.log {
            log.take();
            log.ended(LogEnd { status: end.status, cause });
        }
        if let Some(channel) = self.channel.take() {
            let _ = wire::send(channel.as_fd(), &FromExec::Ended(end), &[]);
        }
        self.started.lifeline.clear();
        self.stay_for_daemons();
    }

    fn end(&self, status: i32, cause: EndCause, wall: Duration, usage: syscall::Usage) -> ExecEnd {
        ExecEnd {
            status,
            cause,
            wall_microseconds: wall.as_micros() as u64,
            cpu_microseconds: usage.cpu.saturating_sub(self.started.cpu_before).as_micros() as u64,
            peak_memory: usage.peak_memory,
            tree_empty: false,
            memory_ran_out: memory::kills() > self.started.memory_kills,
        }
    }

    /// Somebody is about to end. When it is the command, and nobody else is there who could write, its end is told before it comes.
    fn hear_exit(&mut self) {
        let Some(exits) = &self.started.exits else { return };
        let Ok(asking) = exits.hear() else { return };
        let pid = self.started.pid;
        if self.started.ahead.is_none()
            && let Some(status) = asking.status_of(pid)
            && self.channel.is_some()
            && tree::is_alone(pid, self.started.orphans)
        {
            let wall = self.started.at.elapsed();
            let usage = syscall::children_usage().and(tree::usage_of(pid));
            let end = self.end(status, EndCause::Itself, wall, usage);
            let _ = self.channel.take().map(|channel| wire::send(channel.as_fd(), &FromExec::Leaving(end), &[]));
        }
    }

    /// Give one that was begun ahead its script: from here on it is a command like any other. `false` when it cannot be.
    fn go(&mut self, script: &[u8], timeout_milliseconds: u64) -> bool {
        let handed_over = match &self.started.ahead {
            Some(ahead) => {
                // Before the script is there: it may have ended the moment after.
                self.started.at = Instant::now();
                self.started.memory_kills = memory::kills();
                self.started.cpu_before = syscall::process_cpu(self.started.pid).unwrap_or_default();
                self.request.timeout_milliseconds = timeout_milliseconds;
                if let Waiting::Stopped { .. } = self.waiting {
                    tree::resume_descendants(self.started.orphans);
                }
                ahead.hand_over(script)
            }
            None => Err(Errno::ALREADY),
        };
        if handed_over.is_ok() {
            self.started.ahead = None;
        }
        let answer = match handed_over {
            Ok(()) => FromExec::Started,
            Err(error) => FromExec::NotStarted { stage: ExecStage::Script, errno: error.raw_os_error() },
        };
        // One who is gone is noticed by the next turn.
        let _ = self.channel.as_ref().map(|channel| wire::send(channel.as_fd(), &answer, &[]));
        handed_over.is_ok()
    }

    fn wait(&mut self) -> Event {
        loop {
            let left = self.deadline().saturating_duration_since(Instant::now());
            if left.is_zero() && !(self.started.ahead.is_some() && self.keeps_still()) {
                return Event::DeadlinePassed;
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let ready = self.poll(Some(&timeout));
            // Children first: a command that ended in the moment it was to be killed has ended by itself.
            if ready.signals {
                self.collect();
                if self.ended.is_some() {
                    return Event::Ended;
                }
            }
            if ready.exits {
                self.hear_exit();
            }
            if ready.channel
                && let Some(channel) = &self.channel
            {
                return match wire::receive::<ToExec>(channel.as_fd()) {
                    Ok(Some((message, _))) => Event::Asked(message),
                    Ok(None) | Err(_) => Event::Disconnected,
                };
            }
        }
    }

    /// When to end the command, or to look at one that waits for its script.
    fn deadline(&self) -> Instant {
        if self.started.ahead.is_none() {
            return self.started.at + Duration::from_millis(self.request.timeout_milliseconds);
        }
        match self.waiting {
            Waiting::Starts => self.started.at + START_AHEAD,
            Waiting::Stopped { next_look, .. } => next_look,
        }
    }

    /// Have one that was begun ahead do nothing until its script comes; `false` when it does something.
    fn keeps_still(&mut self) -> bool {
        let done = match &mut self.waiting {
            Waiting::Starts if tree::pause_descendants(self.started.orphans) => None,
            Waiting::Starts => return false,
            Waiting::Stopped { done, .. } => {
                let now = Doings::of_descendants(self.started.orphans);
                if now.is_none() || done.as_ref().is_some_and(|before| Some(before) != now.as_ref()) {
                    return false;
                }
                now
            }
        };
        self.waiting = Waiting::Stopped { done, next_look: Instant::now() + LOOK };
        true
    }

    /// Wait for something to happen; output for the log is taken on the way.
    fn poll(&mut self, timeout: Option<&Timespec>) -> Ready {
        let mut polled = vec![PollFd::new(&self.started.signals, PollFlags::IN)];
        polled.extend(self.channel.iter().map(|channel| PollFd::new(channel, PollFlags::IN)));
        polled.extend(self.started.exits.iter().map(|exits| PollFd::new(exits, PollFlags::IN)));
        let log = self.started.log.iter().filter_map(|log| log.pipe.as_ref());
        polled.extend(log.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let at_once = Timespec::default();
        let _ = rustix::event::poll(&mut polled, if self.left_dead { Some(&at_once) } else { timeout });
        let mut events = polled.iter().map(PollFd::revents);
        let signals = events.next().is_some_and(|events| !events.is_empty()) || self.left_dead;
        let channel = self.channel.is_some() && events.next().is_some_and(|events| !events.is_empty());
        let exits = self.started.exits.as_ref().and_then(|_| events.next()).unwrap_or(PollFlags::empty());
        drop(events);
        drop(polled);
        // Nobody is left who could ask.
        if exits.contains(PollFlags::HUP) {
            self.started.exits = None;
        }
        if let Some(log) = &mut self.started.log {
            log.take();
        }
        Ready { signals, channel, exits: exits.contains(PollFlags::IN) }
    }

    /// Collect dead children: the command, and orphans that became ours.
    fn collect(&mut self) {
        self.hear_signals();
        for _ in 0..MOST_COLLECTED {
            let Ok(Some(Reaped { pid, status })) = syscall::reap_any() else {
                self.left_dead = false;
                return;
            };
            if pid == self.started.pid {
                self.ended = Some(status);
            }
        }
        self.left_dead = true;
    }

    /// However many have died: there is one record for all that nobody was told of, and another one is for the next round.
    fn hear_signals(&self) {
        let _ = rustix::io::read(&self.started.signals, &mut [0_u8; 128]);
    }

    fn signal(&self, number: i32) {
        let signal = Signal::from_named_raw(number);
        if let (Some(group), Some(signal)) = (Pid::from_raw(self.started.pid), signal) {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// What the command left running still has us as its parent; leave when the last of it is gone.
    fn stay_for_daemons(&mut self) {
        loop {
            match syscall::reap_any() {
                Ok(Some(_)) => {}
                Err(_) => return,
                Ok(None) => {
                    self.left_dead = false;
                    if self.poll(None).exits {
                        self.hear_exit();
                    }
                    self.hear_signals();
                }
            }
        }
    }
}
