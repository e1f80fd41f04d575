//! Many conversations over one stream: who gets which frame, and who may send how much.
//!
//! One lock for each work, held for as long as it takes to copy a frame. What is sent goes to one task that writes. The
//! windows bound what each lane may have on its way; whoever begins, asks or tells something waits until there is room for
//! it, so that a bridge that does not read holds up its callers and fills nothing. What a handle says when it is dropped
//! waits for nobody, and there is little of it for each work. The other side is not trusted: whoever sends more than its
//! window holds, or what nobody can have asked for, has ended the connection.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::channel::Channel;
use crate::frame::{Begin, Frame, Kind, Lane, Malformed};
use crate::lane::{Inward, LaneReader, LaneWriter, Outward, Packets};
use crate::messages::{FromInit, MAX_MESSAGE, ToInit};

/// Bytes of work, questions and messages that wait to be written. Several of the largest fit.
const ROOM: usize = 1 << 20;

/// A frame on its way, with the room that it takes until it is written.
#[derive(Debug)]
pub struct Outgoing {
    pub bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    fn new(frame: &Frame<'_>, room: Option<OwnedSemaphorePermit>) -> Self {
        let mut bytes = Vec::with_capacity(crate::frame::HEADER_BYTES + frame.payload.len());
        frame.write(&mut bytes);
        Self { bytes, _room: room }
    }

    /// One that nobody waits for.
    pub fn at_once(frame: &Frame<'_>) -> Self {
        Self::new(frame, None)
    }
}

/// Both ends of everything that is under way.
#[derive(Debug)]
pub struct Mux {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    room: Arc<Semaphore>,
    next: AtomicU32,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    works: HashMap<u32, Weak<Work>>,
    questions: HashMap<u32, oneshot::Sender<FromInit>>,
    /// Nothing comes any more.
    is_cut: bool,
}

