//! Rows HT-01, 02, 06, 08, 10, 11 and 13 of the threat model: each is a probe that judges a server, the real one green, and one
//! without that wall red. A probe that cannot tell them apart tells nothing.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use support::caller::Caller;
use support::plain::{expect, judge, plain};
use support::server::{MCP, Server, request};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

/// Answers everything with what `answer` makes of its headers, once it has the body.
fn plainly(answer: impl Fn(&HeaderMap) -> StatusCode + Send + Sync + 'static) -> Server {
    let answer = Arc::new(answer);
    plain(Router::new().fallback(move |headers: HeaderMap, _body: String| async move { answer(&headers) }))
}

#[test]
fn ht_01_every_route_asks_who_it_is_before_it_looks_at_what_is_sent() {
    needs_sandboxes!();
    let world = World::new();
    let known = Caller::new(&world, &["--scope", "admin"]);
    let probe = |server: &Server| {
        let token = &known.token;
        let (basic, doubled) = (format!("Basic {token}"), known.shown());
        let credentials: &[&[(&str, &str)]] = &[
            &[],
            &[("authorization", "")],
            &[("authorization", "Bearer")],
            &[("authorization", "Bearer  ")],
            &[("authorization", &basic)],
            &[("authorization", token)],
            &[doubled, doubled],
            &[("cookie", token), ("x-api-key", token)],
        ];
        let query = format!("/mcp?token={token}&access_token={token}");
        let routes = [
            ("POST", "/mcp"),
            ("GET", "/mcp"),
            ("DELETE", "/mcp"),
            ("GET", "/sse"),
            ("POST", "/sse/message"),
            ("GET", "/metrics"),
            ("POST", "/profiles/cloudflare/mcp"),
            ("POST", query.as_str()),
        ];
        for (method, path) in routes {
            for shown in credentials {
                // A body is announced and never sent: who waits for it has looked at nothing else yet.
                let mut stream = server.connect();
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: 9\r\n", server.address);
                MCP.iter().chain(*shown).for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
                stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
                let mut start = [0; 12];
                let read = stream.read_exact(&mut start);
                let is_refused = read.is_ok() && &start == b"HTTP/1.1 401";
                expect(is_refused, || format!("{path} {shown:?}: {}", String::from_utf8_lossy(&start)))?;
                let mut rest = vec![0; 4096];
                let count = stream.read(&mut rest).unwrap_or(0);
                let rest = String::from_utf8_lossy(&rest[..count]).to_lowercase();
                expect(rest.contains("www-authenticate: bearer"), || format!("{path}: no challenge"))?;
            }
        }
        // Whatever else there is under /api/, as the source has it.
        let source = concat!(include_str!("../src/api.rs"), include_str!("../src/files.rs"));
        let addresses: Vec<&str> = source.split('"').filter(|text| text.starts_with("/api/")).collect();
        expect(addresses.len() > 15, || "the routes are not seen any more".to_owned())?;
        for address in addresses {
            let path = address.replace(['{', '}', '*'], "");
            let mut asks = false;
            for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
                for shown in [&[][..], &[("cookie", token.as_str())]] {
                    // That there is no such method is no secret.
                    let status = server.open(method, &path, shown, b"").status;
                    expect([401, 405].contains(&status), || format!("{method} {address}: {status}"))?;
                    asks |= status == 401;
                }
            }
            expect(asks, || format!("{address} is not there"))?;
        }
        let health = server.ask("GET", "/healthz", &[]);
        expect(health.body == r#"{"status":"ok"}"#, || format!("health says {}", health.body))
    };
    let real = Server::guarded(&world, &[]);
    judge("HT-01", probe(&real), probe(&plainly(|_| StatusCode::UNAUTHORIZED)));
}

