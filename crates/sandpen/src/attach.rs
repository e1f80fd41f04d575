//! A running command and the person in front of it: our streams are its streams, our signals are its signals.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use sandbox::{CappedOutput, Captured, ExecOutcome, Execution, ExecutionControl, OutputCaps, Result, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{MissedTickBehavior, interval};
use tools::network;

use crate::exit::Exit;
use crate::signals::{Heard, Signals};
use crate::streams::OurStream;
use crate::terminal::{self, RawTerminal};

/// After its end a command may have left daemons that hold its output open: this much silence is taken as the end.
const SILENCE: Duration = Duration::from_millis(50);
/// What can still be in the pipes of a command that has ended. A daemon that goes on writing is not waited for.
const MOST_AFTER_END: u64 = 2 << 20;
const NOT_KEPT: OutputCaps = OutputCaps { head: 0, tail: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    Ours,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// Three separate streams.
    Streams,
    /// The command has a terminal, and ours becomes its window.
    Terminal,
}

/// How a command ended, and what ended it if that was us.
#[derive(Debug)]
pub struct Ended<T> {
    pub value: T,
    pub cut_short: Option<CutShort>,
}

/// What is known of a command whose output was not kept.
#[derive(Debug)]
pub struct Streamed {
    pub outcome: ExecOutcome,
    /// Whether it said on stderr that it misses a network.
    pub missed_network: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutShort {
    /// By a signal to us.
    Signal(Signal),
    /// Nobody reads our output any more.
    ReaderGone,
}

impl CutShort {
    pub fn exit(self) -> Exit {
        match self {
            Self::Signal(signal) => Exit::signal(signal),
            Self::ReaderGone => Exit::READER_GONE,
        }
    }
}

/// Output as it comes, until the command ends.
pub async fn stream(
    execution: Execution,
    input: Input,
    screen: Screen,
    signals: &mut Signals,
) -> Result<Ended<Streamed>> {
    let Execution { stdin, stdout, stderr, control } = execution;
    let _raw = match screen {
        Screen::Streams => None,
        Screen::Terminal => RawTerminal::enter(),
    };
    let (out, err) = (Pump::new(NOT_KEPT), Pump::new(OutputCaps::default()));
    let printing = async { tokio::try_join!(out.copy(stdout, OurStream::stdout), err.copy(stderr, OurStream::stderr)) };
    let feeding = feed(stdin, input);
    tokio::pin!(printing, feeding);
    let (mut printed, mut fed) = (false, false);
    let mut end: Option<(ExecOutcome, u64)> = None;
    let mut obedience = Obedience::new(&control);
    let mut silence = interval(SILENCE);
    silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard_before = u64::MAX;
    loop {
        if let Some((outcome, bytes_at_end)) = &end
            && (printed || out.bytes() + err.bytes() > bytes_at_end + MOST_AFTER_END)
        {
            let missed_network = network::is_missed_in(&err.kept.borrow().bytes());
            let value = Streamed { outcome: outcome.clone(), missed_network };
            return Ok(Ended { value, cut_short: obedience.cut_short });
        }
        tokio::select! {
            result = &mut printing, if !printed => {
                printed = true;
                if result.is_err() {
                    obedience.cut(CutShort::ReaderGone).await?;
                }
            }
            () = &mut feeding, if !fed => fed = true,
            outcome = control.wait(), if end.is_none() => {
                end = Some((outcome?, out.bytes() + err.bytes()));
                silence.reset();
            }
            heard = signals.next() => obedience.obey(heard).await?,
            _ = silence.tick(), if end.is_some() => {
                let heard_now = out.bytes() + err.bytes();
                printed |= heard_now == heard_before && !out.is_writing() && !err.is_writing();
                heard_before = heard_now;
            }
        }
    }
}

/// Output kept, within bounds, until the command ends.
pub async fn capture(
    mut execution: Execution,
    input: Input,
    caps: OutputCaps,
    signals: &mut Signals,
) -> Result<Ended<Captured>> {
    let control = execution.control.clone();
    let feeding = feed(execution.stdin.take(), input);
    let capturing = execution.capture(caps);
    tokio::pin!(feeding, capturing);
    let mut fed = false;
    let mut obedience = Obedience::new(&control);
    loop {
        tokio::select! {
            captured = &mut capturing => return Ok(Ended { value: captured?, cut_short: obedience.cut_short }),
            () = &mut feeding, if !fed => fed = true,
            heard = signals.next() => obedience.obey(heard).await?,
        }
    }
}

/// What a signal to us means for the command.
struct Obedience<'a> {
    control: &'a ExecutionControl,
    interrupted: bool,
    cut_short: Option<CutShort>,
}

impl<'a> Obedience<'a> {
    fn new(control: &'a ExecutionControl) -> Self {
        Self { control, interrupted: false, cut_short: None }
    }

    /// The first Ctrl-C is the command's, which may want to tidy up; the second one is meant.
    async fn obey(&mut self, heard: Heard) -> Result<()> {
        match heard {
            // Most commands have no terminal to resize, and one that has can live with the old size.
            Heard::Resized => {
                let _ = self.control.resize(terminal::size()).await;
                Ok(())
            }
            Heard::End(Signal::Interrupt) if !self.interrupted => {
                self.interrupted = true;
                self.control.signal(Signal::Interrupt).await
            }
            Heard::End(signal) => self.cut(CutShort::Signal(signal)).await,
        }
    }

    async fn cut(&mut self, why: CutShort) -> Result<()> {
        self.cut_short.get_or_insert(why);
        self.control.cancel().await
    }
}

/// One stream of the command on its way to one of ours.
#[derive(Debug)]
struct Pump {
    kept: RefCell<CappedOutput>,
    writing: Cell<bool>,
}

impl Pump {
    fn new(kept: OutputCaps) -> Self {
        Self { kept: RefCell::new(CappedOutput::new(kept)), writing: Cell::new(false) }
    }

    fn bytes(&self) -> u64 {
        self.kept.borrow().total()
    }

    /// A slow reader of ours must not look like a silent command.
    fn is_writing(&self) -> bool {
        self.writing.get()
    }

    /// Only a failure on our side is an error; the command's side ends however it likes.
    async fn copy(
        &self,
        mut from: Box<dyn AsyncRead + Send + Unpin>,
        to: impl FnOnce() -> io::Result<OurStream>,
    ) -> io::Result<()> {
        let to = to()?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return Ok(());
            }
            self.writing.set(true);
            to.write_all(&buffer[..count]).await?;
            self.writing.set(false);
            self.kept.borrow_mut().push(&buffer[..count]);
        }
    }
}

/// Ours to the command until either has had enough. The command sees the end of ours as the end of its own.
async fn feed(to: Option<Box<dyn AsyncWrite + Send + Unpin>>, input: Input) {
    let Some(mut to) = to else { return };
    if input == Input::Nothing || terminal::stdin_belongs_to_somebody_else() {
        return;
    }
    let Ok(from) = OurStream::stdin() else { return };
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
        && to.write_all(&buffer[..count]).await.is_ok()
        && to.flush().await.is_ok()
    {}
}
