//! Previews: what a program in a sandbox serves, for whoever has its address and nobody else.
//!
//! The walls are probes that judge a server, the real one green, and one without that wall red.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::process::{Pid, Resource, Rlimit};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::caller::Caller;
use support::client::Client;
use support::server::{Answer, Server};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

const SERVER: &str = include_str!("support/shown.py");

type Verdict = Result<(), String>;

#[track_caller]
fn judge(wall: &str, real: Verdict, without_the_wall: Verdict) {
    assert_eq!(real, Ok(()), "{wall}");
    assert!(without_the_wall.is_err(), "{wall}: the probe does not see that the wall is missing");
}

fn expect(is_right: bool, what: impl FnOnce() -> String) -> Verdict {
    if is_right { Ok(()) } else { Err(what()) }
}

/// An address as `expose_port` gives it, for a client that looks no names up.
struct Seen {
    server: Server,
    host: String,
}

impl Seen {
    fn at(url: &str) -> Self {
        let host = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')).expect(url).to_owned();
        let port: u16 = host.rsplit_once(':').unwrap().1.parse().unwrap();
        Self { server: Server::known_at(SocketAddr::from(([127, 0, 0, 1], port))), host }
    }

    fn name(&self) -> &str {
        self.host.split('.').next().unwrap()
    }

    fn origin(&self) -> String {
        format!("http://{}", self.host)
    }

    fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.server.open(method, path, &[&[("host", self.host.as_str())], headers].concat(), body)
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.open(method, path, headers, b"").whole()
    }

    fn connect(&self) -> TcpStream {
        self.server.connect()
    }

    /// Go on in another protocol.
    fn switched(&self) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        let head = format!(
            "GET /switch HTTP/1.1\r\nhost: {}\r\nconnection: keep-alive, Upgrade\r\nupgrade: lines\r\n\r\n",
            self.host
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: lines"), "{head}");
        stream
    }
}

/// A server over HTTP, somebody who uses it, and a sandbox of theirs in which something is served.
struct Scene {
    _world: World,
    server: Server,
    alice: Caller,
    bob: Caller,
    sandbox: String,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let (alice, bob) = (Caller::new(&world, &["--owner", "alice"]), Caller::new(&world, &["--owner", "bob"]));
        let server = Server::guarded(&world, &[]);
        let made = alice.call(&server, "create_sandbox", json!({}));
        let sandbox = made["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned();
        let scene = Self { _world: world, server, alice, bob, sandbox };
        scene.serve(8000);
        scene
    }

    fn serve(&self, port: u16) {
        let run = json!({
            "sandbox_id": self.sandbox, "background": true, "timeout_s": 600,
            "argv": ["python3", "-c", SERVER, port.to_string()],
        });
        let job = self.call("run_command", run)["job_id"].as_str().unwrap().to_owned();
        wait_until("the server inside to listen", || {
            let seen = self.call("get_job", json!({ "job_id": job }));
            assert_eq!(seen["status"], "running", "{seen}");
            seen["stdout"].as_str().unwrap().contains("listening")
        });
    }

