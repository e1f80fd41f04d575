//! One piece of work: the ends of its channel and pipes that a server would hold, and what is on its way through them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::termios::Winsize;

use super::Outgoing;
use super::lanes::{Origin, Sink, Source, added, give};
use crate::frame::{Begin, Frame, Kind, Lane, MAX_DATA, MESSAGE_WINDOW, Malformed, Part};
use crate::wire::{self, MAX_MESSAGE, Work};

/// Fewer turns between the two ends of a file.
const PIPE_BYTES: usize = 1 << 20;

/// What a conversation can do when a descriptor is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Hear,
    Tell,
    Input,
    Output,
    Errors,
    /// Output that is always ready.
    File,
}

pub struct Conversation {
    channel: Option<OwnedFd>,
    /// The server has closed its end, and what is left to tell is the last.
    is_closing: bool,
    untold: VecDeque<Vec<u8>>,
    message_credit: u32,
    input: Option<Sink>,
    output: Option<Source>,
    errors: Option<Source>,
    awaited: Awaited,
    /// Held until the channel closes: it hangs up with its last holder.
    terminal: Option<OwnedFd>,
}

/// What a descriptor that comes with a message is for.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Nothing,
    Terminal,
    File(Part),
}

impl Conversation {
    /// And the descriptors that go to process 1.
    pub fn new(begin: &Begin, work: &Work) -> io::Result<(Self, Vec<OwnedFd>)> {
        let (channel, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&channel, true)?;
        let mut given = vec![theirs];
        let mut conversation = Self {
            channel: Some(channel),
            is_closing: false,
            untold: VecDeque::new(),
            message_credit: MESSAGE_WINDOW,
            input: None,
            output: None,
            errors: None,
            awaited: Awaited::Nothing,
            terminal: None,
        };
        match work {
            Work::Exec(exec) if exec.terminal.is_some() && !exec.logged => {
                conversation.awaited = Awaited::Terminal;
                conversation.output = Some(Source::new(Origin::Later));
            }
            Work::File(wire::FileOperation::Read { .. }) => {
                conversation.awaited = Awaited::File(begin.part);
                conversation.output = Some(Source::new(Origin::Later));
            }
            Work::Exec(_) | Work::File(_) | Work::Logs | Work::Dial { .. } => {
                let is_file = matches!(work, Work::File(_));
                if begin.has(Lane::Input) {
                    let (read, write) = pipe(is_file)?;
                    rustix::io::ioctl_fionbio(&write, true)?;
                    conversation.input = Some(Sink::new(write));
                    given.push(read);
                }
                for (lane, source) in
                    [(Lane::Output, &mut conversation.output), (Lane::Errors, &mut conversation.errors)]
                {
                    if begin.has(lane) {
                        let (read, write) = pipe(is_file)?;
                        rustix::io::ioctl_fionbio(&read, true)?;
                        *source = Some(Source::new(Origin::Pipe(read.into())));
                        given.push(write);
                    }
                }
            }
        }
        Ok((conversation, given))
    }

    pub fn is_over(&self) -> bool {
        self.channel.is_none() && self.input.is_none() && self.output.is_none() && self.errors.is_none()
    }

    /// What to wait for. While the server reads slowly, nothing more is taken for it.
    pub fn interests(&self, is_slow: bool) -> Vec<(Interest, BorrowedFd<'_>, PollFlags)> {
        let mut interests = Vec::new();
        if let Some(channel) = &self.channel {
            if !is_slow && self.message_credit as usize >= MAX_MESSAGE {
                interests.push((Interest::Hear, channel.as_fd(), PollFlags::IN));
            }
            if !self.untold.is_empty() {
                interests.push((Interest::Tell, channel.as_fd(), PollFlags::OUT));
            }
        }
        if let Some(sink) = self.input.as_ref().filter(|sink| !sink.bytes.is_empty()) {
            interests.push((Interest::Input, sink.to.as_fd(), PollFlags::OUT));
        }
        for (source, interest) in [(&self.output, Interest::Output), (&self.errors, Interest::Errors)] {
            let Some(source) = source.as_ref().filter(|source| !is_slow && source.credit > 0) else { continue };
            match &source.from {
                Origin::Pipe(pipe) if source.is_abandoned => {
                    interests.push((Interest::File, pipe.as_fd(), PollFlags::IN));
                }
                Origin::Pipe(pipe) => interests.push((interest, pipe.as_fd(), PollFlags::IN)),
                Origin::File { file, .. } => interests.push((Interest::File, file.as_fd(), PollFlags::IN)),
                Origin::Later => {}
            }
        }
        interests
    }

    pub fn act(&mut self, interest: Interest, number: u32, outgoing: &mut Outgoing) {
        match interest {
            Interest::Hear => self.hear_helper(number, outgoing),
            Interest::Tell => self.tell_helper(),
            Interest::Input => self.write_input(number, outgoing),
            Interest::Output | Interest::File => self.read(Lane::Output, number, outgoing),
            Interest::Errors => self.read(Lane::Errors, number, outgoing),
        }
    }

