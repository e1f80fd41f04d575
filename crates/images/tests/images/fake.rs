//! A registry of the test's own, for what no real one does on demand. It remembers who asked for what.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use images::Digest;

use crate::archive::Layout;

#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Asked {
    pub fn authorization(&self) -> Option<&str> {
        self.headers.get("authorization").map(String::as_str)
    }
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

pub struct Fake {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    pub fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Self { port, asked }
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Answer) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(asked) = read_request(&mut reader) {
        let Answer { status, headers, body } = answer(&asked);
        let is_head = asked.method == "HEAD";
        seen.lock().unwrap().push(asked);
        let mut text = format!("HTTP/1.1 {status} Some\r\n");
        if !headers.iter().any(|(name, _)| name == "Content-Length") {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        let body = if is_head { &[][..] } else { &body };
        if writer.write_all(text.as_bytes()).and_then(|()| writer.write_all(body)).is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

/// One image, as a registry has it: paths below `/v2/` and what is there.
#[derive(Clone)]
pub struct Shelf {
    pub repository: String,
    pub documents: BTreeMap<String, (String, Vec<u8>)>,
    pub blobs: BTreeMap<String, Vec<u8>>,
}

impl Shelf {
    /// The image under a tag, in a repository.
    pub fn new(repository: &str, tag: &str, layout: Layout) -> Self {
        let layout = layout.finish();
        let manifest = layout.manifest.to_string().into_bytes();
        let kind = layout.manifest["mediaType"].as_str().unwrap().to_owned();
        let digest = Digest::of(&manifest).qualified();
        let documents = [(tag.to_owned(), (kind.clone(), manifest.clone())), (digest, (kind, manifest))].into();
        let blobs = layout.blobs.into_iter().map(|(digits, bytes)| (format!("sha256:{digits}"), bytes)).collect();
        Self { repository: repository.to_owned(), documents, blobs }
    }

    pub fn answer(&self, asked: &Asked) -> Answer {
        let Some(path) = asked.path.strip_prefix(&format!("/v2/{}/", self.repository)) else {
            return Answer::new(404, "");
        };
        if let Some((kind, bytes)) = path.strip_prefix("manifests/").and_then(|name| self.documents.get(name)) {
            return Answer::new(200, bytes.clone()).with("Content-Type", kind);
        }
        match path.strip_prefix("blobs/").and_then(|digest| self.blobs.get(digest)) {
            Some(bytes) => Answer::new(200, bytes.clone()),
            None => Answer::new(404, r#"{"errors":[{"code":"NAME_UNKNOWN","message":"nothing here"}]}"#),
        }
    }
}