    #[track_caller]
    fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.alice.call(&self.server, tool, arguments);
        assert_ne!(answer["isError"], true, "{answer}");
        answer["structuredContent"].clone()
    }

    fn expose(&self, arguments: Value) -> Seen {
        let mut whole = json!({ "sandbox_id": self.sandbox, "port": 8000 });
        whole.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        Seen::at(self.call("expose_port", whole)["url"].as_str().unwrap())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn over_stdio_a_preview_is_opened_when_it_is_asked_for_and_ends_with_the_server() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let made = client.call("create_sandbox", json!({}));
    let sandbox = made["structuredContent"]["sandbox_id"].clone();
    let early = client.call("expose_port", json!({ "sandbox_id": sandbox, "port": 8000 }));
    assert_eq!(early["structuredContent"]["listening"], false, "{early}");
    let seen = Seen::at(early["structuredContent"]["url"].as_str().unwrap());
    assert!(seen.host.contains(".localhost:"), "{}", seen.host);
    let nobody = seen.ask("GET", "/", &[]);
    assert_eq!(nobody.status, 502);
    assert!(nobody.body.contains("nothing in the sandbox listens on port 8000"), "{}", nobody.body);

    let argv = json!(["python3", "-c", SERVER, "8000"]);
    client.call("run_command", json!({ "sandbox_id": sandbox, "background": true, "argv": argv }));
    wait_until("the server inside to listen", || seen.ask("GET", "/", &[]).status == 200);
    let again = client.call("expose_port", json!({ "sandbox_id": sandbox, "port": 8000 }));
    assert_eq!(again["structuredContent"]["url"], early["structuredContent"]["url"], "it is the same preview");
    assert_eq!(again["structuredContent"]["listening"], true);
    // As a person would: names below localhost lead to this machine.
    let curl = std::process::Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", &format!("{}/x?y=z", seen.origin())])
        .output();
    if let Ok(curl) = curl {
        let said: Value = serde_json::from_slice(&curl.stdout).unwrap_or_else(|error| panic!("{error}: {curl:?}"));
        assert_eq!(said["path"], "/x?y=z");
    }
    client.call("stop_sandbox", json!({ "sandbox_id": sandbox }));
    assert_eq!(seen.ask("GET", "/", &[]).status, 502, "the sandbox is gone");
    assert_eq!(seen.ask("GET", "/", &[]).status, 404, "and so is its preview");
    client.close_stdin();
    client.wait();
    assert!(TcpStream::connect(seen.server.address).is_err(), "it still listens");
}

#[test]
fn everything_that_http_can_do_passes() {
    needs_sandboxes!();
    let scene = Scene::new();
    let seen = scene.expose(json!({}));

    let body: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let said = seen.open("POST", "/a%20b?c=%2F", &[("content-type", "x/y")], &body).whole().json();
    assert_eq!((&said["method"], &said["path"]), (&json!("POST"), &json!("/a%20b?c=%2F")));
    assert_eq!((&said["bytes"], &said["digest"]), (&json!(body.len()), &json!(hex(&Sha256::digest(&body)))));
    assert_eq!(said["headers"]["host"], "localhost:8000");

    // In pieces, and another request on the same connection after it.
    let mut stream = seen.connect();
    let head = |method: &str| format!("{method} / HTTP/1.1\r\nhost: {}\r\n", seen.host);
    stream.write_all(format!("{}transfer-encoding: chunked\r\n\r\n", head("PUT")).as_bytes()).unwrap();
    for piece in body.chunks(700_000) {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).unwrap();
        stream.write_all(&[piece, b"\r\n"].concat()).unwrap();
    }
    stream.write_all(format!("0\r\n\r\n{}connection: close\r\n\r\n", head("DELETE")).as_bytes()).unwrap();
    let mut both = String::new();
    stream.read_to_string(&mut both).unwrap();
    assert_eq!(both.matches("HTTP/1.1 200 ").count(), 2, "{both}");
    assert!(both.contains(&hex(&Sha256::digest(&body))) && both.contains("\"DELETE\""), "{both}");

    let large = seen.ask("GET", "/large", &[]);
    assert_eq!((large.status, large.body.len()), (200, 16 << 20));
    assert_eq!(Sha256::digest(&large.body), Sha256::digest("0123456789abcdef".repeat(1 << 20)));
    assert_eq!(seen.ask("GET", "/away", &[]).header("location"), Some("/next"));
    let cookie = seen.ask("GET", "/", &[]);
    assert_eq!(cookie.header("set-cookie"), Some("a=1"));

    let mut events = seen.open("GET", "/events", &[], b"");
    events.until("data: 5\n");
    drop(events);

    let mut lines = seen.switched();
    for text in ["GET / HTTP/1.1\n", "bare line feeds\n", &format!("{}\n", "x".repeat(300_000))] {
        lines.get_mut().write_all(text.as_bytes()).unwrap();
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, format!("again: {text}"));
    }
    lines.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(lines.read_line(&mut String::new()).unwrap(), 0, "the end passes too");
}