    pub fn hear(&mut self, frame: &Frame<'_>, outgoing: &mut Outgoing) -> Result<(), Malformed> {
        match (frame.kind, frame.lane) {
            (Kind::Data, Lane::Messages) => {
                self.untold.push_back(frame.payload.to_vec());
                self.tell_helper();
            }
            (Kind::Finish, Lane::Messages) => {
                self.is_closing = true;
                self.tell_helper();
            }
            (Kind::Data, Lane::Input) => {
                if let Some(sink) = &mut self.input {
                    sink.bytes.extend(frame.payload);
                    self.write_input(frame.work, outgoing);
                }
            }
            (Kind::Finish, Lane::Input) => {
                if let Some(sink) = &mut self.input {
                    sink.is_finishing = true;
                    self.write_input(frame.work, outgoing);
                }
            }
            (Kind::Stop, Lane::Output) => self.output = None,
            (Kind::Stop, Lane::Errors) => self.errors = None,
            (Kind::Credit, Lane::Messages) => self.message_credit = added(self.message_credit, frame)?,
            (Kind::Credit, Lane::Output) => give(&mut self.output, frame)?,
            (Kind::Credit, Lane::Errors) => give(&mut self.errors, frame)?,
            (Kind::Resize, _) => {
                let (rows, columns) = frame.size()?;
                let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
                if let Some(terminal) = &self.terminal {
                    // One whose programs are gone has no size to mind.
                    let _ = rustix::termios::tcsetwinsize(terminal, size);
                }
            }
            (Kind::Data | Kind::Finish, Lane::Output | Lane::Errors)
            | (Kind::Stop, Lane::Messages | Lane::Input)
            | (Kind::Credit, Lane::Input)
            | (Kind::Ask | Kind::Answer | Kind::Begin | Kind::Beat | Kind::Present, _) => return Err(Malformed),
        }
        Ok(())
    }

    fn hear_helper(&mut self, number: u32, outgoing: &mut Outgoing) {
        let mut bytes = Vec::new();
        while let Some(channel) = &self.channel {
            if (self.message_credit as usize) < MAX_MESSAGE {
                return;
            }
            match wire::receive_packet(channel.as_fd(), &mut bytes) {
                Ok(Some(descriptors)) => {
                    self.message_credit -= bytes.len() as u32;
                    outgoing.frame(Kind::Data, number, Lane::Messages, &bytes);
                    if let Some(descriptor) = descriptors.into_iter().next() {
                        self.take_descriptor(descriptor);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => {
                    if let (Some(_), Some(source)) = (&self.terminal, &mut self.output) {
                        // Its session has ended with its leader. Not every kernel tells that to who reads (gVisor).
                        source.is_abandoned = true;
                    }
                    self.close_channel();
                    outgoing.frame(Kind::Finish, number, Lane::Messages, &[]);
                    // What was to come with a message does not come any more.
                    if matches!(self.output, Some(Source { from: Origin::Later, .. })) {
                        self.output = None;
                        outgoing.frame(Kind::Stop, number, Lane::Output, &[]);
                    }
                }
            }
        }
    }

    fn take_descriptor(&mut self, descriptor: OwnedFd) {
        match std::mem::replace(&mut self.awaited, Awaited::Nothing) {
            Awaited::Nothing => {}
            Awaited::Terminal => {
                let ends = (descriptor.try_clone(), descriptor.try_clone());
                let is_ready = rustix::io::ioctl_fionbio(&descriptor, true).is_ok();
                if let ((Ok(input), Ok(output)), true) = (ends, is_ready) {
                    self.input = Some(Sink::new(input));
                    if let Some(source) = &mut self.output {
                        source.from = Origin::Pipe(output.into());
                    }
                    self.terminal = Some(descriptor);
                }
            }
            Awaited::File(Part { offset, length }) => {
                if let Some(source) = &mut self.output {
                    source.from = Origin::File { file: descriptor, at: offset, left: length.unwrap_or(u64::MAX) };
                }
            }
        }
    }

    fn tell_helper(&mut self) {
        while let (Some(channel), Some(message)) = (&self.channel, self.untold.front()) {
            match wire::send_packet(channel.as_fd(), message, &[]) {
                Ok(()) => drop(self.untold.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A helper that is gone takes no messages, and what it said before is still to be heard.
                Err(_) => self.untold.clear(),
            }
        }
        if self.is_closing && self.untold.is_empty() {
            self.close_channel();
            if matches!(self.output, Some(Source { from: Origin::Later, .. })) {
                self.output = None;
            }
        }
    }

    fn close_channel(&mut self) {
        self.channel = None;
        self.untold.clear();
        if self.terminal.take().is_some() {
            self.input = None;
        }
    }

    fn write_input(&mut self, number: u32, outgoing: &mut Outgoing) {
        let Some(sink) = &mut self.input else { return };
        match sink.write() {
            Ok(()) => {
                sink.give_credit(number, outgoing);
                // The end of what is typed is not the end of a terminal.
                if sink.is_finishing && sink.bytes.is_empty() {
                    self.input = None;
                }
            }
            Err(_) => {
                self.input = None;
                // Whoever closed it may have said why, and that is to be known first.
                self.hear_helper(number, outgoing);
                outgoing.frame(Kind::Stop, number, Lane::Input, &[]);
            }
        }
    }

    fn read(&mut self, lane: Lane, number: u32, outgoing: &mut Outgoing) {
        let slot = if lane == Lane::Errors { &mut self.errors } else { &mut self.output };
        let Some(source) = slot else { return };
        let mut bytes = [0; MAX_DATA];
        let end = match source.read(&mut bytes) {
            Ok(None) => return,
            Ok(Some(0)) => Kind::Finish,
            Ok(Some(count)) => {
                source.credit -= count as u32;
                outgoing.frame(Kind::Data, number, lane, &bytes[..count]);
                return;
            }
            Err(_) => Kind::Stop,
        };
        *slot = None;
        // Whoever closed it has said before whether all was sent.
        self.hear_helper(number, outgoing);
        outgoing.frame(end, number, lane, &[]);
    }
}

fn pipe(is_file: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    if is_file {
        // Works with the usual size too.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES);
    }
    Ok((read, write))
}
