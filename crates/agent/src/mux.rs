//! Many conversations over one stream: who gets which frame, and who may send how much.
//!
//! One lock for each work, held for as long as it takes to copy a frame. What is sent goes to one task that writes; it
//! needs no bound of its own, because the windows bound what each lane may have on its way. The other side is not trusted:
//! whoever sends more than its window holds, or what nobody can have asked for, has ended the connection.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::channel::Channel;
use crate::frame::{Begin, Frame, Kind, Lane, Malformed};
use crate::lane::{Inward, LaneReader, LaneWriter, Outward, Packets};
use crate::messages::{FromInit, MAX_MESSAGE, ToInit};

/// Both ends of everything that is under way.
#[derive(Debug)]
pub struct Mux {
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
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
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Vec<u8>>) {
        let (outgoing, frames) = mpsc::unbounded_channel();
        (Arc::new(Self { outgoing, next: AtomicU32::new(1), table: Mutex::default() }), frames)
    }

    /// `None` when nothing can be begun any more.
    pub fn begin(self: &Arc<Self>, begin: &Begin) -> Result<Option<Handles>, TooLarge> {
        let payload = encoded(begin)?;
        let Some(number) = self.number() else { return Ok(None) };
        let work = Arc::new(Work { mux: self.clone(), number, state: Mutex::new(State::of(begin)) });
        {
            let mut table = self.table();
            if table.is_cut {
                return Ok(None);
            }
            table.works.insert(number, Arc::downgrade(&work));
        }
        self.send(Kind::Begin, number, Lane::Messages, &payload);
        Ok(Some(Handles {
            channel: Channel::new(work.clone()),
            input: LaneWriter::new(work.clone()),
            output: LaneReader::new(work.clone(), Lane::Output),
            errors: LaneReader::new(work, Lane::Errors),
        }))
    }

    /// The answer ends without a word when the connection does.
    pub fn ask(&self, question: &ToInit) -> Result<Option<oneshot::Receiver<FromInit>>, TooLarge> {
        let payload = encoded(question)?;
        let Some(number) = self.number() else { return Ok(None) };
        let (answer, on_answer) = oneshot::channel();
        {
            let mut table = self.table();
            if table.is_cut {
                return Ok(None);
            }
            table.questions.insert(number, answer);
        }
        self.send(Kind::Ask, number, Lane::Messages, &payload);
        Ok(Some(on_answer))
    }

    /// Say something that is not answered.
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
            Kind::Ask | Kind::Begin | Kind::Resize => Err(Malformed),
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
        for work in works.into_values().filter_map(|work| work.upgrade()) {
            work.state().cut();
        }
    }

    fn number(&self) -> Option<u32> {
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| number.checked_add(1)).ok()
    }

    fn send(&self, kind: Kind, work: u32, lane: Lane, payload: &[u8]) {
        let mut bytes = Vec::with_capacity(crate::frame::HEADER_BYTES + payload.len());
        Frame::new(kind, work, lane, payload).write(&mut bytes);
        // A connection that is gone is noticed by whoever waits for something from it.
        let _ = self.outgoing.send(bytes);
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

    pub fn tell(&self, message: &impl Serialize) -> io::Result<()> {
        let bytes = encoded(message).map_err(|TooLarge| io::ErrorKind::ArgumentListTooLong)?;
        let is_over = self.state().messages.is_over();
        if is_over {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.send(Kind::Data, Lane::Messages, &bytes);
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
            | (Kind::Ask | Kind::Answer | Kind::Begin | Kind::Resize | Kind::Beat, _) => Err(Malformed),
        }
    }

    fn cut(&mut self) {
        self.messages.finish();
        self.output.cut();
        self.errors.cut();
        self.input.stop();
    }
}