#[test]
fn what_is_stopped_or_has_expired_is_over_for_those_in_the_middle_of_it_too() {
    needs_sandboxes!();
    let scene = Scene::new();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", scene.server.process())).unwrap().count();
    let is_over = |stream: &mut dyn Read| {
        let mut rest = Vec::new();
        // One that was cut is over too.
        let _ = stream.read_to_end(&mut rest);
    };
    // The listener stays.
    let seen = scene.expose(json!({}));
    let before = descriptors();
    let (mut lines, mut events) = (seen.switched(), seen.open("GET", "/events", &[], b""));
    events.until("data: 1\n");
    let stopped = scene.call("expose_port", json!({ "sandbox_id": scene.sandbox, "port": 8000, "stop": true }));
    assert_eq!(stopped["stopped"], true);
    is_over(&mut lines);
    while std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| events.more())).unwrap_or(false) {}
    assert_eq!(seen.ask("GET", "/", &[]).status, 404);
    let again = scene.call("expose_port", json!({ "sandbox_id": scene.sandbox, "port": 8000, "stop": true }));
    assert_eq!(again["stopped"], false);

    let short = scene.expose(json!({ "lifetime_s": 2 }));
    assert_ne!(short.name(), seen.name());
    is_over(&mut short.switched());
    assert_eq!(short.ask("GET", "/", &[]).status, 404);

    let last = scene.expose(json!({}));
    let mut lines = last.switched();
    scene.call("stop_sandbox", json!({ "sandbox_id": scene.sandbox }));
    is_over(&mut lines);
    drop((lines, events));
    // A socket that stays would hold the network of a sandbox that is gone.
    wait_until("descriptors to be given back", || descriptors() <= before);
}

#[test]
fn a_preview_is_its_owners_to_open_and_to_close() {
    needs_sandboxes!();
    let scene = Scene::new();
    let seen = scene.expose(json!({}));
    for arguments in [json!({ "port": 8000 }), json!({ "port": 8000, "stop": true })] {
        let mut arguments = arguments;
        arguments["sandbox_id"] = json!(scene.sandbox);
        let answer = scene.bob.call(&scene.server, "expose_port", arguments);
        assert_eq!(answer["isError"], true, "{answer}");
    }
    assert_eq!(seen.ask("GET", "/", &[]).status, 200, "it is still there");
    for (port, lifetime) in [(0, 1), (8000, 0), (8000, 86_401)] {
        let arguments = json!({ "sandbox_id": scene.sandbox, "port": port, "lifetime_s": lifetime });
        let answer = scene.alice.call(&scene.server, "expose_port", arguments);
        assert_eq!(answer["isError"], true, "{port} {lifetime}: {answer}");
    }
    let mut refused = None;
    for port in 9000..9020 {
        let answer =
            scene.alice.call(&scene.server, "expose_port", json!({ "sandbox_id": scene.sandbox, "port": port }));
        if answer["isError"] == true {
            refused = Some((port, answer));
            break;
        }
    }
    let (port, answer) = refused.expect("a sandbox has so many previews at most");
    assert!(port > 9005 && answer.to_string().contains("all it may have"), "{port} {answer}");
}

/// Passes everything to everybody, and says what it was told: as a preview without a wall would.
fn careless() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\n\n") && !head.ends_with(b"\r\n\r\n") {
                    if stream.read_exact(&mut byte).is_err() {
                        return;
                    }
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).to_lowercase();
                let headers: serde_json::Map<String, Value> = head
                    .lines()
                    .filter_map(|line| line.split_once(": "))
                    .map(|(name, value)| (name.to_owned(), json!(value)))
                    .collect();
                let body = json!({ "headers": headers }).to_string();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    Server::known_at(address)
}

