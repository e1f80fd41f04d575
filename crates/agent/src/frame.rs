//! How the conversations with process 1 and its helpers share one stream of bytes.
//!
//! Inside of a sandbox a piece of work has a channel of messages and up to three pipes. Where the server shares no kernel
//! with the sandbox, a bridge inside turns them into frames. A work has a number and four lanes: messages both ways, input
//! to the sandbox, output and errors from it. A sender has a window of bytes for each lane and waits when it is used up,
//! so whoever reads slowly holds up nobody else, and nothing grows.
//!
//! ```text
//! ┌──────────┬──────┬────────┬──────┬─────────┐
//! │ length 4 │ kind │ work 4 │ lane │ payload │   numbers are little-endian; the length is that of the payload
//! └──────────┴──────┴────────┴──────┴─────────┘
//! ```
//!
//! The server speaks first, by one frame with the token that lets it in. The bridge shows it to process 1 and answers with
//! [`HELLO_BYTES`] bytes that say which protocol it knows, when process 1 takes work. Shared with process 1's program, so
//! there is no system call in here.
#![allow(dead_code, reason = "two programs share this file and each uses its part")]

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::messages::{FileOperation, MAX_MESSAGE, Work};

/// Bytes of output, errors or input that may be on their way.
pub const WINDOW: u32 = 256 << 10;
/// The same for messages; several of the largest fit.
pub const MESSAGE_WINDOW: u32 = 1 << 20;
/// The most bytes of a lane in one frame: others get their turn in between.
pub const MAX_DATA: usize = 64 << 10;
/// A piece of work is a little more than a message to process 1.
pub const MAX_PAYLOAD: usize = MAX_MESSAGE + 1024;
pub const HEADER_BYTES: usize = 10;
pub const HELLO_BYTES: usize = 16;

/// Longer than any token is.
pub const MAX_TOKEN: usize = 256;

/// How often each side says that it is there. A server's stream may stay open when it is not: daemons hold the other end. A
/// bridge may be stopped by programs that are the same user.
pub const BEAT: Duration = Duration::from_secs(10);
/// Who has heard nothing for so long has nobody on the other side any more. Several beats may be late.
pub const SILENCE: Duration = Duration::from_secs(60);

const MAGIC: [u8; 8] = *b"sandpen\0";

/// Changes with everything that the two sides must agree upon.
const PROTOCOL: u64 = digest(include_bytes!("frame.rs"), digest(include_bytes!("messages.rs"), 0xcbf2_9ce4_8422_2325));

/// FNV-1a: it tells versions apart and keeps no secret.
const fn digest(bytes: &[u8], start: u64) -> u64 {
    let mut hash = start;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    hash
}

pub fn hello() -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..].copy_from_slice(&PROTOCOL.to_le_bytes());
    hello
}

/// Who speaks on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    Same,
    OtherVersion,
    Stranger,
}

