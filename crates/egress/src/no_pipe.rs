//! Where the kernel cannot move bytes from one connection to another by itself, there are no pipes, and everything goes
//! through a buffer.

use std::io;

use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) enum Pipe {}

impl Pipe {
    pub fn take() -> Option<Self> {
        None
    }

    pub fn put_back(self) {
        match self {}
    }

    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    pub fn fill(&mut self, _: &TcpStream, _: usize) -> io::Result<usize> {
        match *self {}
    }

    pub fn drain(&mut self, _: &TcpStream) -> io::Result<()> {
        match *self {}
    }
}