#[test]
fn only_its_own_name_leads_to_a_preview() {
    needs_sandboxes!();
    let scene = Scene::new();
    let seen = scene.expose(json!({}));
    let (name, port) = (seen.name(), seen.server.address.port());
    let mut other = name.to_owned().into_bytes();
    other[3] = if other[3] == b'a' { b'b' } else { b'a' };
    let other = String::from_utf8(other).unwrap();
    let probe = |server: &Server| {
        let hosts = [
            server.address.to_string(),
            format!("localhost:{port}"),
            format!("{other}.localhost:{port}"),
            format!("{}.localhost:{port}", &name[1..]),
            format!("{name}.evil.example:{port}"),
            format!("{name}.localhost.evil.example"),
            format!("x.{name}.localhost:{port}"),
            format!("rebound.example:{port}"),
        ];
        for host in hosts {
            let status = server.ask("GET", "/", &[("host", &host)]).status;
            expect(status == 404, || format!("{host}: {status}"))?;
        }
        // What two readers would read differently is read by nobody.
        let host = format!("host: {}", seen.host);
        for (what, head) in [
            ("two hosts", format!("GET / HTTP/1.1\r\n{host}\r\nhost: evil.example\r\n\r\n")),
            ("another target", format!("GET http://evil.example/ HTTP/1.1\r\n{host}\r\n\r\n")),
            ("two lengths", format!("POST / HTTP/1.1\r\n{host}\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx")),
            (
                "a length and pieces",
                format!(
                    "POST / HTTP/1.1\r\n{host}\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
                ),
            ),
            ("half an end of a line", format!("GET / HTTP/1.1\n{host}\n\n")),
        ] {
            let mut stream = server.connect();
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer).into_owned();
            expect(!answer.contains("HTTP/1.1 2"), || format!("{what}: {answer}"))?;
        }
        Ok(())
    };
    judge("host", probe(&seen.server), probe(&careless()));
    assert_eq!(seen.ask("GET", "/", &[]).status, 200);
}

#[test]
fn pages_of_other_sites_do_not_use_a_preview_and_pages_of_a_preview_do_not_use_us() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.serve(3000);
    let (seen, other) = (scene.expose(json!({})), scene.expose(json!({ "port": 3000 })));
    let bobs = scene.bob.call(&scene.server, "create_sandbox", json!({}));
    let bobs = bobs["structuredContent"]["sandbox_id"].clone();
    let bobs = scene.bob.call(&scene.server, "expose_port", json!({ "sandbox_id": bobs, "port": 80 }));
    let bobs = Seen::at(bobs["structuredContent"]["url"].as_str().unwrap());
    let own = format!("http://{}", scene.server.address);
    let probe = |server: &Server| {
        for origin in ["https://evil.example", "null", &own, &bobs.origin()] {
            for method in ["GET", "POST", "OPTIONS"] {
                let status = server.ask(method, "/", &[("host", &seen.host), ("origin", origin)]).status;
                expect(status == 403, || format!("{method} of {origin}: {status}"))?;
            }
        }
        let image = [("host", seen.host.as_str()), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
        let status = server.ask("GET", "/", &image).status;
        expect(status == 403, || format!("an image of another site: {status}"))
    };
    judge("origin", probe(&seen.server), probe(&careless()));
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(seen.ask("GET", "/", &link).status, 200, "a link leads there");
    assert_eq!(seen.ask("GET", "/", &[("origin", &other.origin())]).status, 200, "one's own other program may ask");

    // Our own routes are not on that listener, and its pages are foreign to ours, with a token and without.
    let asked = [("host", seen.host.as_str()), scene.alice.shown()];
    let said = seen.server.open("POST", "/mcp", &asked, b"{}").whole().json();
    assert_eq!(said["path"], "/mcp", "it is the program's");
    let origin = seen.origin();
    let pages = |server: &Server| {
        for shown in [&[][..], &[scene.alice.shown()]] {
            let headers = [&[("origin", origin.as_str())], shown].concat();
            let answer = server.open("POST", "/mcp", &headers, b"{}").whole();
            expect(answer.status == 403, || format!("{}", answer.status))?;
            expect(answer.header("access-control-allow-origin").is_none(), || "it may read the answer".to_owned())?;
        }
        Ok(())
    };
    judge("pages of previews", pages(&scene.server), pages(&careless()));
}

