//! How a bridge learns who it is for.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::{nonsense, timespec};
use crate::frame::{Decoder, Kind, Malformed};

/// The server speaks as soon as it has our streams.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the server says first. Nobody inside can answer for it, so one that says nothing is not waited for long.
pub fn receive(input: BorrowedFd<'_>, decoder: &mut Decoder) -> io::Result<String> {
    let give_up = Instant::now() + PATIENCE;
    let mut bytes = [0; 512];
    loop {
        if let Some(frame) = decoder.next_frame().map_err(nonsense)? {
            let token = std::str::from_utf8(frame.payload).ok().filter(|_| frame.kind == Kind::Present);
            return token.map(str::to_owned).ok_or_else(|| nonsense(Malformed));
        }
        let left = timespec(give_up.saturating_duration_since(Instant::now()));
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(input, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the server shows no token")),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match rustix::io::read(input, &mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => decoder.take(&bytes[..count]),
        }
    }
}
