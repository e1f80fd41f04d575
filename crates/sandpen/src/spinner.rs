//! What goes on, on one line of a terminal that is drawn again and again. Nobody else sees anything of it.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::terminal;

const BETWEEN_FRAMES: Duration = Duration::from_millis(100);
/// Whoever is done sooner needs no line.
const NOT_BEFORE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Spinner {
    /// `None` at the end.
    text: Arc<Mutex<Option<String>>>,
    drawing: Option<JoinHandle<()>>,
}

impl Spinner {
    pub fn start(text: &str, json: bool) -> Self {
        let text = Arc::new(Mutex::new(Some(text.to_owned())));
        let wanted = !json && std::io::stderr().is_terminal();
        let shared = Arc::clone(&text);
        let drawing = wanted.then(|| std::thread::spawn(move || draw(&shared)));
        Self { text, drawing }
    }

    pub fn say(&self, text: String) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

impl Drop for Spinner {
    /// Takes the line off the screen.
    fn drop(&mut self) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(drawing) = self.drawing.take() {
            drawing.thread().unpark();
            let _ = drawing.join();
        }
    }
}

fn draw(text: &Mutex<Option<String>>) {
    let start = Instant::now();
    let mut drawn = false;
    loop {
        std::thread::park_timeout(BETWEEN_FRAMES);
        let Some(text) = text.lock().unwrap_or_else(PoisonError::into_inner).clone() else { break };
        if start.elapsed() >= NOT_BEFORE {
            show(&format!("\r{}\x1b[K", line(&text, start.elapsed(), usize::from(terminal::size().columns))));
            drawn = true;
        }
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
fn line(text: &str, elapsed: Duration, columns: usize) -> String {
    let seconds = format!(" {} s", elapsed.as_secs());
    let room = columns.saturating_sub(seconds.len() + 1);
    let text: String = text.chars().take(room).collect();
    format!("{text}{seconds}").chars().take(columns.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits() {
        let long = "x".repeat(100);
        assert_eq!(line("resolving", Duration::from_secs(3), 80), "resolving 3 s");
        for columns in 0..120 {
            assert!(line(&long, Duration::from_secs(100), columns).chars().count() <= columns, "{columns}");
        }
    }
}
