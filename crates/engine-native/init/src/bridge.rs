//! The way into a hosted sandbox: frames on stdin and stdout, messages and descriptors to process 1.
//!
//! One for each connection, started by the daemon or, the first, by process 1. It decides nothing: it makes the pipes and channels that a server on
//! the same kernel would have made, and carries what goes through them. When its stdin ends or is silent for too long, it
//! ends, and with it all its ends of pipes and channels: what was not detached is then killed by its supervisors.

mod conversation;
mod entrance;
pub mod first;
mod lanes;
mod passage;
mod presentation;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::dial::{Dial, Progress};
use crate::frame::{self, BEAT, Begin, Decoder, Frame, Kind, Lane, MAX_DATA, Malformed, SILENCE, Task};
use crate::gate;
use crate::syscall;
use crate::wire::{self, Catch, FromDial, FromEntrance, FromExec, FromInit, ToEntrance, ToInit, Work};
use conversation::{Conversation, Interest};
use entrance::{Come, Entrance};
use passage::Passage;

/// Process 1 may be about to start.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const CONNECT_PAUSE: Duration = Duration::from_millis(2);

/// What waits for the server to read. Nothing more is taken from inside meanwhile.
const MOST_OUTGOING: usize = 256 << 10;

/// Messages that wait for process 1, while another server has it frozen. Nothing more is heard from ours meanwhile.
const MOST_WAITING: usize = 64;

pub fn main() -> i32 {
    exit_code(run())
}

fn exit_code(ended: io::Result<()>) -> i32 {
    match ended {
        Ok(()) => 0,
        Err(error) => {
            // Nobody may be there to read it.
            let _ = writeln!(std::io::stderr(), "sandpen: {error}");
            4
        }
    }
}

fn run() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    carry(connect)
}

/// Between our streams and process 1, once that lets us in.
fn carry(connect: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<()> {
    // A reader that goes away is the end, and is noticed as such.
    syscall::ignore_signal(libc::SIGPIPE);
    // Programs may make many connections, each of which takes one of ours.
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    let nothing = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, nothing)?;
    let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    let mut decoder = Decoder::default();
    let token = presentation::receive(input, &mut decoder)?;
    let control = connect()?;
    wire::send(control.as_fd(), &ToInit::Present { token }, &[])?;
    match wire::receive(control.as_fd())? {
        Some((FromInit::Ready, _)) => {}
        Some(_) | None => return Err(io::Error::other("process 1 did not let us in")),
    }
    for descriptor in [input, output, control.as_fd()] {
        rustix::io::ioctl_fionbio(descriptor, true)?;
    }
    Bridge::new(control, decoder).serve(input, output)
}

fn timespec(left: Duration) -> Timespec {
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
}

fn connect() -> io::Result<OwnedFd> {
    let give_up = Instant::now() + CONNECT_PATIENCE;
    loop {
        match gate::connected() {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < give_up => {
                std::thread::sleep(CONNECT_PAUSE);
            }
            result => return result,
        }
    }
}

struct Bridge {
    control: OwnedFd,
    /// Messages for process 1 that it has no room for, with what travels along.
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Process 1 answers in its own order, so it is asked one thing at a time.
    asked: Option<Asker>,
    questions: VecDeque<(Asker, ToInit)>,
    tasks: BTreeMap<u32, Doing>,
    /// Whose turn it was when enough waited for the server.
    interrupted: Option<(u32, Interest)>,
    entrance: Entrance,
    decoder: Decoder,
    outgoing: Outgoing,
    /// When the server last said something.
    heard_at: Instant,
    /// When we last said that we are there.
    beat_at: Instant,
}

/// Who wants to know something of process 1.
#[derive(Clone, Copy, Debug)]
enum Asker {
    /// The server, under this number.
    Server(u32),
    Ourselves,
}

/// What is under way for the server.
enum Doing {
    Conversation(Conversation),
    Passage(Passage),
    /// One that the server makes; `None` when nothing came of it.
    Dialling(Option<Dial>),
    /// A question for a name that waits for its reply.
    Question(SocketAddr),
}

impl Doing {
    fn is_over(&self) -> bool {
        match self {
            Self::Conversation(conversation) => conversation.is_over(),
            Self::Passage(passage) => passage.is_over(),
            Self::Dialling(dial) => dial.is_none(),
            Self::Question(_) => false,
        }
    }

    fn interests(&self, is_slow: bool) -> Vec<(Interest, BorrowedFd<'_>, PollFlags)> {
        match self {
            Self::Conversation(conversation) => conversation.interests(is_slow),
            Self::Passage(passage) => passage.interests(is_slow),
            Self::Dialling(dial) => dial.iter().map(|dial| (Interest::Output, dial.socket(), PollFlags::OUT)).collect(),
            Self::Question(_) => Vec::new(),
        }
    }

