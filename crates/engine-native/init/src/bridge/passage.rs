//! A connection of a program: one that it made to somewhere, on its way to the server, which decides about it and dials; or
//! one that the server has made to what the program listens on.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::Shutdown;

use super::Outgoing;
use super::conversation::Interest;
use super::lanes::{Origin, Sink, Source, give};
use crate::frame::{Frame, Kind, Lane, MAX_DATA, Malformed};
use crate::wire::FromEntrance;

pub struct Passage {
    /// One descriptor for both directions: programs may make more connections than we could have twice.
    socket: Rc<OwnedFd>,
    input: Option<Sink>,
    output: Option<Source>,
    /// All that the server had for it was passed on.
    is_complete: bool,
    /// The server is done with it.
    is_closed: bool,
}

impl Passage {
    pub fn new(socket: OwnedFd) -> Self {
        // Answers of a few bytes must not wait for more. Without it they only are slower.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        let socket = Rc::new(socket);
        let (input, output) = (Sink::new(socket.clone()), Source::new(Origin::Pipe(socket.clone())));
        Self { socket, input: Some(input), output: Some(output), is_complete: false, is_closed: false }
    }

    /// Where it was to go: connections are caught with the address that they were made to.
    pub fn destination(&self) -> io::Result<FromEntrance> {
        let address = SocketAddr::try_from(rustix::net::getsockname(&self.socket)?)?;
        let octets = match address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Ok(FromEntrance::Connected { address: Ipv6Addr::octets(&octets), port: address.port() })
    }

    pub fn is_over(&self) -> bool {
        self.is_closed && self.input.is_none()
    }

    pub fn interests(&self, is_slow: bool) -> Vec<(Interest, BorrowedFd<'_>, PollFlags)> {
        let mut interests = Vec::new();
        if let Some(sink) = self.input.as_ref().filter(|sink| !sink.bytes.is_empty()) {
            interests.push((Interest::Input, sink.to.as_fd(), PollFlags::OUT));
        }
        if self.output.as_ref().is_some_and(|source| !is_slow && source.credit > 0) {
            interests.push((Interest::Output, self.socket.as_fd(), PollFlags::IN));
        }
        interests
    }

    pub fn act(&mut self, interest: Interest, number: u32, outgoing: &mut Outgoing) {
        match interest {
            Interest::Input => self.write(number, outgoing),
            Interest::Output => self.read(number, outgoing),
            Interest::Hear | Interest::Tell | Interest::Errors | Interest::File => {}
        }
    }

    pub fn hear(&mut self, frame: &Frame<'_>, outgoing: &mut Outgoing) -> Result<(), Malformed> {
        match (frame.kind, frame.lane) {
            (Kind::Data, Lane::Input) => {
                if let Some(sink) = &mut self.input {
                    sink.bytes.extend(frame.payload);
                    self.write(frame.work, outgoing);
                }
            }
            (Kind::Finish, Lane::Input) => {
                if let Some(sink) = &mut self.input {
                    sink.is_finishing = true;
                    self.write(frame.work, outgoing);
                }
            }
            (Kind::Stop, Lane::Output) => self.output = None,
            (Kind::Credit, Lane::Output) => give(&mut self.output, frame)?,
            // Nothing is told to a connection, and what is read of it is bounded by its own lane.
            (Kind::Credit, Lane::Messages) => {}
            (Kind::Finish, Lane::Messages) => {
                if !self.is_complete && self.input.as_ref().is_none_or(|sink| !sink.is_finishing) {
                    // Whoever made it must see that it was cut, and not that it ended.
                    let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
                    self.input = None;
                }
                self.output = None;
                self.is_closed = true;
            }
            (Kind::Data, Lane::Messages | Lane::Output | Lane::Errors)
            | (Kind::Finish, Lane::Output | Lane::Errors)
            | (Kind::Stop, Lane::Messages | Lane::Input | Lane::Errors)
            | (Kind::Credit, Lane::Input | Lane::Errors)
            | (Kind::Ask | Kind::Answer | Kind::Begin | Kind::Resize | Kind::Beat | Kind::Present, _) => {
                return Err(Malformed);
            }
        }
        Ok(())
    }

    fn write(&mut self, number: u32, outgoing: &mut Outgoing) {
        let Some(sink) = &mut self.input else { return };
        match sink.write() {
            Ok(()) => {
                sink.give_credit(number, outgoing);
                if sink.is_finishing && sink.bytes.is_empty() {
                    // The other direction may go on. An error means that the peer is gone, which that one will see.
                    let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
                    self.is_complete = true;
                    self.input = None;
                }
            }
            Err(_) => {
                self.input = None;
                outgoing.frame(Kind::Stop, number, Lane::Input, &[]);
            }
        }
    }

    fn read(&mut self, number: u32, outgoing: &mut Outgoing) {
        let Some(source) = &mut self.output else { return };
        let mut bytes = [0; MAX_DATA];
        let end = match source.read(&mut bytes) {
            Ok(None) => return,
            Ok(Some(0)) => Kind::Finish,
            Ok(Some(count)) => {
                source.credit -= count as u32;
                outgoing.frame(Kind::Data, number, Lane::Output, &bytes[..count]);
                return;
            }
            Err(_) => Kind::Stop,
        };
        self.output = None;
        outgoing.frame(end, number, Lane::Output, &[]);
    }
}
