//! Bytes on their way through a bridge, one direction of one pipe, file or socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;

use super::Outgoing;
use crate::frame::{Frame, Kind, Lane, Malformed, WINDOW};

/// Bytes on their way in.
pub struct Sink {
    pub to: Rc<OwnedFd>,
    pub bytes: VecDeque<u8>,
    /// Written and not yet given back to the server.
    owed: u32,
    pub is_finishing: bool,
}

/// Bytes on their way out.
pub struct Source {
    pub from: Origin,
    pub credit: u32,
    /// Nobody writes to it any more, so that nothing is the end.
    pub is_abandoned: bool,
}

pub enum Origin {
    Pipe(Rc<OwnedFd>),
    File {
        file: OwnedFd,
        at: u64,
        left: u64,
    },
    /// It will come with a message.
    Later,
}

impl Sink {
    pub fn new(to: impl Into<Rc<OwnedFd>>) -> Self {
        Self { to: to.into(), bytes: VecDeque::new(), owed: 0, is_finishing: false }
    }

    /// Let the server send more, once it is worth a frame: in halves, as the server does.
    pub fn give_credit(&mut self, number: u32, outgoing: &mut Outgoing) {
        if self.owed >= WINDOW / 2 {
            let owed = std::mem::take(&mut self.owed);
            outgoing.frame(Kind::Credit, number, Lane::Input, &owed.to_le_bytes());
        }
    }

    /// As much as there is room for.
    pub fn write(&mut self) -> rustix::io::Result<()> {
        while !self.bytes.is_empty() {
            match rustix::io::write(&self.to, self.bytes.as_slices().0) {
                Ok(count) => {
                    self.bytes.drain(..count);
                    self.owed += count as u32;
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Source {
    pub fn new(from: Origin) -> Self {
        Self { from, credit: WINDOW, is_abandoned: false }
    }

    /// `None` when there is nothing yet, zero at the end.
    pub fn read(&mut self, bytes: &mut [u8]) -> rustix::io::Result<Option<usize>> {
        let most = bytes.len().min(self.credit as usize);
        let read = match &mut self.from {
            Origin::Pipe(pipe) => rustix::io::read(pipe, &mut bytes[..most]),
            Origin::File { file, at, left } => {
                let most = most.min(usize::try_from(*left).unwrap_or(usize::MAX));
                rustix::io::pread(file, &mut bytes[..most], *at).inspect(|&count| {
                    *at += count as u64;
                    *left -= count as u64;
                })
            }
            Origin::Later => Err(Errno::AGAIN),
        };
        match read {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN) if self.is_abandoned => Ok(Some(0)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            // A terminal whose last program is gone says so.
            Err(Errno::IO) if matches!(self.from, Origin::Pipe(_)) => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}

pub fn added(credit: u32, frame: &Frame<'_>) -> Result<u32, Malformed> {
    credit.checked_add(frame.credit()?).ok_or(Malformed)
}

pub fn give(source: &mut Option<Source>, frame: &Frame<'_>) -> Result<(), Malformed> {
    if let Some(source) = source {
        source.credit = added(source.credit, frame)?;
    }
    Ok(())
}
