//! Looks at the first bytes of a connection that is to be copied: a client must not say another name than it may reach, in
//! the greeting of TLS or in the requests of plain HTTP.
//!
//! Where many names share an address, the name that a client says decides which of them answers. Whoever may reach one
//! of them could reach them all.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use sandbox::{Denial, Host};
use tokio::net::TcpStream;

use crate::activity::Direction;
use crate::dial::Dialer;
use crate::hello::{self, Hello};
use crate::meter::Meter;
use crate::relay::write_all;
use crate::request_line::{self, RequestLine};

/// How long a client is waited for that has begun something which may become a request. Then the host gets to see the
/// beginning: in some protocols it has to answer that.
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub(crate) struct Screen {
    pub dialer: Dialer,
    pub host: Host,
    pub port: u16,
}

/// What became of the first bytes.
#[derive(Debug)]
pub(crate) enum Passed {
    /// These are to be sent on, and whatever follows.
    On(Bytes),
    /// Plain HTTP, from its first byte. Of these so many were seen by the host already.
    Http(Bytes, usize),
}

impl Screen {
    /// Read until it is clear how the connection goes on. The other direction flows meanwhile: in many protocols the server
    /// speaks first.
    pub async fn pass(&self, client: &TcpStream, first: Bytes, host: &TcpStream, meter: &Meter) -> io::Result<Passed> {
        let mut sent = Vec::from(first);
        let mut seen = 0;
        loop {
            let mut may_be_http = false;
            match hello::read(&sent) {
                Hello::NotTls => match request_line::read(&sent) {
                    RequestLine::SomethingElse => return Ok(Passed::On(Bytes::from(sent).slice(seen..))),
                    RequestLine::Http => return Ok(Passed::Http(sent.into(), seen)),
                    RequestLine::Unfinished => may_be_http = true,
                },
                Hello::Nameless => return Ok(Passed::On(sent.into())),
                Hello::Named(name) if self.may_be_named(&name) => return Ok(Passed::On(sent.into())),
                Hello::Named(name) => {
                    meter.record.refuse_host(&name, Denial::HostNotAllowed);
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                Hello::Malformed => {
                    meter.record.refuse(Denial::Malformed);
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Hello::Unfinished => {}
            }
            if may_be_http && seen < sent.len() && tokio::time::timeout(PATIENCE, client.readable()).await.is_err() {
                meter.charge(Direction::Out, sent.len() - seen).await?;
                write_all(host, &sent[seen..]).await?;
                seen = sent.len();
            }
            client.readable().await?;
            let before = sent.len();
            sent.resize(hello::MOST_BYTES.max(before + 1), 0);
            let read = client.try_read(&mut sent[before..]);
            sent.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) if before == 0 || may_be_http => return Ok(Passed::On(Bytes::from(sent).slice(seen..))),
                // It ended before it said anything that could be judged, so nothing of it is sent on.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn may_be_named(&self, name: &Host) -> bool {
        *name == self.host || self.dialer.allows(name, self.port).is_ok()
    }
}