#[test]
fn ht_02_a_token_that_is_nearly_right_is_wrong() {
    needs_sandboxes!();
    let world = World::new();
    let known = Caller::new(&world, &[]);
    let right = known.token.clone();
    let probe = |server: &Server| {
        let list = request(7, "tools/list", json!({}));
        let status = |token: &str| server.post(&[("authorization", &format!("Bearer {token}"))], &list).status;
        expect(![401, 431].contains(&status(&right)), || "the right one is refused".to_owned())?;
        let mut off_by_one = right.clone().into_bytes();
        *off_by_one.last_mut().unwrap() ^= 1;
        let off_by_one = String::from_utf8(off_by_one).unwrap();
        let nearly = [
            off_by_one,
            right[..right.len() - 1].to_owned(),
            right[..20].to_owned(),
            format!("{right}A"),
            format!("{right} {right}"),
            right.to_uppercase(),
        ];
        for wrong in nearly {
            let status = status(&wrong);
            expect(status == 401, || format!("{} characters: {status}", wrong.len()))?;
        }
        // What cannot be a token, or is longer than a head may be, does not get as far.
        for (wrong, expected) in [(format!("{right}\0"), 400), (right.repeat((1 << 20) / right.len()), 431)] {
            let mut stream = server.connect();
            let head =
                format!("POST /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {wrong}\r\n\r\n", server.address);
            let _ = stream.write_all(head.as_bytes());
            let mut start = [0; 12];
            // One that is cut off in the middle of writing may not hear why.
            if stream.read_exact(&mut start).is_ok() {
                let start = String::from_utf8_lossy(&start).into_owned();
                expect(start == format!("HTTP/1.1 {expected}"), || start.clone())?;
            }
        }
        Ok(())
    };
    let real = Server::guarded(&world, &[]);
    // Compares as many characters as it is shown.
    let prefix = format!("Bearer {right}");
    let careless = plainly(move |headers| match headers.get("authorization").and_then(|value| value.to_str().ok()) {
        Some(shown) if prefix.starts_with(shown) => StatusCode::OK,
        Some(_) | None => StatusCode::UNAUTHORIZED,
    });
    judge("HT-02", probe(&real), probe(&careless));
}

#[test]
fn ht_06_pages_of_other_origins_are_refused() {
    needs_sandboxes!();
    let world = World::new();
    let known = Caller::new(&world, &[]);
    let probe = |server: &Server| {
        let own = server.address;
        let (scheme, port) = (format!("https://{own}"), format!("http://{}:1", own.ip()));
        let foreign = [
            "https://evil.example",
            "null",
            "file://",
            "http://127.0.0.1.evil.example",
            "http://localhost",
            scheme.as_str(),
            port.as_str(),
            "chrome-extension://abcdef",
        ];
        for origin in foreign {
            let answer = server.post(&[("origin", origin), known.shown()], b"{}");
            expect(answer.status == 403, || format!("{origin:?}: {}", answer.status))?;
            expect(answer.header("access-control-allow-origin").is_none(), || format!("{origin:?} may read it"))?;
            let answer =
                server.ask("OPTIONS", "/mcp", &[("origin", origin), ("access-control-request-method", "POST")]);
            expect(answer.status == 403, || format!("{origin:?} before asking: {}", answer.status))?;
        }
        // A program says no origin, and needs a token all the same.
        let (silent, shown) = (server.post(&[], b"{}").status, server.post(&[known.shown()], b"{}").status);
        expect(silent == 401 && ![401, 403].contains(&shown), || format!("without an origin: {silent} and {shown}"))
    };
    let real = Server::guarded(&world, &[]);
    let careless = plainly(|headers| match headers.contains_key("authorization") {
        true => StatusCode::OK,
        false => StatusCode::UNAUTHORIZED,
    });
    judge("HT-06", probe(&real), probe(&careless));
}

/// Addresses that a process listens on.
fn listening(process: u32) -> Vec<SocketAddr> {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let links =
        descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok());
    let inodes: Vec<String> =
        links.filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect();
    let table = |name: &str| std::fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    let address = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (*fields.get(1)?, *fields.get(3)?, *fields.get(9)?);
        if state != "0A" || !inodes.iter().any(|known| known == inode) {
            return None;
        }
        let (ip, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let words = (0..ip.len() / 8).map(|at| u32::from_str_radix(&ip[8 * at..8 * at + 8], 16).map(u32::to_ne_bytes));
        let bytes: Vec<u8> = words.collect::<Result<Vec<_>, _>>().ok()?.concat();
        let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
            Ok(bytes) => bytes.into(),
            Err(_) => <[u8; 16]>::try_from(bytes.as_slice()).ok()?.into(),
        };
        Some(SocketAddr::new(ip, port))
    };
    ["tcp", "tcp6"].map(table).iter().flat_map(|table| table.lines()).filter_map(address).collect()
}