/// One piece of work. It is forgotten when the last of its handles is dropped.
#[derive(Debug)]
pub struct Work {
    mux: Arc<Mux>,
    number: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
pub struct State {
    pub messages: Packets,
    pub output: Inward,
    pub errors: Inward,
    pub input: Outward,
}

/// The handles of a work. Dropping the channel is what a helper sees as its caller's end.
#[derive(Debug)]
pub struct Handles {
    pub channel: Channel,
    pub input: LaneWriter,
    pub output: LaneReader,
    pub errors: LaneReader,
}

impl Mux {
    /// What it has to say comes out of the receiver, frame by frame, until it is cut.
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Outgoing>) {
        let (outgoing, frames) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(ROOM));
        (Arc::new(Self { outgoing, room, next: AtomicU32::new(1), table: Mutex::default() }), frames)
    }

    /// `None` when nothing can be begun any more.
    pub async fn begin(self: &Arc<Self>, begin: &Begin) -> Result<Option<Handles>, TooLarge> {
        let payload = encoded(begin)?;
        let Some(room) = self.room_for(&payload).await else { return Ok(None) };
        let Some(number) = self.number() else { return Ok(None) };
        let work = Arc::new(Work { mux: self.clone(), number, state: Mutex::new(State::of(begin)) });
        {
            let mut table = self.table();
            if table.is_cut {
                return Ok(None);
            }
            table.works.insert(number, Arc::downgrade(&work));
        }
        self.send_in(Some(room), &Frame::new(Kind::Begin, number, Lane::Messages, &payload));
        Ok(Some(Handles {
            channel: Channel::new(work.clone()),
            input: LaneWriter::new(work.clone()),
            output: LaneReader::new(work.clone(), Lane::Output),
            errors: LaneReader::new(work, Lane::Errors),
        }))
    }

    /// The answer ends without a word when the connection does.
    pub async fn ask(&self, question: &ToInit) -> Result<Option<oneshot::Receiver<FromInit>>, TooLarge> {
        let payload = encoded(question)?;
        let Some(room) = self.room_for(&payload).await else { return Ok(None) };
        let Some(number) = self.number() else { return Ok(None) };
        let (answer, on_answer) = oneshot::channel();
        {
            let mut table = self.table();
            if table.is_cut {
                return Ok(None);
            }
            table.questions.insert(number, answer);
        }
        self.send_in(Some(room), &Frame::new(Kind::Ask, number, Lane::Messages, &payload));
        Ok(Some(on_answer))
    }

    /// Say something that is not answered, and that is short enough to wait for nobody.
    pub fn tell(&self, message: &ToInit) -> Result<(), TooLarge> {
        let payload = encoded(message)?;
        if let Some(number) = self.number() {
            self.send(Kind::Ask, number, Lane::Messages, &payload);
        }
        Ok(())
    }

    /// Something came.
    pub fn receive(&self, frame: &Frame<'_>) -> Result<(), Malformed> {
        let is_known = (1..self.next.load(Ordering::Relaxed)).contains(&frame.work);
        if !is_known && frame.kind != Kind::Beat {
            return Err(Malformed);
        }
        match frame.kind {
            Kind::Answer => {
                let answer = postcard::from_bytes(frame.payload).map_err(|_| Malformed)?;
                if let Some(asked) = self.table().questions.remove(&frame.work) {
                    // Whoever asked may have gone.
                    let _ = asked.send(answer);
                }
                Ok(())
            }
            Kind::Data | Kind::Finish | Kind::Stop | Kind::Credit => {
                let work = self.table().works.get(&frame.work).and_then(Weak::upgrade);
                // One that is over on this side may still be heard of.
                work.map_or(Ok(()), |work| work.state().receive(frame))
            }
            Kind::Beat => Ok(()),
            Kind::Ask | Kind::Begin | Kind::Resize | Kind::Present => Err(Malformed),
        }
    }

    /// Nothing comes any more, and nothing can be sent.
    pub fn cut(&self) {
        let (works, questions) = {
            let mut table = self.table();
            table.is_cut = true;
            (std::mem::take(&mut table.works), std::mem::take(&mut table.questions))
        };
        drop(questions);
        self.room.close();
        for work in works.into_values().filter_map(|work| work.upgrade()) {
            work.state().cut();
        }
    }

    fn number(&self) -> Option<u32> {
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| number.checked_add(1)).ok()
    }

    /// Wait until so much more may be on its way; `None` when nothing goes any more.
    async fn room_for(&self, payload: &[u8]) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(payload.len()).ok()?;
        self.room.clone().acquire_many_owned(bytes).await.ok()
    }

    fn send(&self, kind: Kind, work: u32, lane: Lane, payload: &[u8]) {
        self.send_in(None, &Frame::new(kind, work, lane, payload));
    }

    fn send_in(&self, room: Option<OwnedSemaphorePermit>, frame: &Frame<'_>) {
        // A connection that is gone is noticed by whoever waits for something from it.
        let _ = self.outgoing.send(Outgoing::new(frame, room));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that no frame can hold.
#[derive(Clone, Copy, Debug)]
pub struct TooLarge;

fn encoded(message: &impl Serialize) -> Result<Vec<u8>, TooLarge> {
    let bytes = postcard::to_stdvec(message).map_err(|_| TooLarge)?;
    if bytes.len() <= MAX_MESSAGE { Ok(bytes) } else { Err(TooLarge) }
}

impl Work {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn send(&self, kind: Kind, lane: Lane, payload: &[u8]) {
        self.mux.send(kind, self.number, lane, payload);
    }

    /// Fails with `BrokenPipe` when the other side is gone.
    pub async fn tell(&self, message: &impl Serialize) -> io::Result<()> {
        let bytes = encoded(message).map_err(|TooLarge| io::ErrorKind::ArgumentListTooLong)?;
        let room = self.mux.room_for(&bytes).await.ok_or(io::ErrorKind::BrokenPipe)?;
        self.tell_in(room, &bytes)
    }

    /// The same, and `WouldBlock` when there is no room for it now.
    pub fn tell_at_once(&self, message: &impl Serialize) -> io::Result<()> {
        let bytes = encoded(message).map_err(|TooLarge| io::ErrorKind::ArgumentListTooLong)?;
        let count = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::ArgumentListTooLong)?;
        let room = self.mux.room.clone().try_acquire_many_owned(count).map_err(|_| io::ErrorKind::WouldBlock)?;
        self.tell_in(room, &bytes)
    }

    fn tell_in(&self, room: OwnedSemaphorePermit, bytes: &[u8]) -> io::Result<()> {
        let is_over = self.state().messages.is_over();
        if is_over {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.mux.send_in(Some(room), &Frame::new(Kind::Data, self.number, Lane::Messages, bytes));
        Ok(())
    }

    /// Let the other side send more, once it is worth a frame.
    pub fn give_credit(&self, lane: Lane, bytes: Option<u32>) {
        if let Some(bytes) = bytes {
            self.send(Kind::Credit, lane, &bytes.to_le_bytes());
        }
    }

    pub fn poll_packet(&self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let (polled, credit) = {
            let mut state = self.state();
            let polled = state.messages.poll(context);
            (polled, state.messages.credit_due())
        };
        self.give_credit(Lane::Messages, credit);
        polled
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.mux.table().works.remove(&self.number);
    }
}

impl State {
    fn of(begin: &Begin) -> Self {
        let inward = |lane| if begin.has(lane) { Inward::default() } else { Inward::absent() };
        Self {
            messages: Packets::default(),
            output: inward(Lane::Output),
            errors: inward(Lane::Errors),
            input: if begin.has(Lane::Input) { Outward::default() } else { Outward::absent() },
        }
    }

    fn receive(&mut self, frame: &Frame<'_>) -> Result<(), Malformed> {
        match (frame.kind, frame.lane) {
            (Kind::Data, Lane::Messages) => self.messages.receive(frame.payload),
            (Kind::Data, Lane::Output) => self.output.receive(frame.payload),
            (Kind::Data, Lane::Errors) => self.errors.receive(frame.payload),
            (Kind::Finish, Lane::Messages) => {
                self.messages.finish();
                Ok(())
            }
            (Kind::Finish, Lane::Output) => {
                self.output.finish();
                Ok(())
            }
            (Kind::Finish, Lane::Errors) => {
                self.errors.finish();
                Ok(())
            }
            (Kind::Stop, Lane::Input) => {
                self.input.stop();
                Ok(())
            }
            (Kind::Stop, Lane::Output) => {
                self.output.cut();
                Ok(())
            }
            (Kind::Stop, Lane::Errors) => {
                self.errors.cut();
                Ok(())
            }
            (Kind::Credit, Lane::Input) => self.input.credit(frame.credit()?),
            (Kind::Data | Kind::Finish, Lane::Input)
            | (Kind::Stop, Lane::Messages)
            | (Kind::Credit, Lane::Messages | Lane::Output | Lane::Errors)
            | (Kind::Ask | Kind::Answer | Kind::Begin | Kind::Resize | Kind::Beat | Kind::Present, _) => Err(Malformed),
        }
    }

    fn cut(&mut self) {
        self.messages.finish();
        self.output.cut();
        self.errors.cut();
        self.input.stop();
    }
}
