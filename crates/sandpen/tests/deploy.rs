//! How a server is put somewhere: behind a proxy, and under systemd.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use serde_json::json;
use support::caller::Caller;
use support::server::Server;
use support::{World, sandboxes_work, wait_until};

/// A proxy as people have one in front: it takes what comes to its own name, and says where that came from.
fn proxy(server: SocketAddr, said: &'static str) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n") && client.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let Ok(mut upstream) = TcpStream::connect(server) else { return };
                head.extend_from_slice(said.as_bytes());
                upstream.write_all(&head).unwrap();
                let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let _ = std::io::copy(&mut upstream, &mut client);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    Server::known_at(address)
}

#[test]
fn behind_a_proxy_links_lead_there_and_nothing_else_is_believed() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let alice = Caller::new(&world, &[]);
    let trail = world.state_dir().join("trail");
    let server =
        Server::guarded(&world, &["--allowed-hosts", "pen.example.com", "--audit-log", trail.to_str().unwrap()]);
    let made = alice.call(&server, "create_sandbox", json!({}));
    let id = made["structuredContent"]["sandbox_id"].as_str().unwrap();
    alice.call(&server, "write_file", json!({ "sandbox_id": id, "path": "a.txt", "content": "here" }));
    let said = "x-forwarded-proto: https\r\nx-forwarded-for: 203.0.113.7\r\nx-forwarded-host: evil.example\r\n\
                forwarded: for=203.0.113.7;host=evil.example;proto=https\r\n";
    let front = proxy(server.address, said);
    let (host, path) = (("host", "pen.example.com"), format!("/api/sandboxes/{id}/links"));
    let json = ("content-type", "application/json");
    let link = front.open("POST", &path, &[alice.shown(), host, json], br#"{"path":"/workspace/a.txt"}"#).whole();
    assert_eq!(link.status, 201, "{link:?}");
    let url = link.json()["url"].as_str().unwrap().to_owned();
    let local = url.strip_prefix("https://pen.example.com/").unwrap_or_else(|| panic!("it leads elsewhere: {url}"));
    assert_eq!(front.ask("GET", &format!("/{local}"), &[host]).body, "here");

    // A name that is only in what a proxy adds is not the one that was asked for.
    let open = Server::start(&world, &[]);
    let other = proxy(open.address, "x-forwarded-host: localhost\r\nforwarded: host=localhost\r\n");
    assert_eq!(other.ask("GET", "/healthz", &[("host", "localhost")]).status, 200);
    assert_eq!(other.ask("GET", "/healthz", &[("host", "evil.example")]).status, 403);
    assert_eq!(front.ask("GET", "/healthz", &[host, ("origin", "https://evil.example")]).status, 403);
    assert_eq!(front.ask("GET", "/healthz", &[host]).status, 200);
    // Anybody could say that they come from elsewhere: who is counted is who connects.
    assert_eq!(front.ask("GET", "/api/sandboxes", &[host, ("authorization", "Bearer wrong")]).status, 401);
    let read = || std::fs::read_to_string(&trail).unwrap_or_default();
    wait_until("it is written down", || read().contains("turned_away"));
    let lines = read();
    let turned_away: Vec<&str> = lines.lines().filter(|line| line.contains("turned_away")).collect();
    assert!(!turned_away.is_empty() && turned_away.iter().all(|line| line.contains("127.0.0.1")), "{turned_away:?}");
    assert!(!lines.contains("203.0.113.7"));
}

/// What systemd says of the unit, with these changes; `None` where there is no systemd to ask.
fn complaints(change: impl Fn(&str) -> String) -> Option<(bool, Vec<String>)> {
    let place = tempfile::tempdir().unwrap();
    let unit = include_str!("../../../deploy/systemd/sandpen.service");
    // It must be there to be right, and is not installed yet.
    let unit = change(&unit.replace("/usr/local/bin/sandpen", env!("CARGO_BIN_EXE_sandpen")));
    std::fs::write(place.path().join("sandpen.service"), unit).unwrap();
    let socket = include_str!("../../../deploy/systemd/sandpen.socket");
    std::fs::write(place.path().join("sandpen.socket"), socket).unwrap();
    let names = ["sandpen.service", "sandpen.socket"].map(|name| place.path().join(name));
    let done = Command::new("systemd-analyze").arg("verify").args(names).output().ok()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    // Versions before 254 do not know it, and go on.
    let said = said.lines().filter(|line| !line.contains("'DelegateSubgroup'"));
    Some((done.status.success(), said.map(str::to_owned).collect()))
}

#[test]
fn systemd_understands_the_unit_and_its_socket() {
    let Some(said) = complaints(str::to_owned) else {
        crate::support::skip("there is no systemd-analyze here");
        return;
    };
    assert_eq!(said, (true, Vec::new()));
    let (_, broken) = complaints(|unit| unit.replace("KillMode=process", "KillMode=nobody\nNoSuchKey=1")).unwrap();
    assert_eq!(broken.len(), 2, "what is wrong is told: {broken:?}");
    let (is_right, _) = complaints(|unit| unit.replace("ExecStart=/", "ExecStart=/nowhere/")).unwrap();
    assert!(!is_right, "a program that is not there is told");
}