#[test]
fn nothing_of_ours_and_nothing_that_lets_anybody_in_reaches_the_program() {
    needs_sandboxes!();
    let scene = Scene::new();
    let seen = scene.expose(json!({}));
    let probe = |server: &Server| {
        let (origin, host) = (seen.origin(), seen.host.as_str());
        let referer = format!("{origin}/page");
        let headers = [
            ("host", host),
            scene.alice.shown(),
            ("origin", origin.as_str()),
            ("referer", referer.as_str()),
            ("x-forwarded-host", host),
            ("forwarded", host),
            ("proxy-authorization", "Basic eA=="),
        ];
        let said = server.ask("GET", "/", &headers);
        expect(said.status == 200, || format!("{}", said.status))?;
        let told = said.json()["headers"].to_string().to_lowercase();
        for secret in [seen.name(), &scene.alice.token.to_lowercase(), "proxy-authorization"] {
            expect(!told.contains(secret), || format!("{secret} in {told}"))?;
        }
        for known in ["http://localhost:8000\"", "http://localhost:8000/page", "\"x-forwarded-for\": \"127.0.0.1\""] {
            expect(told.replace("\":\"", "\": \"").contains(known), || format!("no {known} in {told}"))?;
        }
        Ok(())
    };
    judge("headers", probe(&seen.server), probe(&careless()));
}

#[test]
fn one_preview_does_so_much_at_a_time_and_holds_up_nobody_else() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.serve(3000);
    let (seen, other) = (scene.expose(json!({})), scene.expose(json!({ "port": 3000 })));
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..64 {
        let mut stream = seen.connect();
        stream.write_all(format!("GET /hang HTTP/1.1\r\nhost: {}\r\n\r\n", seen.host).as_bytes()).unwrap();
        held.push(stream);
    }
    wait_until("the preview to be full", || seen.ask("GET", "/", &[]).status == 503);
    assert_eq!(other.ask("GET", "/", &[]).status, 200);
    assert_eq!(scene.server.ask("GET", "/healthz", &[]).status, 200);
    // A browser that goes away makes room.
    drop(held);
    wait_until("room again", || seen.ask("GET", "/", &[]).status == 200);
}

#[test]
fn connections_that_go_on_leave_descriptors_for_the_rest_of_the_server() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.serve(3000);
    let few = Rlimit { current: Some(256), maximum: Some(256) };
    let process = Pid::from_raw(scene.server.process() as i32);
    rustix::process::prlimit(process, Resource::Nofile, few).unwrap();
    let mut held = Vec::new();
    let previews = [scene.expose(json!({})), scene.expose(json!({ "port": 3000 }))];
    for seen in &previews {
        for _ in 0..60 {
            let mut stream = seen.connect();
            let asked = "connection: upgrade\r\nupgrade: lines\r\n\r\n";
            stream.write_all(format!("GET /switch HTTP/1.1\r\nhost: {}\r\n{asked}", seen.host).as_bytes()).unwrap();
            let mut stream = BufReader::new(stream);
            let mut first = String::new();
            stream.read_line(&mut first).unwrap();
            assert!(first.contains(" 101 ") || first.contains(" 503 "), "{first:?}");
            held.extend(first.contains(" 101 ").then_some(stream));
        }
    }
    assert!((16..60).contains(&held.len()), "{}", held.len());
    assert_eq!(scene.server.ask("GET", "/healthz", &[]).status, 200);
    let made = scene.bob.call(&scene.server, "create_sandbox", json!({}));
    assert_ne!(made["isError"], true, "{made}");
    drop(held);
    wait_until("room again", || previews[0].ask("GET", "/", &[]).status == 200);
}
