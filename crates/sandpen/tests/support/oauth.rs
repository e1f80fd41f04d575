//! A client of `sandpen serve --oauth` that does what programs do, and a person who signs in.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::support::World;
use super::support::server::{Answer, MCP, Server, request};

pub const META: &str = "io.modelcontextprotocol/protocolVersion";
pub const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
pub const REDIRECT: &str = "http://127.0.0.1:3334/oauth/callback";
pub const PASSWORD: &str = "correct horse battery";

/// A call of 2026-07-28, which needs no session.
pub fn call_at(server: &Server, path: &str, token: &str, tool: &str, arguments: Value) -> Answer {
    let meta = json!({ META: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {} });
    let body = request(7, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
    let shown = format!("Bearer {token}");
    let headers = [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", tool),
        ("authorization", &shown),
    ];
    server.open("POST", path, &[MCP, &headers].concat(), &body).whole()
}

pub fn status(server: &Server, token: &str) -> u16 {
    call_at(server, "/mcp", token, "list_sandboxes", json!({})).status
}

pub fn resource(server: &Server) -> String {
    format!("http://{}/mcp", server.address)
}

pub fn form(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

pub fn post(server: &Server, path: &str, pairs: &[(&str, &str)]) -> Answer {
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    server.open("POST", path, &headers, form(pairs).as_bytes()).whole()
}

pub fn with(mut value: Value, name: &str, other: Value) -> Value {
    match other {
        Value::Null => drop(value.as_object_mut().unwrap().remove(name)),
        other => value[name] = other,
    }
    value
}

pub fn account(world: &World, name: &str, flags: &[&str]) {
    let made = world.run_with_stdin(&[&["account", "create", name], flags].concat(), &format!("{PASSWORD}\n"));
    made.expect(0, &format!("{name}\n"));
}

pub fn challenge() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER.as_bytes()))
}

/// A client of the authorization server, as a program would be one.
pub struct Client<'a> {
    pub server: &'a Server,
    pub id: String,
}

impl<'a> Client<'a> {
    pub fn register(server: &'a Server) -> Self {
        let body =
            json!({ "client_name": "A test", "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none" });
        let headers = [("content-type", "application/json")];
        let answer = server.open("POST", "/oauth/register", &headers, body.to_string().as_bytes()).whole();
        assert_eq!(answer.status, 201, "{answer:?}");
        Self { server, id: answer.json()["client_id"].as_str().unwrap().to_owned() }
    }

    pub fn query(&self, changes: &[(&str, &str)]) -> String {
        let (challenge, resource) = (challenge(), resource(self.server));
        let usual = [
            ("response_type", "code"),
            ("client_id", &self.id),
            ("redirect_uri", REDIRECT),
            ("state", "the state"),
            ("scope", "sandpen:run"),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("resource", &resource),
        ];
        let changed = |name: &str| changes.iter().any(|(other, _)| *other == name);
        let kept = usual.into_iter().filter(|(name, _)| !changed(name));
        // What is changed to nothing is left out.
        let pairs: Vec<_> = kept.chain(changes.iter().copied().filter(|(_, value)| !value.is_empty())).collect();
        form(&pairs)
    }

    pub fn begin(&self, changes: &[(&str, &str)]) -> Answer {
        self.server.ask("GET", &format!("/oauth/authorize?{}", self.query(changes)), &[])
    }

    /// The page on which to agree.
    pub fn signed_in(&self, changes: &[(&str, &str)]) -> Answer {
        let page = self.begin(changes);
        assert_eq!(page.status, 200, "{page:?}");
        let transaction = transaction(&page);
        let pairs = [("transaction", transaction.as_str()), ("name", "alice"), ("password", PASSWORD)];
        post(self.server, "/oauth/sign-in", &pairs)
    }

    /// A code, by a person who agrees.
    pub fn code(&self, changes: &[(&str, &str)]) -> String {
        let page = self.signed_in(changes);
        assert_eq!(page.status, 200, "{page:?}");
        let answer = agree(self.server, &page);
        let answered = answered(&answer);
        assert_eq!(answered("state").as_deref(), Some("the state"));
        assert_eq!(answered("iss"), Some(format!("http://{}", self.server.address)));
        answered("code").unwrap()
    }

    pub fn redeem(&self, code: &str, changes: &[(&str, &str)]) -> Answer {
        let usual = [
            ("grant_type", "authorization_code"),
            ("client_id", &self.id),
            ("code", code),
            ("code_verifier", VERIFIER),
            ("redirect_uri", REDIRECT),
        ];
        let changed = |name: &str| changes.iter().any(|(other, _)| *other == name);
        let kept = usual.into_iter().filter(|(name, _)| !changed(name));
        post(self.server, "/oauth/token", &kept.chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    pub fn tokens(&self) -> Tokens {
        Tokens::of(&self.redeem(&self.code(&[]), &[]))
    }

    pub fn refresh(&self, refresh: &str) -> Answer {
        let pairs = [("grant_type", "refresh_token"), ("client_id", &self.id), ("refresh_token", refresh)];
        post(self.server, "/oauth/token", &pairs)
    }
}

pub struct Tokens {
    pub access: String,
    pub refresh: String,
}

impl Tokens {
    #[track_caller]
    pub fn of(answer: &Answer) -> Self {
        assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{answer:?}");
        let document = answer.json();
        let word = |name: &str| document[name].as_str().unwrap().to_owned();
        Self { access: word("access_token"), refresh: word("refresh_token") }
    }
}

/// What a page carries.
#[track_caller]
pub fn transaction(page: &Answer) -> String {
    let rest = page.body.split("name=\"transaction\" value=\"").nth(1).expect("the page has a form");
    rest.split('"').next().unwrap().to_owned()
}

pub fn agree(server: &Server, page: &Answer) -> Answer {
    post(server, "/oauth/consent", &[("transaction", &transaction(page)), ("decision", "allow")])
}

/// What was said to the client at its own address.
#[track_caller]
pub fn answered(answer: &Answer) -> impl Fn(&str) -> Option<String> + use<> {
    assert_eq!(answer.status, 303, "{answer:?}");
    let location = answer.header("location").unwrap().to_owned();
    assert!(location.starts_with(REDIRECT), "{location}");
    move |name| {
        let url = url::Url::parse(&location).unwrap();
        url.query_pairs().find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }
}