pub fn greeted_by(hello: &[u8; HELLO_BYTES]) -> Greeting {
    match (hello[..8] == MAGIC, hello[8..] == PROTOCOL.to_le_bytes()) {
        (true, true) => Greeting::Same,
        (true, false) => Greeting::OtherVersion,
        (false, _) => Greeting::Stranger,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To process 1 itself, answered by a frame with the same number.
    Ask,
    Answer,
    /// A piece of work: [`Begin`].
    Begin,
    /// Bytes of a lane; on the lane of messages, one message.
    Data,
    /// The sender has no more for this lane.
    Finish,
    /// The receiver wants no more of this lane; or the sender breaks off before its end.
    Stop,
    /// So many more bytes may be sent on this lane.
    Credit,
    /// The terminal of this work has another size.
    Resize,
    /// The sender is there. It is of no work, and is not answered.
    Beat,
    /// The token of who wants to come in: the first frame of a server, and its only one of this kind.
    Present,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Messages,
    /// To the sandbox.
    Input,
    /// From the sandbox.
    Output,
    Errors,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Begin {
    pub task: Task,
    /// For a file that is read.
    pub part: Part,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// For a child of process 1.
    Work(Work),
    /// Wait for somebody inside who connects to somewhere. The lanes are then that connection's.
    Accept,
    /// Wait for somebody inside who asks for a name.
    Question,
    /// Connect to a port of the sandbox's own loopback addresses, and say what came of it. The lanes are that connection's.
    Dial { port: u16 },
}

impl Begin {
    /// Which lanes there are. The lane of messages is always there.
    pub fn has(&self, lane: Lane) -> bool {
        match (&self.task, lane) {
            (_, Lane::Messages) => true,
            (Task::Work(Work::Exec(exec)), Lane::Input | Lane::Output) => !exec.logged,
            (Task::Work(Work::Exec(exec)), Lane::Errors) => !exec.logged && exec.terminal.is_none(),
            (Task::Work(Work::File(operation)), lane) => operation_has(operation, lane),
            (Task::Accept | Task::Dial { .. }, Lane::Input | Lane::Output) => true,
            (Task::Accept | Task::Dial { .. }, Lane::Errors)
            | (
                Task::Question | Task::Work(Work::Logs | Work::Dial { .. }),
                Lane::Input | Lane::Output | Lane::Errors,
            ) => false,
        }
    }
}

fn operation_has(operation: &FileOperation, lane: Lane) -> bool {
    match operation {
        FileOperation::Write { .. }
        | FileOperation::Place { .. }
        | FileOperation::Unpack { .. }
        | FileOperation::ReplaceTrees { .. } => lane == Lane::Input,
        FileOperation::Read { .. } | FileOperation::Pack { .. } | FileOperation::PackTrees { .. } => {
            lane == Lane::Output
        }
        FileOperation::Stat { .. }
        | FileOperation::List { .. }
        | FileOperation::MakeDirectory { .. }
        | FileOperation::Remove { .. }
        | FileOperation::Rename { .. } => false,
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    pub offset: u64,
    /// To the end without one.
    pub length: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub work: u32,
    pub lane: Lane,
    pub payload: &'a [u8],
}

/// What is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Frame<'a> {
    pub fn new(kind: Kind, work: u32, lane: Lane, payload: &'a [u8]) -> Self {
        Self { kind, work, lane, payload }
    }

    pub fn write(&self, to: &mut Vec<u8>) {
        // Callers bound their payloads; a longer one would be refused by the other side.
        to.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        to.push(self.kind.number());
        to.extend_from_slice(&self.work.to_le_bytes());
        to.push(self.lane.number());
        to.extend_from_slice(self.payload);
    }

    /// The number that a frame of credit carries.
    pub fn credit(&self) -> Result<u32, Malformed> {
        self.payload.try_into().map(u32::from_le_bytes).map_err(|_| Malformed)
    }

    /// Rows and columns.
    pub fn size(&self) -> Result<(u16, u16), Malformed> {
        let &[a, b, c, d] = self.payload else { return Err(Malformed) };
        Ok((u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
    }

    fn check(self) -> Result<Self, Malformed> {
        let length = self.payload.len();
        let fits = match (self.kind, self.lane) {
            (Kind::Data, Lane::Messages) => (1..=MAX_MESSAGE).contains(&length),
            (Kind::Data, Lane::Input | Lane::Output | Lane::Errors) => (1..=MAX_DATA).contains(&length),
            (Kind::Ask | Kind::Answer, _) => length <= MAX_MESSAGE,
            (Kind::Begin, _) => length <= MAX_PAYLOAD,
            (Kind::Finish | Kind::Stop | Kind::Beat, _) => length == 0,
            (Kind::Credit | Kind::Resize, _) => length == 4,
            (Kind::Present, _) => length <= MAX_TOKEN,
        };
        if fits { Ok(self) } else { Err(Malformed) }
    }
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Ask => 0,
            Self::Answer => 1,
            Self::Begin => 2,
            Self::Data => 3,
            Self::Finish => 4,
            Self::Stop => 5,
            Self::Credit => 6,
            Self::Resize => 7,
            Self::Beat => 8,
            Self::Present => 9,
        }
    }

    fn from_number(number: u8) -> Result<Self, Malformed> {
        [
            Self::Ask,
            Self::Answer,
            Self::Begin,
            Self::Data,
            Self::Finish,
            Self::Stop,
            Self::Credit,
            Self::Resize,
            Self::Beat,
            Self::Present,
        ]
        .into_iter()
        .find(|kind| kind.number() == number)
        .ok_or(Malformed)
    }
}

impl Lane {
    fn number(self) -> u8 {
        match self {
            Self::Messages => 0,
            Self::Input => 1,
            Self::Output => 2,
            Self::Errors => 3,
        }
    }

    fn from_number(number: u8) -> Result<Self, Malformed> {
        [Self::Messages, Self::Input, Self::Output, Self::Errors]
            .into_iter()
            .find(|lane| lane.number() == number)
            .ok_or(Malformed)
    }
}

/// Frames out of bytes as they come.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Give it what came. [`Decoder::next_frame`] is then asked until it has no more, so that it keeps less than one frame.
    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, Malformed> {
        let rest = &self.bytes[self.start..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let &[a, b, c, d, kind, e, f, g, h, lane] = header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_PAYLOAD {
            return Err(Malformed);
        }
        let (kind, lane) = (Kind::from_number(kind)?, Lane::from_number(lane)?);
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        self.start += HEADER_BYTES + length;
        Frame::new(kind, u32::from_le_bytes([e, f, g, h]), lane, payload).check().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let frames = [
            Frame::new(Kind::Data, 7, Lane::Output, b"hello"),
            Frame::new(Kind::Finish, 7, Lane::Output, b""),
            Frame::new(Kind::Credit, u32::MAX, Lane::Input, &[1, 2, 3, 4]),
            Frame::new(Kind::Resize, 0, Lane::Messages, &[24, 0, 80, 0]),
            Frame::new(Kind::Beat, 0, Lane::Messages, b""),
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        for size in 1..bytes.len() {
            let mut decoder = Decoder::default();
            let mut count = 0;
            for part in bytes.chunks(size) {
                decoder.take(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    assert_eq!(frame, frames[count]);
                    count += 1;
                }
            }
            assert_eq!(count, frames.len(), "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_before_it_is_waited_for() {
        let frame = |length: u32, kind: u8, lane: u8| {
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend([kind, 0, 0, 0, 0, lane]);
            bytes
        };
        let bad = [
            frame(MAX_PAYLOAD as u32 + 1, 0, 0),
            frame(u32::MAX, 3, 2),
            frame(1, 10, 0),
            frame(1, 3, 4),
            [frame(1, 4, 2), vec![0]].concat(),
            [frame(1, 8, 0), vec![0]].concat(),
            frame(0, 3, 2),
            [frame(MAX_DATA as u32 + 1, 3, 2), vec![0; MAX_DATA + 1]].concat(),
            [frame(3, 6, 1), vec![0; 3]].concat(),
            [frame(MAX_TOKEN as u32 + 1, 9, 0), vec![0; MAX_TOKEN + 1]].concat(),
        ];
        for bytes in bad {
            let mut decoder = Decoder::default();
            decoder.take(&bytes);
            assert_eq!(decoder.next_frame(), Err(Malformed), "{:?}", &bytes[..HEADER_BYTES]);
        }
    }

    #[test]
    fn another_version_is_told_from_a_stranger() {
        let mut greeting = hello();
        assert_eq!(greeted_by(&greeting), Greeting::Same);
        greeting[15] ^= 1;
        assert_eq!(greeted_by(&greeting), Greeting::OtherVersion);
        assert_eq!(greeted_by(b"OCI runtime exec"), Greeting::Stranger);
    }
}
