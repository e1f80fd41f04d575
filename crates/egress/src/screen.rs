//! Looks at the first bytes of a connection that is copied: a TLS client must not say another name than it may reach.
//!
//! Where many names share an address, the name that a client says decides which of them answers. Whoever may reach one
//! of them could reach them all.

use std::io;

use bytes::Bytes;
use sandbox::{Denial, Host};
use tokio::net::TcpStream;

use crate::dial::Dialer;
use crate::hello::{self, Hello};
use crate::meter::Meter;

pub(crate) struct Screen {
    pub dialer: Dialer,
    pub host: Host,
    pub port: u16,
}

impl Screen {
    /// What the client sent until it was clear that it may go on. The other direction flows meanwhile: in many protocols
    /// the server speaks first.
    pub async fn pass(&self, client: &TcpStream, first: Bytes, meter: &Meter) -> io::Result<Bytes> {
        let mut sent = Vec::from(first);
        loop {
            match hello::read(&sent) {
                Hello::NotTls | Hello::Nameless => return Ok(sent.into()),
                Hello::Named(name) if self.may_be_named(&name) => return Ok(sent.into()),
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
            client.readable().await?;
            let before = sent.len();
            sent.resize(hello::MOST_BYTES.max(before + 1), 0);
            let read = client.try_read(&mut sent[before..]);
            sent.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                // It ended before it said anything that could be judged, so nothing of it is sent on.
                Ok(0) => return if before == 0 { Ok(Bytes::new()) } else { Err(io::ErrorKind::UnexpectedEof.into()) },
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn may_be_named(&self, name: &Host) -> bool {
        *name == self.host || self.dialer.allows(name, self.port).is_ok()
    }
}
