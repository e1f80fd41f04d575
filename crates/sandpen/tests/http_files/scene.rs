//! A server with a sandbox, as most tests want them, and what probes are pointed at.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::client::{self, Headers, Reply};
use crate::support::World;
use crate::support::server::Server;

pub struct Scene {
    pub world: World,
    pub server: Server,
    pub token: String,
    /// A persistent sandbox of the token's owner.
    pub sandbox: String,
}

macro_rules! needs_sandboxes {
    () => {
        if !crate::support::sandboxes_work() {
            return;
        }
    };
}
pub(crate) use needs_sandboxes;

impl Scene {
    pub fn new() -> Self {
        Self::with(&[], &[])
    }

    /// With these for `serve`, and these for `create`.
    pub fn with(serve: &[&str], create: &[&str]) -> Self {
        let world = World::new();
        let token = token(&world, &[]);
        let sandbox = world.run(&[&["create"], create].concat()).succeeds().trim().to_owned();
        let server = Server::guarded(&world, serve);
        Self { world, server, token, sandbox }
    }

    pub fn base(&self) -> String {
        format!("/api/sandboxes/{}", self.sandbox)
    }

    /// The address of a file, which is named by its whole path.
    pub fn at(&self, path: &str) -> String {
        format!("{}/files{path}", self.base())
    }

    #[track_caller]
    pub fn send(&self, method: &str, path: &str, headers: Headers<'_>, body: &[u8]) -> Reply {
        let shown = [("authorization", self.token.as_str())];
        client::send(self.server.address, method, path, &[&shown[..], headers].concat(), body)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", &self.at(path), &[], b"")
    }

    #[track_caller]
    pub fn put(&self, path: &str, body: &[u8]) -> Reply {
        self.send("PUT", &self.at(path), &[], body)
    }

    /// What a command prints in the sandbox.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        self.world.run(&["exec", &self.sandbox, "--", "sh", "-c", script]).succeeds()
    }

    /// The names in a directory.
    #[track_caller]
    pub fn names(&self, path: &str) -> Vec<String> {
        let listing = self.get(path).expect(200).json();
        listing["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The address of a link, without the host.
    #[track_caller]
    pub fn link(&self, wish: Value) -> String {
        let made = self.send("POST", &format!("{}/links", self.base()), &[], wish.to_string().as_bytes()).expect(201);
        let url = made.json()["url"].as_str().unwrap().to_owned();
        url.strip_prefix(&format!("http://{}", self.server.address)).unwrap().to_owned()
    }

    #[track_caller]
    pub fn link_to(&self, path: &str) -> String {
        self.link(json!({ "path": path }))
    }

    /// What probes of names and uploads are pointed at. Nothing may get to `outside`, which is on the host.
    pub fn store(&self) -> Store {
        let outside = self.world.work().join("canary");
        std::fs::write(&outside, CANARY).unwrap();
        Store { address: self.server.address, authorization: self.token.clone(), base: self.at("/workspace"), outside }
    }
}

/// A header that shows a new token.
pub fn token(world: &World, arguments: &[&str]) -> String {
    let made = world.run(&[&["--json", "token", "create"], arguments].concat()).json();
    format!("Bearer {}", made["token"].as_str().unwrap())
}

pub const CANARY: &str = "nobody changes this";

/// Where files can be put and got, for whoever writes the name into the address.
pub struct Store {
    pub address: SocketAddr,
    pub authorization: String,
    pub base: String,
    /// A file that is not part of it.
    pub outside: PathBuf,
}

impl Store {
    #[track_caller]
    pub fn send(&self, method: &str, name: &str, headers: Headers<'_>, body: &[u8]) -> Reply {
        let shown = [("authorization", self.authorization.as_str())];
        client::send(self.address, method, &format!("{}{name}", self.base), &[&shown[..], headers].concat(), body)
    }
}
