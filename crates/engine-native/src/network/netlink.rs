//! Netlink messages by hand: as much as it takes to write some and to hear what became of them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER_BYTES: usize = 16;
const ALIGNMENT: usize = 4;
const NESTED: u16 = 1 << 15;

pub const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
pub const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
pub const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// Messages that are sent together.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    count: u32,
    /// How many of them ask for an answer.
    answers: usize,
}

impl Messages {
    /// Add a message: the fixed part of its family, and then what `attributes` puts in.
    pub fn add(&mut self, kind: u16, flags: u16, fixed: &[u8], attributes: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend([0; size_of::<u32>()]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        self.bytes.extend(self.count.to_ne_bytes());
        self.bytes.extend([0; size_of::<u32>()]);
        self.bytes.extend(fixed);
        attributes(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + size_of::<u32>()].copy_from_slice(&length.to_ne_bytes());
        self.count += 1;
        self.answers += usize::from(flags & ACKNOWLEDGE != 0);
    }

    /// Send all and hear the answers: one for each message that asked for it, in order, `None` for a success.
    ///
    /// The kernel works on them before the call that sends returns, so there is nothing to wait for.
    pub fn exchange(&self, protocol: Option<Protocol>) -> io::Result<Vec<Option<io::Error>>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty())?;
        let mut answers = Vec::new();
        while answers.len() < self.answers {
            hear(&socket, &mut answers)?;
        }
        Ok(answers)
    }
}

/// The attributes of one message, or those inside of another attribute.
#[derive(Debug)]
pub struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.with_header(kind, |attributes| attributes.0.extend(value));
    }

    /// A number in the byte order of the network, as the packet filter wants it.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn text(&mut self, kind: u16, value: &str) {
        self.with_header(kind, |attributes| {
            attributes.0.extend(value.as_bytes());
            attributes.0.push(0);
        });
    }

    pub fn nested(&mut self, kind: u16, inside: impl FnOnce(&mut Attributes<'_>)) {
        self.with_header(kind | NESTED, inside);
    }

    fn with_header(&mut self, kind: u16, inside: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend([0; size_of::<u16>()]);
        self.0.extend(kind.to_ne_bytes());
        inside(self);
        let length = (self.0.len() - start) as u16;
        self.0[start..start + size_of::<u16>()].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
    }
}

/// One packet of answers.
fn hear(socket: &OwnedFd, answers: &mut Vec<Option<io::Error>>) -> io::Result<()> {
    let mut buffer = [0; 8192];
    let (length, _) = rustix::net::recv(socket, &mut buffer, RecvFlags::empty())?;
    let mut rest = &buffer[..length];
    while let Some((header, after)) = rest.split_at_checked(HEADER_BYTES) {
        let [a, b, c, d, kind_low, kind_high, ..] = *header else { break };
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        if i32::from(u16::from_ne_bytes([kind_low, kind_high])) == libc::NLMSG_ERROR
            && let Some(code) = after.first_chunk()
        {
            let code = i32::from_ne_bytes(*code);
            answers.push((code != 0).then(|| io::Error::from_raw_os_error(-code)));
        }
        match rest.get(length.next_multiple_of(ALIGNMENT).max(HEADER_BYTES)..) {
            Some(next) => rest = next,
            None => break,
        }
    }
    Ok(())
}
