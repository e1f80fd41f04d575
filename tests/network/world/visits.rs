//! Who came, as those saw it who were visited. What a sandbox says of itself is not evidence.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::places;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The name of a place, or `loopback`.
    pub place: String,
    pub kind: VisitKind,
    pub port: u16,
    /// A request with all its headers and its body, a datagram's first bytes, or a question to the resolver.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisitKind {
    Connection,
    /// The first message of a TLS client: the text is the name in it.
    Greeting,
    Request,
    Datagram,
    Question,
}

impl VisitKind {
    const ALL: [Self; 5] = [Self::Connection, Self::Greeting, Self::Request, Self::Datagram, Self::Question];

    fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Greeting => "greeting",
            Self::Request => "request",
            Self::Datagram => "datagram",
            Self::Question => "question",
        }
    }
}

impl Visit {
    pub fn to_json(&self) -> Value {
        json!({"place": self.place, "kind": self.kind.as_str(), "port": self.port, "text": self.text})
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        let kind = value["kind"].as_str()?;
        Some(Self {
            place: value["place"].as_str()?.to_owned(),
            kind: VisitKind::ALL.into_iter().find(|known| known.as_str() == kind)?,
            port: value["port"].as_u64()?.try_into().ok()?,
            text: value["text"].as_str()?.to_owned(),
        })
    }
}

impl std::fmt::Display for Visit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.text.lines().next().unwrap_or_default();
        write!(f, "a {} at {} port {} {first}", self.kind.as_str(), self.place, self.port)
    }
}

/// Shared by all servers of the world.
#[derive(Clone, Debug, Default)]
pub struct Visits(Arc<Mutex<Vec<Visit>>>);

impl Visits {
    pub fn add(&self, local: SocketAddr, kind: VisitKind, text: impl Into<String>) {
        let place = places::at(local.ip()).to_owned();
        let visit = Visit { place, kind, port: local.port(), text: text.into() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(visit);
    }

    /// All since the last time.
    pub fn take(&self) -> Vec<Visit> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
