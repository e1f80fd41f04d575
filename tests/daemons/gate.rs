//! A way to the registry that can be shut: what is asked for meanwhile waits, and it is seen what that was.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandpen_tests::Result;

use crate::scene::LIMIT;

pub(crate) struct Gate {
    pub host: String,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    shut: AtomicBool,
    waiting: AtomicUsize,
    /// Content that was asked for.
    asked: Mutex<Vec<String>>,
}

impl Gate {
    /// It lives as long as this program, as its threads do.
    pub fn before(registry: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let host = listener.local_addr()?.to_string();
        let (seen, registry) = (Arc::new(Seen::default()), registry.to_owned());
        let shared = seen.clone();
        std::thread::spawn(move || {
            for visitor in listener.incoming().flatten() {
                let (seen, registry) = (shared.clone(), registry.clone());
                std::thread::spawn(move || seen.pass(visitor, &registry));
            }
        });
        Ok(Self { host, seen })
    }

    pub fn shut(&self) {
        self.seen.asked.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.seen.shut.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.seen.shut.store(false, Ordering::SeqCst);
    }

    /// Returns when somebody waits.
    pub fn is_visited(&self) -> Result<()> {
        until("nobody comes to the registry", || self.seen.waiting.load(Ordering::SeqCst) > 0)
    }

    /// Returns when nobody does any more.
    pub fn is_passed(&self) -> Result<()> {
        until("somebody still waits for the registry", || self.seen.waiting.load(Ordering::SeqCst) == 0)
    }

    /// Everything that was fetched, as often as it was.
    pub fn asked(&self) -> Vec<String> {
        self.seen.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Seen {
    /// One request, of a visitor that speaks plainly; others are sent away, and try that next.
    fn pass(&self, visitor: TcpStream, registry: &str) {
        let Ok(copy) = visitor.try_clone() else { return };
        let mut reader = BufReader::new(copy);
        let mut first = [0];
        if visitor.peek(&mut first).is_err() || !first[0].is_ascii_uppercase() {
            return;
        }
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(count) if count > 2 => head.push(line),
                Ok(2) => break,
                Ok(_) | Err(_) => return,
            }
        }
        let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        if path.contains("/blobs/") {
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(path);
            if !self.waits(&visitor) {
                return;
            }
        }
        // Later words of the visitor would need to be understood too, so there is one answer for each connection.
        head.retain(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        let request = format!("{}Connection: close\r\n\r\n", head.concat());
        let Ok(mut upstream) = TcpStream::connect(registry) else { return };
        let mut visitor = visitor;
        let mut answer = [0; 1 << 16];
        let mut sent = upstream.write_all(request.as_bytes());
        while sent.is_ok() {
            sent = match upstream.read(&mut answer) {
                Ok(0) | Err(_) => return,
                Ok(count) => visitor.write_all(&answer[..count]),
            };
        }
    }

    /// Until it is open; false when the visitor is gone before.
    fn waits(&self, visitor: &TcpStream) -> bool {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _ = visitor.set_read_timeout(Some(Duration::from_millis(50)));
        let mut stays = true;
        while stays && self.shut.load(Ordering::SeqCst) {
            stays = match visitor.peek(&mut [0]) {
                Ok(count) => count > 0,
                Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            };
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        stays
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > LIMIT {
            return Err(what.into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
