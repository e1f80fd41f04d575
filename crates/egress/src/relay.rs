//! Copies bytes between a sandbox and a host, both ways, until both have ended.
//!
//! A connection that only waits holds no buffer and no pipe, so that a thousand of them cost little. One that has moved a
//! lot in one direction moves the rest through a pipe of the kernel.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::activity::Direction;
use crate::meter::Meter;
use crate::pipe::Pipe;
use crate::screen::{Passed, Screen};
use crate::vhost;

/// Without a byte in either direction for this long, a connection is given up.
pub(crate) const IDLE: Duration = Duration::from_secs(600);

/// From here on a direction goes through a pipe. Most requests are shorter, and two system calls are enough for them.
const BULK: u64 = 256 * 1024;

/// After this much in one go, others get their turn.
const TURN: u64 = 1024 * 1024;

const PORTION: usize = 64 * 1024;

thread_local! {
    /// One for all connections of the thread: it is never held across an await.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; PORTION].into_boxed_slice());
}

/// `first` is what the sandbox sent already.
pub(crate) async fn relay(client: TcpStream, first: Bytes, host: TcpStream, meter: &Meter, screen: Option<Screen>) {
    let out = async {
        let first = match &screen {
            Some(screen) => match screen.pass(&client, first, &host, meter).await? {
                Passed::On(bytes) => bytes,
                Passed::Http(sent, seen) => return Err(End::Http(sent, seen)),
            },
            None => first,
        };
        meter.charge(Direction::Out, first.len()).await?;
        write_all(&host, &first).await?;
        pump(&client, &host, Direction::Out, meter).await.map_err(End::Cut)
    };
    let back = async { pump(&host, &client, Direction::In, meter).await.map_err(End::Cut) };
    let both = async { tokio::try_join!(out, back) };
    let ended = tokio::select! {
        ended = both => ended.map(|_| ()),
        () = meter.record.idle(IDLE) => Err(End::Cut(io::ErrorKind::TimedOut.into())),
    };
    match (ended, screen) {
        (Ok(()), _) => {}
        (Err(End::Http(sent, seen)), Some(screen)) => {
            // A host that has seen a part of it would take the rest for something else.
            let host = (seen == 0).then_some(host);
            tokio::select! {
                () = vhost::serve(client, sent, host, meter, screen) => {}
                () = meter.record.idle(IDLE) => {}
            }
        }
        (Err(End::Http(..)), None) => {}
        (Err(End::Cut(error)), _) => {
            tracing::debug!(connection = ?meter.record, %error, "a connection is cut");
            reset(&client);
            reset(&host);
        }
    }
}

/// Why bytes are not copied any more, though neither side has ended.
enum End {
    Cut(io::Error),
    /// It is one of plain HTTP: what was read so far, and how much of that the host has seen.
    Http(Bytes, usize),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Cut(error)
    }
}

/// Make the peer see that the connection was cut, not that it ended: half a file must not pass for a whole one.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn pump(from: &TcpStream, to: &TcpStream, direction: Direction, meter: &Meter) -> io::Result<()> {
    let (mut moved, mut turn) = (0, 0);
    loop {
        from.readable().await?;
        let pipe = if moved >= BULK { Pipe::take() } else { None };
        let bytes = match pipe {
            Some(pipe) => pass_through(from, to, direction, meter, pipe).await?,
            None => copy(from, to, direction, meter).await?,
        };
        match bytes {
            Moved::Bytes(bytes) => (moved, turn) = (moved + bytes, turn + bytes),
            Moved::Ended => {
                // The other direction may go on. An error here means that the peer is gone, which that one will see.
                let _ = SockRef::from(to).shutdown(Shutdown::Write);
                return Ok(());
            }
        }
        if turn >= TURN {
            turn = 0;
            tokio::task::yield_now().await;
        }
    }
}

enum Moved {
    Bytes(u64),
    Ended,
}

async fn copy(from: &TcpStream, to: &TcpStream, direction: Direction, meter: &Meter) -> io::Result<Moved> {
    let admitted = meter.admit(PORTION).await?;
    let (read, rest) = BUFFER.with_borrow_mut(|buffer| {
        let read = from.try_read(&mut buffer[..admitted]);
        // Before they are sent on: a program that has its last byte may end, and somebody looks at the count.
        meter.moved(direction, admitted, *read.as_ref().unwrap_or(&0));
        let read = match read {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((None, Vec::new())),
            Err(error) => return Err(error),
        };
        let written = match to.try_write(&buffer[..read]) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        // Only a slow reader makes us keep anything.
        Ok((Some(read), buffer[written..read].to_vec()))
    })?;
    write_all(to, &rest).await?;
    Ok(match read {
        Some(0) => Moved::Ended,
        Some(read) => Moved::Bytes(read as u64),
        None => Moved::Bytes(0),
    })
}

/// Until nothing more has arrived, or others must have their turn.
async fn pass_through(
    from: &TcpStream,
    to: &TcpStream,
    direction: Direction,
    meter: &Meter,
    mut pipe: Pipe,
) -> io::Result<Moved> {
    let mut moved = 0;
    while moved < TURN {
        let admitted = meter.admit(TURN as usize).await?;
        let taken = pipe.fill(from, admitted);
        meter.moved(direction, admitted, *taken.as_ref().unwrap_or(&0));
        match taken {
            Ok(0) if moved == 0 => {
                pipe.put_back();
                return Ok(Moved::Ended);
            }
            Ok(0) => break,
            Ok(taken) => moved += taken as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
        while !pipe.is_empty() {
            match pipe.drain(to) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
    }
    pipe.put_back();
    Ok(Moved::Bytes(moved))
}

pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
