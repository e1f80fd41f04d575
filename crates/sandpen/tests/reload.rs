//! A server whose settings change, and one whose place another takes, while its clients are there.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::caller::{Caller, result};
use support::server::{Server, request};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[track_caller]
fn says(server: &Server, part: &str) {
    wait_until(part, || server.log().contains(part));
}

fn largest_memory(server: &Server, caller: &Caller) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list"), caller.shown()];
    let answer = server.post(&headers, &request(7, "tools/list", json!({ "_meta": meta }))).whole();
    let tools = result(&answer)["tools"].as_array().unwrap().clone();
    let tool = tools.iter().find(|tool| tool["name"] == "create_sandbox").unwrap();
    tool["inputSchema"]["properties"]["memory_mb"]["maximum"].clone()
}

#[test]
fn settings_are_followed_when_the_server_is_told_to() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (Caller::new(&world, &["--owner", "alice"]), Caller::new(&world, &["--owner", "bob"]));
    world.write("sandpen.toml", "owner_sandboxes = 1\nmax_memory = '1G'\n");
    let server = Server::guarded(&world, &["--config", "sandpen.toml", "--log", "info"]);
    let session = alice.session(&server);
    let create = |caller: &Caller| caller.call(&server, "create_sandbox", json!({}))["isError"] != true;
    assert!(create(&alice) && !create(&alice) && create(&bob) && !create(&bob));
    assert_eq!(largest_memory(&server, &alice), 1024);
    let large = json!({ "memory_mb": 1500 });
    assert_eq!(session.call("create_sandbox", large.clone())["isError"], true);

    let changed = "owner_sandboxes = 2\nowner_limit = ['bob:sandboxes=1']\nmax_memory = '2G'\nlisten = '127.0.0.1:1'\n";
    world.write("sandpen.toml", changed);
    server.signal(Signal::HUP);
    says(&server, "the settings were read again");
    says(&server, "these settings have changed and need a restart");
    assert!(server.log().contains("listen"), "{}", server.log());
    assert_eq!(largest_memory(&server, &alice), 2048);
    assert_ne!(session.call("create_sandbox", large)["isError"], true, "the session goes on with what is allowed now");
    assert!(!create(&alice) && !create(&bob));

    for broken in ["owner_sandboxes = ", "owner_sandboxes = 'many'\n", "owner_sandboxs = 9\n"] {
        let times = server.log().matches("those before stay in force").count();
        world.write("sandpen.toml", broken);
        server.signal(Signal::HUP);
        wait_until(broken, || server.log().matches("those before stay in force").count() > times);
    }
    assert_eq!(largest_memory(&server, &alice), 2048);
    assert!(!create(&alice));
    world.write("sandpen.toml", "owner_sandboxes = 9\nowner_requests = 1\n");
    server.signal(Signal::HUP);
    wait_until("requests to be bounded", || alice.send(&server, "list_sandboxes", json!({})).status == 429);
}

/// As systemd starts a service whose socket it keeps: descriptor 3, and who it is meant for.
fn with_socket(world: &World, listener: &TcpListener) -> Server {
    let socket: OwnedFd = listener.try_clone().unwrap().into();
    let ours = world.command(&["serve", "--listen", "127.0.0.1:1"]);
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@""#);
    command.arg(ours.get_program()).args(ours.get_args()).current_dir(world.work());
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Server::of(command.stdin(socket).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

#[test]
fn another_server_takes_the_place_and_nobody_is_refused_and_nothing_lost() {
    needs_sandboxes!();
    let world = World::new();
    let alice = Caller::new(&world, &["--owner", "alice"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut first = with_socket(&world, &listener);
    assert_eq!(first.address, address, "the socket counts more than the address");
    let made = alice.call(&first, "create_sandbox", json!({ "persist": true, "name": "kept" }));
    let id = made["structuredContent"]["sandbox_id"].clone();
    let run = |server: &Server, command: &str| {
        alice.call(server, "run_command", json!({ "sandbox_id": id, "command": command }))["structuredContent"].clone()
    };
    assert_eq!(run(&first, "echo here > file; (setsid sleep 4321 &); true")["exit_code"], 0);
    first.signal(Signal::TERM);
    assert!(first.wait().0.success());

    // Between the two: somebody knocks.
    let mut early = TcpStream::connect(address).unwrap();
    early.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    early.write_all(format!("GET /healthz HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).unwrap();
    let second = with_socket(&world, &listener);
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
    assert_eq!(run(&second, "cat file")["stdout"], "here\n");
    let look = r"cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -q '[s]leep 4321' && echo alive";
    assert_eq!(run(&second, look)["stdout"], "alive\n");
    // The socket is the server's alone.
    let socket = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
    for process in second.processes() {
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let mut links = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
        assert!(links.all(|link| link != socket), "process {process} has it too");
    }
}

#[test]
fn an_open_server_takes_no_socket_that_others_can_reach() {
    let world = World::new();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let socket: OwnedFd = listener.into();
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" serve --no-auth"#);
    command.arg(world.command(&[]).get_program()).env("SANDPEN_STATE_DIR", world.state_dir());
    let refused = command.stdin(socket).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("without authentication"));
}
