//! A server that does what ours must not: it believes names, keeps no bound, writes in place, asks nobody, and serves what it has
//! as it is. What a probe does not find here it would not find anywhere.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::scene::{CANARY, Store};

pub struct Careless {
    directory: TempDir,
    pub store: Store,
}

impl Careless {
    pub fn start() -> Self {
        let directory = TempDir::with_prefix("careless-").unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let outside = directory.path().join("canary");
        std::fs::write(&outside, CANARY).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // It ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let root = root.clone();
                std::thread::spawn(move || serve(stream, &root));
            }
        });
        let authorization = "Bearer anybody".to_owned();
        Self { directory, store: Store { address, authorization, base: String::new(), outside } }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }
}

fn serve(mut stream: TcpStream, root: &Path) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split_whitespace();
    let (method, target) = (words.next()?, words.next()?);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|text| text.parse().ok());
    let (name, query) = target.split_once('?').unwrap_or((target, ""));
    let name = decoded(name.strip_prefix('/').unwrap_or(name));
    // An absolute name leads wherever it says.
    let path = root.join(std::ffi::OsStr::new(&String::from_utf8_lossy(&name).into_owned()));
    let mut body = Read::take(&mut stream, length.unwrap_or(0));
    let status = match method {
        "PUT" if query == "archive=tar" => unpack(&mut body, &path).map_or("400 Bad Request", |()| "201 Created"),
        "PUT" => match File::create(&path).and_then(|mut file| std::io::copy(&mut body, &mut file)) {
            Ok(_) => "201 Created",
            Err(_) => "400 Bad Request",
        },
        _ => "200 OK",
    };
    let contents = if method == "GET" { std::fs::read(&path).unwrap_or_default() } else { Vec::new() };
    let kind = if target.contains(".svg") { "image/svg+xml" } else { "text/html" };
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", contents.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&contents).ok()?;
    // Whoever still sends would not hear it otherwise.
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    std::io::copy(&mut stream, &mut std::io::sink()).ok().map(drop)
}

fn unpack(archive: &mut impl Read, directory: &Path) -> std::io::Result<()> {
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap())?;
        match entry.link_name()? {
            Some(target) => std::os::unix::fs::symlink(target, path)?,
            None => std::io::copy(&mut entry, &mut File::create(path)?).map(drop)?,
        }
    }
    Ok(())
}

fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}