#[test]
fn ht_08_other_machines_are_let_in_only_where_they_are_asked_who_they_are() {
    needs_sandboxes!();
    let world = World::new();
    Caller::new(&world, &[]);
    let probe = |process: u32| {
        let addresses = listening(process);
        expect(!addresses.is_empty(), || "it listens nowhere".to_owned())?;
        expect(addresses.iter().all(|address| address.ip().is_loopback()), || format!("{addresses:?}"))
    };
    let real = Server::guarded(&world, &[]);
    let green = probe(real.process());
    let _everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    judge("HT-08", green, probe(std::process::id()));
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        world.run(&["serve", "--no-auth", "--listen", address]).expect(1, "").says("without authentication");
    }
}

#[test]
fn ht_10_clients_that_take_their_time_are_given_up_and_keep_nobody_out() {
    needs_sandboxes!();
    const EACH: usize = 125;
    let world = World::new();
    let known = Caller::new(&world, &[]);
    let probe = |server: &Server, patience: Duration| {
        let head =
            format!("POST /mcp HTTP/1.1\r\nhost: {}\r\n{}: {}\r\n", server.address, known.shown().0, known.shown().1);
        let body = format!("{head}content-type: application/json\r\ncontent-length: 1000\r\n\r\n");
        let begun = format!("{body}{{");
        let begin = |text: &str| {
            let mut stream = server.connect();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        };
        let slow: Vec<(&str, Vec<TcpStream>)> = [
            ("silent", ""),
            ("half a head", head.as_str()),
            ("no body", body.as_str()),
            ("half a body", begun.as_str()),
        ]
        .map(|(name, text)| (name, (0..EACH).map(|_| begin(text)).collect()))
        .into();
        // Meanwhile others are served.
        for _ in 0..20 {
            let status = server.ask("GET", "/healthz", &[]).status;
            expect(status == 200, || format!("a good client got {status}"))?;
        }
        let end = Instant::now() + patience;
        for (name, streams) in slow {
            for mut stream in streams {
                stream
                    .set_read_timeout(Some(end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))))
                    .unwrap();
                let mut answer = Vec::new();
                // What is answered before the end is of no matter; that there is one is.
                let is_open = stream.read_to_end(&mut answer).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
                expect(!is_open, || format!("{name}: it is still open"))?;
            }
        }
        Ok(())
    };
    let real = Server::guarded(&world, &[]);
    let before = descriptors(real.process());
    // A head has 10 s and a body 30 s; the machine may be busy.
    let green = probe(&real, Duration::from_secs(50));
    wait_until("descriptors to be given back", || descriptors(real.process()) <= before + 8);
    judge("HT-10", green, probe(&patient(), Duration::from_secs(2)));
}

fn descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Waits for each of its clients, however long they take.
fn patient() -> Server {
    naive(|stream, head| {
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|text| text.parse().ok());
        let _ = stream.read_exact(&mut vec![0; length.unwrap_or(0)]);
    })
}

/// Reads a head to the first empty line, whatever it says, and answers that all is well.
fn naive(read_body: impl Fn(&mut TcpStream, &str) + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let read_body = Arc::new(read_body);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let read_body = read_body.clone();
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\n\n") && !head.ends_with(b"\r\n\r\n") {
                    if stream.read_exact(&mut byte).is_err() {
                        return;
                    }
                    head.push(byte[0]);
                }
                read_body(&mut stream, &String::from_utf8_lossy(&head));
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            });
        }
    });
    Server::known_at(address)
}

