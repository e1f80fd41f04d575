//! The way into a hosted sandbox: frames on stdin and stdout, messages and descriptors to process 1.
//!
//! One for each connection, started by the daemon. It decides nothing: it makes the pipes and channels that a server on
//! the same kernel would have made, and carries what goes through them. When its stdin ends, it ends, and with it all its
//! ends of pipes and channels: what was not detached is then killed by its supervisors.

mod conversation;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::frame::{self, Begin, Decoder, Frame, Kind, Lane, MAX_DATA, Malformed};
use crate::gate;
use crate::syscall;
use crate::wire::{self, FromInit, ToInit};
use conversation::{Conversation, Interest};

/// Process 1 may be about to start.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const CONNECT_PAUSE: Duration = Duration::from_millis(2);

/// What waits for the server to read. Nothing more is taken from inside meanwhile.
const MOST_OUTGOING: usize = 256 << 10;

/// Messages that wait for process 1, while another server has it frozen. Nothing more is heard from ours meanwhile.
const MOST_WAITING: usize = 64;

pub fn main() -> i32 {
    match run() {
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
    // A reader that goes away is the end, and is noticed as such.
    syscall::ignore_signal(libc::SIGPIPE);
    let token = std::env::var(gate::TOKEN).map_err(|_| io::Error::other("there is no token"))?;
    let control = connect()?;
    let nothing = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, nothing)?;
    wire::send(control.as_fd(), &ToInit::Present { token }, &[])?;
    match wire::receive(control.as_fd())? {
        Some((FromInit::Ready, _)) => {}
        Some(_) | None => return Err(io::Error::other("process 1 did not let us in")),
    }
    let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    for descriptor in [input, output, control.as_fd()] {
        rustix::io::ioctl_fionbio(descriptor, true)?;
    }
    Bridge::new(control).serve(input, output)
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
    asked: Option<u32>,
    questions: VecDeque<(u32, ToInit)>,
    conversations: BTreeMap<u32, Conversation>,
    decoder: Decoder,
    outgoing: Outgoing,
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
    fn new(control: OwnedFd) -> Self {
        Self {
            control,
            waiting: VecDeque::new(),
            asked: None,
            questions: VecDeque::new(),
            conversations: BTreeMap::new(),
            decoder: Decoder::default(),
            outgoing: Outgoing { bytes: frame::hello().to_vec(), sent: 0 },
        }
    }

    fn serve(&mut self, input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
        let mut bytes = vec![0; MAX_DATA];
        loop {
            self.outgoing.send(output)?;
            let Ready { input: heard, control, works } = self.wait(input, output)?;
            if control {
                self.hear_process_1()?;
            }
            self.send_waiting()?;
            for (number, interest) in works {
                if let Some(conversation) = self.conversations.get_mut(&number) {
                    conversation.act(interest, number, &mut self.outgoing);
                }
            }
            if heard {
                match rustix::io::read(input, &mut bytes) {
                    Ok(0) => return Ok(()),
                    Ok(count) => self.hear_server(&bytes[..count])?,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.conversations.retain(|_, conversation| !conversation.is_over());
        }
    }

    /// Wait until something can be done.
    fn wait(&self, input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<Ready> {
        let is_slow = self.outgoing.waiting() >= MOST_OUTGOING;
        let mut interests = Vec::new();
        let mut at_once = false;
        let mut polled = Vec::new();
        let heard = if self.waiting.len() < MOST_WAITING { PollFlags::IN } else { PollFlags::empty() };
        polled.push(PollFd::from_borrowed_fd(input, heard));
        let sent = if self.outgoing.waiting() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        polled.push(PollFd::from_borrowed_fd(output, sent));
        let told = if self.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        polled.push(PollFd::new(&self.control, PollFlags::IN | told));
        for (&number, conversation) in &self.conversations {
            for (interest, descriptor, flags) in conversation.interests(is_slow) {
                at_once |= interest == Interest::File;
                interests.push((number, interest));
                polled.push(PollFd::from_borrowed_fd(descriptor, flags));
            }
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut polled, at_once.then_some(&now)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened: Vec<bool> = polled.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        if polled[1].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let works = interests.into_iter().zip(&happened[3..]).filter(|(_, happened)| **happened);
        Ok(Ready { input: happened[0], control: happened[2], works: works.map(|(work, _)| work).collect() })
    }

    fn hear_process_1(&mut self) -> io::Result<()> {
        loop {
            match wire::receive::<FromInit>(self.control.as_fd()) {
                Ok(Some((answer, _))) => {
                    if let Some(number) = self.asked.take() {
                        let bytes = postcard::to_stdvec(&answer).map_err(io::Error::other)?;
                        self.outgoing.frame(Kind::Answer, number, Lane::Messages, &bytes);
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
                self.questions.push_back((frame.work, question));
                if self.asked.is_none() {
                    self.ask_next()?;
                }
            }
            Kind::Begin => {
                let begin: Begin = postcard::from_bytes(frame.payload).map_err(io::Error::other)?;
                match Conversation::new(&begin) {
                    Ok((conversation, descriptors)) => {
                        self.conversations.insert(frame.work, conversation);
                        self.tell(&ToInit::Work(begin.work), descriptors)?;
                    }
                    // No room for another pipe: to the server it is as if the work's helper had gone at once.
                    Err(_) => self.outgoing.frame(Kind::Finish, frame.work, Lane::Messages, &[]),
                }
            }
            Kind::Data | Kind::Finish | Kind::Stop | Kind::Credit | Kind::Resize => {
                if let Some(conversation) = self.conversations.get_mut(&frame.work) {
                    conversation.hear(frame, &mut self.outgoing).map_err(nonsense)?;
                }
            }
            Kind::Answer => return Err(nonsense(Malformed)),
        }
        Ok(())
    }

    /// A thaw has no answer, and is what a frozen process 1 waits for.
    fn ask_next(&mut self) -> io::Result<()> {
        while let Some((number, question)) = self.questions.pop_front() {
            let is_answered = !matches!(question, ToInit::Thaw);
            self.tell(&question, Vec::new())?;
            if is_answered {
                self.asked = Some(number);
                return Ok(());
            }
        }
        Ok(())
    }
}

struct Ready {
    input: bool,
    control: bool,
    works: Vec<(u32, Interest)>,
}

fn nonsense(_: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server sent what is no message")
}
