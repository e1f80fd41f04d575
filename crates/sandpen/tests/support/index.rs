//! A package index and an npm registry of our own, on loopback: files of a directory, counted.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Writes the packages; its arguments are the directory and the address that links begin with.
const MAKE: &str = include_str!("index.py");

pub struct Index {
    port: u16,
    site: Arc<PathBuf>,
    pub paths: Arc<Mutex<Vec<String>>>,
    asked: Arc<AtomicUsize>,
    is_down: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl Index {
    pub fn start(site: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::fs::create_dir_all(site).unwrap();
        let made = Command::new("/usr/bin/python3")
            .args(["-c", MAKE])
            .arg(site)
            .arg(format!("http://127.0.0.1:{port}"))
            .status();
        assert!(made.unwrap().success());
        let (paths, asked, is_down) = (Arc::default(), Arc::default(), Arc::default());
        let mut index = Self { port, site: Arc::new(site.to_owned()), paths, asked, is_down, serving: None };
        let (site, paths, asked, is_down) =
            (Arc::clone(&index.site), Arc::clone(&index.paths), Arc::clone(&index.asked), Arc::clone(&index.is_down));
        index.serving = Some(std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_down.load(Ordering::SeqCst) {
                    return;
                }
                asked.fetch_add(1, Ordering::SeqCst);
                let (site, paths) = (Arc::clone(&site), Arc::clone(&paths));
                std::thread::spawn(move || answer(client, &site, &paths));
            }
        }));
        index
    }

    pub fn python(&self) -> String {
        format!("http://127.0.0.1:{}/simple", self.port)
    }

    pub fn npm(&self) -> String {
        format!("http://127.0.0.1:{}/npm/", self.port)
    }

    /// Connections so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// How often a path with this in it was fetched.
    pub fn fetched(&self, part: &str) -> usize {
        self.paths.lock().unwrap().iter().filter(|path| path.contains(part)).count()
    }

    /// From now on nobody answers.
    pub fn switch_off(&mut self) {
        self.is_down.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(serving) = self.serving.take() {
            serving.join().unwrap();
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.switch_off();
    }
}

fn answer(client: TcpStream, site: &Path, paths: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut request = String::new();
    if reader.read_line(&mut request).is_err() {
        return;
    }
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
        line.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/").to_owned();
    let file = site.join(path.trim_start_matches('/'));
    paths.lock().unwrap().push(path);
    let file = if file.is_dir() { file.join("index.html") } else { file };
    let (status, kind, body) = match std::fs::read(&file) {
        Ok(body) if file.extension().is_some_and(|ending| ending == "html") => ("200 OK", "text/html", body),
        Ok(body) if file.extension().is_none() => ("200 OK", "application/json", body),
        Ok(body) => ("200 OK", "application/octet-stream", body),
        Err(_) => ("404 Not Found", "text/plain", Vec::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut client = client;
    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body));
}