#[test]
fn ht_11_what_two_readers_would_read_differently_is_read_by_nobody() {
    needs_sandboxes!();
    let world = World::new();
    let probe = |server: &Server| {
        let host = format!("host: {}", server.address);
        let heads = [
            (
                "two lengths",
                format!("POST /mcp HTTP/1.1\r\n{host}\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!"),
            ),
            (
                "a length and pieces",
                format!(
                    "POST /mcp HTTP/1.1\r\n{host}\r\ncontent-length: 5\r\ntransfer-encoding: chunked, x\r\n\r\nhello"
                ),
            ),
            ("a length that is none", format!("POST /mcp HTTP/1.1\r\n{host}\r\ncontent-length: +5\r\n\r\nhello")),
            ("lines without their first half", format!("GET /healthz HTTP/1.1\n{host}\n\n")),
            ("one such line", format!("GET /healthz HTTP/1.1\r\n{host}\nx-more: a\r\n\r\n")),
            (
                "pieces and a length",
                format!(
                    "POST /mcp HTTP/1.1\r\n{host}\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n"
                ),
            ),
            (
                "a length and just pieces",
                format!(
                    "POST /mcp HTTP/1.1\r\n{host}\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
                ),
            ),
            ("a folded line", format!("GET /healthz HTTP/1.1\r\n{host}\r\nx-more: a\r\n b\r\n\r\n")),
            ("a space before the colon", format!("GET /healthz HTTP/1.1\r\n{host}\r\nx-more : a\r\n\r\n")),
            ("a version that is none", format!("GET /healthz HTTP/1.7\r\n{host}\r\n\r\n")),
            ("no host", "GET /healthz HTTP/1.1\r\n\r\n".to_owned()),
            ("two hosts", format!("GET /healthz HTTP/1.1\r\n{host}\r\nhost: evil.example\r\n\r\n")),
            ("a control character", format!("GET /healthz HTTP/1.1\r\n{host}\r\nx-more: a\x01b\r\n\r\n")),
            ("HTTP/2 from the start", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned()),
            ("too many headers", format!("GET /healthz HTTP/1.1\r\n{host}\r\n{}\r\n", "x-more: a\r\n".repeat(100))),
            ("too long a head", format!("GET /healthz HTTP/1.1\r\n{host}\r\nx-more: {}\r\n\r\n", "a".repeat(100_000))),
        ];
        for (name, head) in heads {
            let mut stream = server.connect();
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer).into_owned();
            let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.0 4");
            expect(is_refused, || format!("{name}: {}", answer.lines().next().unwrap_or_default()))?;
            expect(answer.matches("HTTP/1.").count() <= 1, || format!("{name}: it was two requests"))?;
        }
        expect(server.ask("GET", "/healthz", &[]).status == 200, || "it does not serve any more".to_owned())
    };
    judge("HT-11", probe(&Server::start(&world, &[])), probe(&naive(|_, _| {})));
}

#[test]
fn ht_13_wrong_tokens_are_throttled_by_source_and_written_down_each() {
    needs_sandboxes!();
    const WRONG: usize = 1000;
    let world = World::new();
    let known = Caller::new(&world, &[]);
    let probe = |server: &Server| {
        let mut throttled = 0;
        for number in 0..WRONG {
            let status = server.post(&[("authorization", &format!("Bearer wrong-{number}"))], b"{}").status;
            expect([401, 429].contains(&status), || format!("a wrong one got {status}"))?;
            throttled += usize::from(status == 429);
            if number % 100 == 99 {
                let status = known.send(server, "list_sandboxes", json!({})).status;
                expect(status == 200, || format!("the right one got {status}"))?;
            }
        }
        expect(throttled >= WRONG / 2, || format!("{throttled} of {WRONG} were throttled"))
    };
    let trail = world.state_dir().join("audit.jsonl");
    let mut real = Server::guarded(&world, &["--audit-log", trail.to_str().unwrap()]);
    let green = probe(&real);
    real.signal(rustix::process::Signal::TERM);
    assert!(real.wait().0.success());
    let right = known.shown().1.to_owned();
    let careless = plainly(move |headers| match headers.get("authorization").is_some_and(|shown| *shown == right) {
        true => StatusCode::OK,
        false => StatusCode::UNAUTHORIZED,
    });
    judge("HT-13", green, probe(&careless));
    let lines = std::fs::read_to_string(&trail).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.filter(|line| line["event"] == "turned_away").count(), WRONG);
}