    fn act(&mut self, interest: Interest, number: u32, outgoing: &mut Outgoing) {
        match self {
            Self::Conversation(conversation) => conversation.act(interest, number, outgoing),
            Self::Passage(passage) => passage.act(interest, number, outgoing),
            Self::Dialling(dial) => {
                if let Some(dial) = dial.take() {
                    *self = Self::dialled(dial.advance(), number, outgoing);
                }
            }
            Self::Question(_) => {}
        }
    }
}

impl Doing {
    /// Tell the server once there is something to tell.
    fn dialled(progress: Progress, number: u32, outgoing: &mut Outgoing) -> Self {
        let (doing, message) = match progress {
            Progress::Waiting(dial) => return Self::Dialling(Some(dial)),
            Progress::Connected(socket) => (Self::Passage(Passage::new(socket)), FromDial::Connected),
            Progress::Refused { errno } => (Self::Dialling(None), FromDial::Refused { errno }),
        };
        // Two small numbers can be written down.
        if let Ok(bytes) = postcard::to_stdvec(&message) {
            outgoing.frame(Kind::Data, number, Lane::Messages, &bytes);
        }
        if doing.is_over() {
            outgoing.frame(Kind::Finish, number, Lane::Messages, &[]);
        }
        doing
    }
}

/// Frames that the server has not read yet.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    fn frame(&mut self, kind: Kind, work: u32, lane: Lane, payload: &[u8]) {
        Frame::new(kind, work, lane, payload).write(&mut self.bytes);
    }

    fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn is_full(&self) -> bool {
        self.waiting() >= MOST_OUTGOING
    }

    fn send(&mut self, to: BorrowedFd<'_>) -> io::Result<()> {
        while self.waiting() > 0 {
            match rustix::io::write(to, &self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

impl Bridge {
    fn new(control: OwnedFd, decoder: Decoder) -> Self {
        Self {
            control,
            waiting: VecDeque::new(),
            asked: None,
            questions: VecDeque::new(),
            tasks: BTreeMap::new(),
            interrupted: None,
            entrance: Entrance::default(),
            decoder,
            outgoing: Outgoing { bytes: frame::hello().to_vec(), sent: 0 },
            heard_at: Instant::now(),
            beat_at: Instant::now(),
        }
    }

    fn serve(&mut self, input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
        let mut bytes = vec![0; MAX_DATA];
        // What came together with the token.
        self.hear_server(&[])?;
        loop {
            self.beat()?;
            self.outgoing.send(output)?;
            let was_full = self.outgoing.is_full();
            let Ready { input: heard, control, come, tasks } = self.wait(input, output)?;
            if control {
                self.hear_process_1()?;
            }
            self.send_waiting()?;
            self.act(tasks, was_full);
            if come && !self.outgoing.is_full() {
                self.let_in()?;
            }
            if heard {
                match rustix::io::read(input, &mut bytes) {
                    Ok(0) => return Ok(()),
                    Ok(count) => {
                        self.heard_at = Instant::now();
                        self.hear_server(&bytes[..count])?;
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.tasks.retain(|_, task| !task.is_over());
        }
    }

    /// Have tasks do what they can, until enough waits for the server. Whoever did not get its turn is the first in the next
    /// round.
    fn act(&mut self, mut tasks: Vec<(u32, Interest)>, was_full: bool) {
        if let Some((number, interest)) = self.interrupted.take_if(|_| !was_full) {
            let same = tasks.iter().position(|task| *task == (number, interest));
            let start = same.or_else(|| tasks.iter().position(|task| task.0 >= number)).unwrap_or(0);
            tasks.rotate_left(start);
        }
        for (number, interest) in tasks {
            // Those that are asked for while it is full already do not add to it.
            if !was_full && self.outgoing.is_full() {
                self.interrupted = Some((number, interest));
                return;
            }
            if let Some(task) = self.tasks.get_mut(&number) {
                task.act(interest, number, &mut self.outgoing);
            }
        }
    }

    /// Say that we are there, to both sides. Whatever else waits says as much.
    fn beat(&mut self) -> io::Result<()> {
        if self.beat_at + BEAT > Instant::now() {
            return Ok(());
        }
        self.beat_at = Instant::now();
        if self.outgoing.waiting() == 0 {
            self.outgoing.frame(Kind::Beat, 0, Lane::Messages, &[]);
        }
        if self.waiting.is_empty() { self.tell(&ToInit::Beat, Vec::new()) } else { Ok(()) }
    }

    /// Wait until something can be done.
    fn wait(&self, input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<Ready> {
        let is_slow = self.outgoing.is_full();
        let mut interests = Vec::new();
        let mut at_once = false;
        let mut polled = Vec::new();
        let is_heard = self.waiting.len() < MOST_WAITING;
        let heard = if is_heard { PollFlags::IN } else { PollFlags::empty() };
        polled.push(PollFd::from_borrowed_fd(input, heard));
        let sent = if self.outgoing.waiting() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        polled.push(PollFd::from_borrowed_fd(output, sent));
        let told = if self.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        polled.push(PollFd::new(&self.control, PollFlags::IN | told));
        let entrance: Vec<_> = self.entrance.interests().into_iter().flatten().filter(|_| !is_slow).collect();
        polled.extend(entrance.iter().map(|&(descriptor, flags)| PollFd::from_borrowed_fd(descriptor, flags)));
        for (&number, task) in &self.tasks {
            for (interest, descriptor, flags) in task.interests(is_slow) {
                at_once |= interest == Interest::File;
                interests.push((number, interest));
                polled.push(PollFd::from_borrowed_fd(descriptor, flags));
            }
        }
        // A server that we do not listen to is not silent.
        let over_at = is_heard.then(|| self.heard_at + SILENCE);
        let until = |moment: Instant| moment.saturating_duration_since(Instant::now());
        let next = [over_at.map(until), Some(until(self.beat_at + BEAT)), self.entrance.rest()];
        let left = next.into_iter().flatten().min().filter(|_| !at_once).unwrap_or(Duration::ZERO);
        match rustix::event::poll(&mut polled, Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened: Vec<bool> = polled.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        if polled[1].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // Only now: we may have been stopped for longer than that, and what was said meanwhile counts.
        if !happened[0] && over_at.is_some_and(|over_at| over_at <= Instant::now()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server is silent"));
        }
        let (come, happened_to) = happened[3..].split_at(entrance.len());
        let is_due = |(task, happened): &((u32, Interest), &bool)| **happened || task.1 == Interest::File;
        let tasks = interests.into_iter().zip(happened_to).filter(is_due);
        Ok(Ready {
            input: happened[0],
            control: happened[2],
            come: come.contains(&true),
            tasks: tasks.map(|(task, _)| task).collect(),
        })
    }

    fn hear_process_1(&mut self) -> io::Result<()> {
        loop {
            match wire::receive::<FromInit>(self.control.as_fd()) {
                Ok(Some((answer, descriptors))) => {
                    if let FromInit::Network(catch) = &answer {
                        self.entrance.receive(catch, descriptors);
                        self.disappoint();
                        if matches!(catch, Catch::HandedOn) {
                            continue;
                        }
                    }
                    match self.asked.take() {
                        Some(Asker::Server(number)) => {
                            let bytes = postcard::to_stdvec(&answer).map_err(io::Error::other)?;
                            self.outgoing.frame(Kind::Answer, number, Lane::Messages, &bytes);
                        }
                        Some(Asker::Ourselves) | None => {}
                    }
                    self.ask_next()?;
                }
                Ok(None) => return Err(io::Error::other("process 1 is gone")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn send_waiting(&mut self) -> io::Result<()> {
        while let Some((message, descriptors)) = self.waiting.front() {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match wire::send_packet(self.control.as_fd(), message, &borrowed) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn tell(&mut self, message: &ToInit, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        self.waiting.push_back((postcard::to_stdvec(message).map_err(io::Error::other)?, descriptors));
        self.send_waiting()
    }

    fn hear_server(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut decoder = std::mem::take(&mut self.decoder);
        decoder.take(bytes);
        while let Some(frame) = decoder.next_frame().map_err(nonsense)? {
            self.hear_frame(&frame)?;
        }
        self.decoder = decoder;
        Ok(())
    }

    fn hear_frame(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        match frame.kind {
            Kind::Ask => {
                let question = postcard::from_bytes(frame.payload).map_err(io::Error::other)?;
                self.ask(Asker::Server(frame.work), question)?;
            }
            Kind::Begin => {
                let begin = postcard::from_bytes(frame.payload).map_err(io::Error::other)?;
                self.begin(frame.work, begin)?;
            }
            Kind::Data | Kind::Finish | Kind::Stop | Kind::Credit | Kind::Resize => {
                self.hear_of_task(frame)?;
            }
            Kind::Beat => {}
            Kind::Answer | Kind::Present => return Err(nonsense(Malformed)),
        }
        Ok(())
    }

    fn begin(&mut self, number: u32, begin: Begin) -> io::Result<()> {
        match &begin.task {
            Task::Work(work) => match Conversation::new(&begin, work) {
                Ok((conversation, descriptors)) => {
                    self.tasks.insert(number, Doing::Conversation(conversation));
                    let Task::Work(work) = begin.task else { return Ok(()) };
                    self.tell(&ToInit::Work(work), descriptors)
                }
                // No room for another pipe. For a command process 1 would say the same of its own; to whoever wants anything else
                // it is as if the work's helper had gone at once.
                Err(_) => {
                    if let Work::Exec(_) = work {
                        let bytes = postcard::to_stdvec(&FromExec::NO_ROOM).map_err(io::Error::other)?;
                        self.outgoing.frame(Kind::Data, number, Lane::Messages, &bytes);
                    }
                    self.outgoing.frame(Kind::Finish, number, Lane::Messages, &[]);
                    Ok(())
                }
            },
            Task::Accept => {
                self.entrance.await_connection(number);
                self.open_entrance()
            }
            Task::Question => {
                self.entrance.await_question(number);
                self.open_entrance()
            }
            Task::Dial { port } => {
                let doing = Doing::dialled(Dial::begin(*port), number, &mut self.outgoing);
                self.tasks.insert(number, doing);
                Ok(())
            }
        }
    }

    fn open_entrance(&mut self) -> io::Result<()> {
        if self.entrance.must_ask() {
            return self.ask(Asker::Ourselves, ToInit::Network);
        }
        self.disappoint();
        Ok(())
    }

    fn disappoint(&mut self) {
        for number in self.entrance.disappointed() {
            self.outgoing.frame(Kind::Finish, number, Lane::Messages, &[]);
        }
    }

    /// Somebody inside connects or asks, and the server waits for it.
    fn let_in(&mut self) -> io::Result<()> {
        for come in self.entrance.take() {
            let (number, doing, message) = match come {
                // One that is gone again has no address; it is dropped, and the server sees that it was nothing.
                Come::Connection(number, passage) => match passage.destination() {
                    Ok(message) => (number, Doing::Passage(passage), message),
                    Err(_) => {
                        self.outgoing.frame(Kind::Finish, number, Lane::Messages, &[]);
                        continue;
                    }
                },
                Come::Question(number, from, packet) => (number, Doing::Question(from), FromEntrance::Asked { packet }),
            };
            let bytes = postcard::to_stdvec(&message).map_err(io::Error::other)?;
            self.outgoing.frame(Kind::Data, number, Lane::Messages, &bytes);
            self.tasks.insert(number, doing);
        }
        Ok(())
    }

    fn hear_of_task(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        match self.tasks.get_mut(&frame.work) {
            Some(Doing::Conversation(conversation)) => {
                conversation.hear(frame, &mut self.outgoing).map_err(nonsense)?;
            }
            Some(Doing::Passage(passage)) => passage.hear(frame, &mut self.outgoing).map_err(nonsense)?,
            Some(Doing::Dialling(_)) if frame.kind == Kind::Finish && frame.lane == Lane::Messages => {
                self.tasks.remove(&frame.work);
            }
            Some(Doing::Dialling(_)) => {}
            Some(&mut Doing::Question(from)) => {
                if frame.kind == Kind::Data {
                    let ToEntrance::Reply { packet } = postcard::from_bytes(frame.payload).map_err(io::Error::other)?;
                    self.entrance.reply(from, &packet);
                }
                if frame.kind == Kind::Finish && frame.lane == Lane::Messages {
                    self.tasks.remove(&frame.work);
                }
            }
            // Over on this side, or it waits for somebody to come.
            None if frame.kind == Kind::Finish && frame.lane == Lane::Messages => self.entrance.forget(frame.work),
            None => {}
        }
        Ok(())
    }

    fn ask(&mut self, asker: Asker, question: ToInit) -> io::Result<()> {
        self.questions.push_back((asker, question));
        if self.asked.is_none() { self.ask_next() } else { Ok(()) }
    }

    /// A thaw has no answer, and is what a frozen process 1 waits for.
    fn ask_next(&mut self) -> io::Result<()> {
        while let Some((asker, question)) = self.questions.pop_front() {
            let is_answered = !matches!(question, ToInit::Thaw | ToInit::Beat);
            self.tell(&question, Vec::new())?;
            if is_answered {
                self.asked = Some(asker);
                return Ok(());
            }
        }
        Ok(())
    }
}

struct Ready {
    input: bool,
    control: bool,
    come: bool,
    tasks: Vec<(u32, Interest)>,
}

fn nonsense(_: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server sent what is no message")
}
