//! Who may talk to `sandpen serve`, and what it answers when nobody speaks the protocol.

mod support;

use serde_json::json;
use support::server::{MCP, Server, request};
use support::{World, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[test]
fn a_web_page_gets_nothing_from_any_address() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let port = server.address.port().to_string();
    let other_port = "http://localhost:1".to_owned();
    for path in ["/mcp", "/sse", "/sse/message?sessionId=x", "/healthz", "/readyz", "/nothing"] {
        for origin in ["http://evil.example", "null", "https://localhost", &other_port] {
            for method in ["GET", "POST", "DELETE", "OPTIONS"] {
                let answer = server.ask(method, path, &[MCP, &[("origin", origin)]].concat());
                assert_eq!(answer.status, 403, "{method} {path} from {origin}");
                assert_eq!(answer.header("access-control-allow-origin"), None);
            }
        }
        for host in
            ["evil.example".to_owned(), format!("evil.example:{port}"), format!("localhost.evil.example:{port}")]
        {
            assert_eq!(server.ask("GET", path, &[("host", &host)]).status, 403, "{path} as {host}");
        }
        assert_eq!(server.ask("GET", path, &[("sec-fetch-site", "cross-site")]).status, 403, "{path} as an image");
    }
    assert_eq!(server.ask("GET", "/healthz", &[("host", "localhost"), ("host", "evil.example")]).status, 400);
}

#[test]
fn a_choice_among_the_tools_is_not_got_around_by_a_profile() {
    needs_sandboxes!();
    let world = World::new();
    let path = "/profiles/philschmid/mcp";
    assert_eq!(Server::start(&world, &[]).ask("GET", path, MCP).status, 400, "it is not served");
    for choice in [&["--read-only"][..], &["--tools", "run_code"], &["--exclude-tools", "run_command"]] {
        assert_eq!(Server::start(&world, choice).ask("GET", path, MCP).status, 404, "{choice:?}");
    }
}

#[test]
fn programs_and_pages_of_the_list_get_in() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(
        &world,
        &[
            "--allowed-origins",
            "https://app.example.com,http://localhost:6274",
            "--allowed-hosts",
            "sandpen.example.com",
        ],
    );
    let own = format!("http://localhost:{}", server.address.port());
    let hello = request(
        1,
        "initialize",
        json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "page", "version": "1" },
        }),
    );
    for origin in ["https://app.example.com", "http://localhost:6274", &own] {
        let asked = [("access-control-request-method", "POST"), ("access-control-request-headers", "mcp-session-id")];
        let preflight = server.ask("OPTIONS", "/mcp", &[&[("origin", origin)], &asked[..]].concat());
        assert_eq!(preflight.status, 204);
        assert_eq!(preflight.header("access-control-allow-origin"), Some(origin));
        assert!(preflight.header("access-control-allow-headers").unwrap().contains("mcp-session-id"));
        assert!(preflight.header("access-control-allow-methods").unwrap().contains("POST"));

        let answer = server.post(&[("origin", origin)], &hello);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert!(answer.header("access-control-expose-headers").unwrap().contains("Mcp-Session-Id"));
        assert_eq!(answer.header("vary"), Some("Origin"));
    }
    for host in ["localhost", "127.0.0.1:9", "[::1]", "sandpen.example.com", "sandpen.example.com:443"] {
        let answer = server.ask("GET", "/healthz", &[("host", host)]);
        assert_eq!(answer.status, 200, "{host}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

#[test]
fn what_is_not_there_says_so_and_tells_nothing_else() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &["--no-legacy-sse"]);
    assert_eq!(server.ask("GET", "/healthz", &[]).json(), json!({ "status": "ok" }));
    assert_eq!(server.ask("GET", "/readyz", &[]).json(), json!({ "status": "ready" }));
    for path in ["/index.html", "/sse", "/sse/message", "/mcp/x", "/../etc/passwd", "/%2e%2e/etc/passwd"] {
        let answer = server.ask("GET", path, &[]);
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.json()["error"]["kind"], "not_found");
    }
    assert_eq!(server.ask("PUT", "/mcp", &[]).status, 405);
    assert_eq!(server.ask("POST", "/healthz", &[]).status, 405);
}

#[test]
fn other_machines_are_not_served() {
    let world = World::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        world.run(&["serve", "--no-auth", "--listen", address]).expect(1, "").says("without authentication");
        world.run(&["serve", "--listen", address]).expect(1, "").says("sandpen token create");
    }
    world.run(&["serve", "--listen", "nowhere"]).expect(1, "").says("is not an address to listen on");
    world.run(&["serve", "--allowed-origins", "*"]).expect(1, "").says("is not the origin of a page");
}

#[test]
fn an_address_that_is_taken_is_named() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let address = server.address.to_string();
    World::new().run(&["serve", "--no-auth", "--listen", &address]).expect(1, "").says("address already in use");
}
