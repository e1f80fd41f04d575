//! A package index and an npm registry of our own, on loopback: files of a directory, counted.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Serves them to whoever has a login.
const LOGIN: &str = include_str!("login.py");

/// Writes the packages; its arguments are the directory and the address that links begin with.
const MAKE: &str = include_str!("index.py");

pub struct Index {
    pub port: u16,
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
        make(site, &format!("http://127.0.0.1:{port}"));
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

/// The same packages behind TLS and a login, as a program of its own.
pub struct PrivateIndex {
    pub port: u16,
    pub authority: PathBuf,
    serving: Child,
}

impl PrivateIndex {
    /// `None` where no certificate can be made.
    pub fn start(directory: &Path, login: &str) -> Option<Self> {
        let path = |name: &str| directory.join(name).display().to_string();
        let openssl = |arguments: &[&str]| {
            let done = Command::new("openssl").args(arguments).output();
            done.is_ok_and(|done| done.status.success())
        };
        std::fs::create_dir_all(directory.join("site")).unwrap();
        std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
        let (ca, ca_key, own, own_key) = (path("ca.pem"), path("ca.key"), path("own.pem"), path("own.key"));
        let (request, names) = (path("own.csr"), path("names"));
        let new = ["req", "-newkey", "rsa:2048", "-nodes", "-days", "2"];
        let made = openssl(&[&new[..], &["-x509", "-keyout", &ca_key, "-out", &ca, "-subj", "/CN=test"]].concat())
            && openssl(&[&new[..4], &["-keyout", &own_key, "-out", &request, "-subj", "/CN=localhost"]].concat())
            && openssl(&[
                "x509",
                "-req",
                "-in",
                &request,
                "-CA",
                &ca,
                "-CAkey",
                &ca_key,
                "-CAcreateserial",
                "-out",
                &own,
                "-days",
                "2",
                "-extfile",
                &names,
            ]);
        if !made {
            return None;
        }
        let mut serving = Command::new("/usr/bin/python3")
            .args(["-c", LOGIN, &path("site"), &own, &own_key, login])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(serving.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        make(&directory.join("site"), &format!("https://localhost:{port}"));
        Some(Self { port, authority: directory.join("ca.pem"), serving })
    }
}

impl Drop for PrivateIndex {
    fn drop(&mut self) {
        let _ = self.serving.kill();
        let _ = self.serving.wait();
    }
}

fn make(site: &Path, address: &str) {
    let made = Command::new("/usr/bin/python3").args(["-c", MAKE]).arg(site).arg(address).status();
    assert!(made.unwrap().success());
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
