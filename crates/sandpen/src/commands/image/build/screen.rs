//! A build as a person sees it: each step as it begins, what it writes, and where it came from.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use images::Progress;
use sandbox::TextPieces;

use super::super::progress::Bar;
use crate::build::{Made, News, Watcher};
use crate::output::{self, ADVICE, DIM, printable};

/// Everything goes to standard error; with `--json` nothing does.
pub struct BuildScreen {
    json: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// While an image is being fetched.
    bar: Option<Bar>,
    text: TextPieces,
    /// Whether the last thing that a step wrote was the end of a line.
    in_line: bool,
}

impl BuildScreen {
    pub fn new(json: bool) -> Self {
        Self { json, state: Mutex::default() }
    }

    /// Nothing is left on the screen that would be drawn again.
    pub fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end_bar();
        if !self.json {
            state.end_line();
        }
    }
}

impl Watcher for BuildScreen {
    fn news(&self, news: News<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match news {
            News::Pulling(_) => {
                state.end_bar();
                state.bar = Some(Bar::start(self.json));
            }
            News::Pulled(reference) => {
                state.end_bar();
                if !self.json {
                    show(&format!("{DIM}pulled {}{DIM:#}\n", reference.familiar()));
                }
            }
            _ if self.json => {}
            News::Step { number, of, text, .. } => {
                show(&format!("{ADVICE}[{number}/{of}]{ADVICE:#} {}\n", printable(text)));
            }
            News::Output(bytes) => state.write(bytes),
            News::Done(made) => {
                state.end_line();
                match made {
                    Made::FromCache => show(&format!("{DIM}  cached{DIM:#}\n")),
                    Made::NoChange => show(&format!("{DIM}  no file changed{DIM:#}\n")),
                    Made::Layer | Made::Metadata => {}
                }
            }
            News::Warning(text) => output::note(text, None),
        }
    }

    fn pull_progress(&self) -> Arc<dyn Progress> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.bar {
            Some(bar) => bar.progress(),
            None => Arc::new(images::work::Silent),
        }
    }
}

impl State {
    fn end_bar(&mut self) {
        self.bar = None;
    }

    /// Whatever runs in a build is not trusted with the terminal.
    fn write(&mut self, bytes: &[u8]) {
        let text = self.text.push(bytes);
        let shown: String = text.chars().filter(|one| !one.is_control() || matches!(one, '\n' | '\t' | '\r')).collect();
        if let Some(last) = shown.chars().last() {
            self.in_line = last != '\n';
            show(&shown);
        }
    }

    fn end_line(&mut self) {
        self.text = TextPieces::default();
        if std::mem::take(&mut self.in_line) {
            show("\n");
        }
    }
}

fn show(text: &str) {
    let mut stderr = anstream::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
