//! A pipe of the kernel between two connections: bytes go through it without being copied into this process.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Room in one pipe, if the kernel gives it; a user may have only so much of it in all.
const ROOM: usize = 1024 * 1024;

/// Pipes at the same time. A receiver that does not read leaves one full for as long as it likes, in memory of the kernel
/// that counts for nobody but us.
const MOST_PIPES: usize = 64;

/// Empty pipes that are kept for the next connection. Idle connections hold none.
const MOST_SPARE: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
    static PIPES: Cell<usize> = const { Cell::new(0) };
}

/// Empty whenever nobody is in the middle of using it.
#[derive(Debug)]
pub(crate) struct Pipe {
    entrance: OwnedFd,
    exit: OwnedFd,
    inside: usize,
    _counted: Counted,
}

/// One of the pipes that there are.
#[derive(Debug)]
struct Counted;

impl Counted {
    fn one() -> Option<Self> {
        let pipes = PIPES.get();
        (pipes < MOST_PIPES).then(|| {
            PIPES.set(pipes + 1);
            Self
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Pipes that are kept may be dropped after the count, when the thread ends.
        let _ = PIPES.try_with(|pipes| pipes.set(pipes.get().saturating_sub(1)));
    }
}

impl Pipe {
    /// `None` when there are too many or no descriptors left, which is no reason to stop moving bytes.
    pub fn take() -> Option<Self> {
        if let Some(pipe) = SPARE.with_borrow_mut(Vec::pop) {
            return Some(pipe);
        }
        let counted = Counted::one()?;
        let (exit, entrance) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A smaller one works as well, only slower.
        let _ = fcntl_setpipe_size(&entrance, ROOM);
        Some(Self { entrance, exit, inside: 0, _counted: counted })
    }

    pub fn put_back(self) {
        if self.inside == 0 {
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < MOST_SPARE {
                    spare.push(self);
                }
            });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.inside == 0
    }

    /// Take in what has arrived, `most` at most. Nothing at all means that the sender has ended.
    pub fn fill(&mut self, from: &TcpStream, most: usize) -> io::Result<usize> {
        let taken = from.try_io(Interest::READABLE, || {
            splice(from, None, &self.entrance, None, most.min(ROOM), SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
                .map_err(io::Error::from)
        })?;
        self.inside += taken;
        Ok(taken)
    }

    /// Let out as much as the receiver takes now.
    pub fn drain(&mut self, to: &TcpStream) -> io::Result<()> {
        let given = to.try_io(Interest::WRITABLE, || {
            splice(&self.exit, None, to, None, self.inside, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)
                .map_err(io::Error::from)
        })?;
        self.inside -= given;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many() {
        let mut held: Vec<Pipe> = std::iter::from_fn(Pipe::take).take(2 * MOST_PIPES).collect();
        assert_eq!(held.len(), MOST_PIPES);
        drop(held.pop());
        held.pop().unwrap().put_back();
        assert!(Pipe::take().is_some() && Pipe::take().is_some());
        drop(held);
        assert_eq!(PIPES.get(), SPARE.with_borrow(Vec::len));
    }
}
