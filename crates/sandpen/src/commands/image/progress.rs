//! How far it is, on one line of a terminal that is drawn again and again. Nobody else sees anything of it.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use images::{Progress, Step};
use sandbox::ByteSize;

use crate::terminal;

const BETWEEN_FRAMES: Duration = Duration::from_millis(100);
/// Whoever is done sooner needs no bar.
const NOT_BEFORE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Bar {
    state: Arc<State>,
    drawing: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    step: Mutex<Option<Step>>,
    total: AtomicU64,
    done: AtomicU64,
    ended: AtomicBool,
}

impl Bar {
    pub fn start(json: bool) -> Self {
        let state = Arc::new(State::default());
        let wanted = !json && std::io::stderr().is_terminal();
        let shared = state.clone();
        let drawing = wanted.then(|| std::thread::spawn(move || draw(&shared)));
        Self { state, drawing }
    }

    pub fn progress(&self) -> Arc<dyn Progress> {
        self.state.clone()
    }
}

/// Takes the bar off the screen.
impl Drop for Bar {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        if let Some(drawing) = self.drawing.take() {
            drawing.thread().unpark();
            let _ = drawing.join();
        }
    }
}

impl Progress for State {
    fn step(&self, step: Step) {
        *self.step.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(step);
    }

    fn total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn draw(state: &State) {
    let start = Instant::now();
    let mut drawn = false;
    while !state.ended.load(Ordering::Relaxed) {
        std::thread::park_timeout(BETWEEN_FRAMES);
        if start.elapsed() < NOT_BEFORE || state.ended.load(Ordering::Relaxed) {
            continue;
        }
        let step = *state.step.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (done, total) = (state.done.load(Ordering::Relaxed), state.total.load(Ordering::Relaxed));
        let columns = usize::from(terminal::size().columns);
        show(&format!("\r{}\x1b[K", line(step, done, total, start.elapsed(), columns)));
        drawn = true;
    }
    if drawn {
        show("\r\x1b[K");
    }
}

fn show(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// What fits into one line of that many columns.
fn line(step: Option<Step>, done: u64, total: u64, elapsed: Duration, columns: usize) -> String {
    let what = match step {
        None | Some(Step::Asking) => "asking",
        Some(Step::Reading) => "reading",
        Some(Step::Downloading) => "downloading",
        Some(Step::Unpacking) => "unpacking",
        Some(Step::Uploading) => "uploading",
        Some(Step::Writing) => "writing",
    };
    // A layer that had to be fetched again, or a file that is read twice, counts twice.
    let done = done.min(total);
    let rate = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let numbers = match total {
        0 => String::new(),
        _ => format!("{} of {}, {}/s", ByteSize::new(done), ByteSize::new(total), ByteSize::new(rate)),
    };
    let room = columns.saturating_sub(what.len() + numbers.len() + 6).min(40);
    let text = if total == 0 || room < 8 {
        format!("{what} {numbers}")
    } else {
        let filled = usize::try_from(u128::from(done) * room as u128 / u128::from(total)).unwrap_or(room);
        format!("{what} [{}{}] {numbers}", "=".repeat(filled), " ".repeat(room - filled))
    };
    text.chars().take(columns.saturating_sub(1)).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_and_never_says_more_than_all() {
        let second = Duration::from_secs(1);
        let half = line(Some(Step::Downloading), 512 << 10, 1 << 20, second, 80);
        assert!(half.starts_with("downloading [==") && half.ends_with("] 512 KiB of 1 MiB, 512 KiB/s"), "{half}");
        let over = line(Some(Step::Reading), 5 << 20, 1 << 20, second, 80);
        assert!(over.contains("1 MiB of 1 MiB") && !over.contains("= "), "{over}");
        assert_eq!(line(None, 0, 0, second, 80), "asking");
        for columns in 0..100 {
            let line = line(Some(Step::Unpacking), 1, 3, second, columns);
            assert!(line.chars().count() <= columns, "{columns}: {line:?}");
        }
    }
}
