//! Standard input and output: one client, one process, one message per line.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use rmcp::service::serve_directly_with_ct;
use sandbox::{Error, Result, Signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::adapter::Adapter;
use super::connection::{Connection, Line as Connected};
use super::descriptors;
use super::lines::{Cutter, Line};
use super::outbox::{Outbox, Outlet, outbox};
use super::wire::{self, Incoming};
use crate::signals::Signals;

/// The most that one message may have.
const LONGEST_LINE: usize = 16 << 20;

/// Messages that were read and not yet looked at. Few, because each may be large.
const READ_AHEAD: usize = 8;

/// For answers that are nearly there when the client has said its last, as in `printf … | sandpen mcp`.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// For what is being worked on when a signal asks us to end.
const DRAIN: Duration = Duration::from_secs(10);

/// For calls to notice that they were given up, and for the last answers to be read.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// What could be finished is finished.
    Orderly,
    /// Somebody asked twice.
    Forced(Signal),
}

/// The two descriptors, out of reach of everybody else in this process.
#[derive(Debug)]
pub struct Stdio {
    input: File,
    output: File,
}

impl Stdio {
    /// From here on whatever is printed by mistake goes to standard error, and nobody can read the client's messages.
    pub fn take() -> Result<Self> {
        let (input, output) = descriptors::take().map_err(unusable)?;
        Ok(Self { input, output })
    }
}

/// Until the client is gone or somebody asks us to end. Calls that are still being worked on then are given up.
pub async fn serve(adapter: Adapter, stdio: Stdio) -> Result<Ending> {
    let mut signals = Signals::listen()?;
    let (sender, incoming) = mpsc::channel(READ_AHEAD);
    let (outbox, outlet) = outbox();
    let Stdio { input, output } = stdio;
    let hung_up = CancellationToken::new();
    let (watched, seen) = (input.try_clone().map_err(unusable)?, hung_up.clone());
    thread("hang-up", move || watch_writer(&watched, &seen))?;
    thread("input", move || read(input, &sender))?;
    let (reader, watched) = (outbox.clone(), output.try_clone().map_err(unusable)?);
    thread("output", move || write(output, outlet))?;
    thread("reader", move || watch_reader(&watched, &reader))?;
    let (connection, line) = Connection::new(incoming, outbox);
    let serving = CancellationToken::new();
    let running = serve_directly_with_ct(adapter, connection, None, serving.clone());
    let ending = until_end(&mut signals, &line, &hung_up).await;
    if ending == Ending::Orderly {
        serving.cancel();
        let cleaned_up = async {
            let _ = running.waiting().await;
            line.flushed().await;
        };
        let _ = timeout(CLEAN_UP, cleaned_up).await;
    }
    Ok(ending)
}

async fn until_end(signals: &mut Signals, line: &Connected, hung_up: &CancellationToken) -> Ending {
    match signals.unless_ended(client_gone(line, hung_up)).await {
        Ok(()) => {
            let _ = timeout(LAST_ANSWERS, line.idle()).await;
            Ending::Orderly
        }
        Err(_) => {
            line.refuse_requests();
            let drained = async {
                tokio::select! {
                    _ = timeout(DRAIN, line.idle()) => {}
                    () = client_gone(line, hung_up) => {}
                }
            };
            match signals.unless_ended(drained).await {
                Ok(()) => Ending::Orderly,
                Err(signal) => Ending::Forced(signal),
            }
        }
    }
}

/// Nothing is read while answers wait that nobody takes, so that the end of the input is not always come upon by reading.
async fn client_gone(line: &Connected, hung_up: &CancellationToken) {
    let speechless = async {
        hung_up.cancelled().await;
        line.stuck().await;
    };
    tokio::select! {
        () = line.ended() => {}
        () = speechless => {}
    }
}

fn unusable(cause: std::io::Error) -> Error {
    Error::internal("standard input and output cannot be used").with_cause(cause)
}

/// A thread each, because these descriptors may be anything: not all of them can be waited for in another way, and to
/// make them non-blocking would change them for whoever shares them.
fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|cause| Error::internal("a thread cannot be started").with_cause(cause))
}

fn read(mut input: File, messages: &mpsc::Sender<Incoming>) {
    let mut cutter = Cutter::new(LONGEST_LINE);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                descriptors::wait_to_read(&input);
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "standard input cannot be read");
                break;
            }
        };
        for line in cutter.push(&buffer[..length]) {
            if messages.blocking_send(understand(line)).is_err() {
                return;
            }
        }
    }
    if let Some(line) = cutter.finish() {
        let _ = messages.blocking_send(understand(line));
    }
}

fn understand(line: Line) -> Incoming {
    match line {
        Line::Whole(text) => wire::read(&text),
        Line::TooLong { start, end } => wire::too_long(LONGEST_LINE, &start, &end),
    }
}

/// Ends when nobody can say anything any more, or nobody listens.
fn write(mut output: File, mut outlet: Outlet) {
    while let Some(mut message) = outlet.next_blocking() {
        let bytes = message.len();
        message.push(b'\n');
        if let Err(error) = write_all(&mut output, &message) {
            tracing::warn!(%error, "the client reads no answers any more");
            return;
        }
        outlet.written(&message[..bytes]);
    }
}

fn write_all(output: &mut File, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => descriptors::wait_to_write(output),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn watch_reader(output: &File, reader: &Outbox) {
    if descriptors::reader_is_gone(output) {
        reader.give_up();
    }
}

fn watch_writer(input: &File, hung_up: &CancellationToken) {
    if descriptors::writer_is_gone(input) {
        hung_up.cancel();
    }
}
