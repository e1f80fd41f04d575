//! `/api/` and `/`: what the dashboard is told, whom it is told, and what a stranger learns.

mod support;

use serde_json::{Value, json};
use support::server::{Answer, Server};
use support::{Engine, World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

/// Somebody with a token.
struct Person {
    id: String,
    header: String,
}

fn person(world: &World, owner: &str, scope: &str) -> Person {
    let made = world.run(&["--json", "token", "create", "--owner", owner, "--scope", scope]);
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    let word = |name: &str| made[name].as_str().unwrap();
    Person { id: word("id").to_owned(), header: format!("Bearer {}", word("token")) }
}

impl Person {
    fn shown(&self) -> (&str, &str) {
        ("authorization", &self.header)
    }

    fn get(&self, server: &Server, path: &str) -> Answer {
        server.ask("GET", path, &[self.shown()])
    }

    fn delete(&self, server: &Server, path: &str) -> Answer {
        server.ask("DELETE", path, &[self.shown()])
    }

    fn post(&self, server: &Server, path: &str, body: Value) -> Answer {
        let headers = [self.shown(), ("content-type", "application/json")];
        server.open("POST", path, &headers, body.to_string().as_bytes())
    }

    #[track_caller]
    fn create(&self, server: &Server) -> String {
        let made = self.post(server, "/api/sandboxes", json!({})).whole();
        assert_eq!(made.status, 201, "{}", made.body);
        made.json()["id"].as_str().unwrap().to_owned()
    }

    /// The run, once it has ended, with all events of its stream.
    #[track_caller]
    fn run(&self, server: &Server, arguments: Value) -> (Value, Vec<(String, Value)>) {
        let begun = self.post(server, "/api/run", arguments).whole();
        assert_eq!(begun.status, 202, "{}", begun.body);
        let id = begun.json()["id"].as_str().unwrap().to_owned();
        let stream = self.get(server, &format!("/api/runs/{id}/stream"));
        let told = events(&stream.body);
        let ended = told.last().unwrap().clone();
        assert_eq!(ended.0, "ended");
        (ended.1, told)
    }
}

fn events(body: &str) -> Vec<(String, Value)> {
    let events = body.split("\n\n").filter(|event| event.contains("data: "));
    let field = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap_or_default()
    };
    events.map(|event| (field(event, "event: "), serde_json::from_str(&field(event, "data: ")).unwrap())).collect()
}

fn decoded(base64: &Value) -> String {
    use base64::Engine;
    let bytes = base64::engine::general_purpose::STANDARD.decode(base64.as_str().unwrap()).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn output(told: &[(String, Value)], stream: &str) -> String {
    let pieces = told.iter().filter(|(event, data)| event == "output" && data["stream"] == stream);
    pieces.map(|(_, data)| decoded(&data["base64"])).collect()
}

#[test]
fn strangers_learn_how_to_sign_in_and_nothing_else() {
    needs_sandboxes!();
    let world = World::new();
    let known = person(&world, "alice", "run");
    let server = Server::guarded(&world, &[]);
    let told = server.ask("GET", "/api/session", &[]);
    assert_eq!((told.status, told.json()), (200, json!({ "signed_in": false, "sign_in": "token" })));
    let wrong = format!("{}x", known.header);
    assert_eq!(server.ask("GET", "/api/session", &[("authorization", &wrong)]).status, 401);
    for (method, path) in [
        ("GET", "/api/live"),
        ("GET", "/api/languages"),
        ("POST", "/api/run"),
        ("GET", "/api/sandboxes"),
        ("POST", "/api/sandboxes"),
        ("GET", "/api/sandboxes/sb-7k2m9x4bqhtw3ecd"),
        ("DELETE", "/api/sandboxes/sb-7k2m9x4bqhtw3ecd"),
        ("GET", "/api/sandboxes/sb-7k2m9x4bqhtw3ecd/runs"),
        ("POST", "/api/sandboxes/sb-7k2m9x4bqhtw3ecd/terminals"),
        ("POST", "/api/terminals/0/input"),
        ("POST", "/api/terminals/0/size"),
        ("GET", "/api/runs"),
        ("GET", "/api/runs/job_7k2m9x4bqhtw3ecd"),
        ("DELETE", "/api/runs/job_7k2m9x4bqhtw3ecd"),
        ("GET", "/api/runs/job_7k2m9x4bqhtw3ecd/stream"),
        ("GET", "/api/runs/job_7k2m9x4bqhtw3ecd/artifact?path=a"),
        ("GET", "/api/audit"),
    ] {
        for shown in [&[][..], &[("authorization", wrong.as_str())], &[("cookie", wrong.as_str())]] {
            assert_eq!(server.open(method, path, shown, b"{}").whole().status, 401, "{method} {path} {shown:?}");
        }
    }
}

#[test]
fn a_session_says_who_asks_and_what_they_may() {
    needs_sandboxes!();
    let world = World::new();
    let [reader, runner, admin] = ["read", "run", "admin"].map(|scope| person(&world, scope, scope));
    let server = Server::guarded(&world, &["--exclude-tools", "run_command"]);
    let session = |person: &Person| person.get(&server, "/api/session").json();
    let told = session(&runner);
    assert_eq!(
        (&told["owner"], &told["scopes"], &told["sign_in"]),
        (&json!("run"), &json!(["read", "run"]), &json!("token"))
    );
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    let may = |person: &Person, what: &str| session(person)["may"][what].as_bool().unwrap();
    assert!(may(&runner, "run") && may(&runner, "stop") && !may(&runner, "see_all") && !may(&runner, "read_audit"));
    assert!(!may(&reader, "run") && !may(&reader, "stop") && !may(&reader, "create"));
    assert!(may(&admin, "see_all") && may(&admin, "read_audit"));
    assert!(!may(&admin, "open_terminals"), "the operator has left commands out");
    let refused = runner.post(&server, "/api/sandboxes/x/terminals", json!({ "rows": 24, "columns": 80 })).whole();
    assert_eq!((refused.status, refused.json()["error"]["kind"].clone()), (403, json!("denied")));
    let plain = Server::start(&world, &[]);
    let told = plain.ask("GET", "/api/session", &[]).json();
    assert_eq!((&told["signed_in"], &told["sign_in"], &told["owner"]), (&json!(true), &json!("none"), &json!("local")));
}

#[test]
fn whoever_may_only_look_changes_nothing() {
    needs_sandboxes!();
    let world = World::new();
    let (reader, runner) = (person(&world, "alice", "read"), person(&world, "alice", "run"));
    let server = Server::guarded(&world, &[]);
    let id = runner.create(&server);
    let sandbox = format!("/api/sandboxes/{id}");
    for (method, path, body) in [
        ("POST", "/api/run", json!({ "language": "bash", "code": "true" })),
        ("POST", "/api/sandboxes", json!({})),
        ("DELETE", &sandbox, json!({})),
        ("POST", &format!("{sandbox}/terminals"), json!({ "rows": 24, "columns": 80 })),
        ("DELETE", "/api/runs/job_7k2m9x4bqhtw3ecd", json!({})),
    ] {
        let answer = match method {
            "POST" => reader.post(&server, path, body).whole(),
            _ => reader.delete(&server, path),
        };
        assert_eq!(answer.status, 403, "{method} {path}");
        assert!(answer.header("www-authenticate").unwrap().contains("sandpen:run\""), "{method} {path}");
    }
    assert_eq!(reader.get(&server, &sandbox).json()["id"], json!(id), "it is still there");
    assert_eq!(reader.get(&server, "/api/audit").status, 403);
    assert_eq!(reader.get(&server, "/api/sandboxes?all=true").status, 403);
    assert_eq!(reader.get(&server, "/api/live?all=true").status, 403);
}

#[test]
fn a_foreign_handle_is_as_unknown_as_one_that_never_was() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (person(&world, "alice", "run"), person(&world, "bob", "run"));
    let server = Server::guarded(&world, &[]);
    let sandbox = alice.create(&server);
    let code = "echo made > made.txt; echo said";
    let (run, _) = alice.run(&server, json!({ "language": "bash", "code": code, "sandbox_id": sandbox }));
    let run = run["id"].as_str().unwrap();
    let mut terminal =
        alice.post(&server, &format!("/api/sandboxes/{sandbox}/terminals"), json!({ "rows": 24, "columns": 80 }));
    terminal.until("\"terminal\":\"");
    let terminal_id = events(&terminal.body)[0].1["terminal"].as_str().unwrap().to_owned();
    let size = json!({ "rows": 24, "columns": 80 });
    let (no_sandbox, no_run, no_terminal) =
        ("sb-7k2m9x4bqhtw3ecd", "job_7k2m9x4bqhtw3ecd", "00000000000000000000000000000000");
    for (method, path, real, missing, body) in [
        ("GET", "/api/sandboxes/ID", sandbox.as_str(), no_sandbox, None),
        ("DELETE", "/api/sandboxes/ID", &sandbox, no_sandbox, None),
        ("GET", "/api/sandboxes/ID/runs", &sandbox, no_sandbox, None),
        ("POST", "/api/sandboxes/ID/terminals", &sandbox, no_sandbox, Some(&size)),
        ("GET", "/api/runs/ID", run, no_run, None),
        ("DELETE", "/api/runs/ID", run, no_run, None),
        ("GET", "/api/runs/ID/stream", run, no_run, None),
        ("GET", "/api/runs/ID/artifact?path=/workspace/made.txt", run, no_run, None),
        ("POST", "/api/terminals/ID/input", &terminal_id, no_terminal, Some(&size)),
        ("POST", "/api/terminals/ID/size", &terminal_id, no_terminal, Some(&size)),
    ] {
        let ask = |id: &str| {
            let path = path.replace("ID", id);
            let answer = match body {
                Some(body) => bob.post(&server, &path, body.clone()).whole(),
                None => server.ask(method, &path, &[bob.shown()]),
            };
            (answer.status, answer.body.replace(id, "ID"))
        };
        let (foreign, unknown) = (ask(real), ask(missing));
        assert_eq!(foreign.0, 404, "{method} {path}: {}", foreign.1);
        assert_eq!(foreign, unknown, "{method} {path}");
    }
    let with = json!({ "language": "bash", "code": "true", "sandbox_id": sandbox });
    assert_eq!(bob.post(&server, "/api/run", with).whole().status, 404);
    let listed = bob.get(&server, "/api/sandboxes");
    assert_eq!(listed.json(), json!({ "sandboxes": [] }));
    assert_eq!(bob.get(&server, "/api/runs").json(), json!({ "runs": [] }));
    assert_eq!(alice.get(&server, &format!("/api/runs/{run}")).status, 200, "for its owner it is there");
    assert_eq!(bob.get(&server, "/api/runs/no-id-at-all").status, 404);
}

#[test]
fn what_a_sandbox_used_is_remembered_by_the_server() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, root) = (person(&world, "alice", "run"), person(&world, "root", "admin"));
    let server = Server::guarded(&world, &[]);
    let (id, other) = (alice.create(&server), alice.create(&server));
    let path = format!("/api/sandboxes/{id}/usage");
    let samples = |who: &Person| who.get(&server, &path).json()["samples"].as_array().unwrap().clone();
    assert_eq!(samples(&alice), [] as [Value; 0], "nobody has looked before");
    wait_until("the server looks", || !samples(&alice).is_empty());
    let first = samples(&alice)[0].clone();
    assert!(first["at_ms"].is_u64() && first["cpu_ms"].is_u64() && first["memory_bytes"].as_u64() > Some(0), "{first}");
    // Nobody has to look again for it to go on, and whoever does sees it from its beginning.
    let theirs = format!("/api/sandboxes/{other}/usage");
    wait_until("it looks again", || alice.get(&server, &theirs).json()["samples"].as_array().unwrap().len() > 1);
    assert_eq!(samples(&root)[0], first, "whoever answers for the server sees it too");
    assert!(samples(&alice).len() > 1);
    assert_eq!(alice.delete(&server, &format!("/api/sandboxes/{id}")).status, 200);
    assert_eq!(alice.get(&server, &path).status, 404);
}

#[test]
fn an_admin_sees_and_stops_everybodys_sandboxes_and_reads_none_of_their_work() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, root) = (person(&world, "alice", "run"), person(&world, "root", "admin"));
    let trail = world.work().join("trail");
    let server = Server::guarded(&world, &["--audit-log", trail.to_str().unwrap()]);
    let id = alice.create(&server);
    let (run, _) = alice.run(&server, json!({ "language": "bash", "code": "echo private", "sandbox_id": id }));
    let all = root.get(&server, "/api/sandboxes?all=true").json();
    assert_eq!((&all["sandboxes"][0]["owner"], &all["sandboxes"][0]["own"]), (&json!("alice"), &json!(false)));
    assert_eq!(root.get(&server, "/api/sandboxes").json(), json!({ "sandboxes": [] }), "their own are asked for");
    let sandbox = format!("/api/sandboxes/{id}");
    assert!(root.get(&server, &sandbox).json()["usage"]["memory_bytes"].is_u64());
    assert_eq!(root.get(&server, &format!("/api/runs/{}", run["id"].as_str().unwrap())).status, 404);
    assert_eq!(root.get(&server, &format!("{sandbox}/runs")).status, 404);
    let terminal = root.post(&server, &format!("{sandbox}/terminals"), json!({ "rows": 24, "columns": 80 })).whole();
    assert_eq!(terminal.status, 404);
    let mut live = server.open("GET", "/api/live?all=true", &[root.shown()], b"");
    live.until(&id);
    assert!(!live.body.contains(run["id"].as_str().unwrap()));
    assert_eq!(root.delete(&server, &sandbox).json(), json!({ "id": id, "stopped": true }));
    assert_eq!(alice.get(&server, &sandbox).status, 404);
    let page = root.get(&server, "/api/audit").json();
    let lines = page["lines"].as_array().unwrap();
    let stopped = lines.iter().find(|line| line["tool"] == "stop_sandbox").expect("who stopped it is written down");
    assert_eq!((&stopped["owner"], &stopped["sandbox"], &page["unbroken"]), (&json!("root"), &json!(id), &json!(true)));
    assert!(lines.iter().any(|line| line["event"] == "created" && line["owner"] == "alice"));
    assert_eq!(alice.get(&server, "/api/audit").status, 403);
    assert_eq!(root.get(&server, "/api/audit?before=1").status, 400);
}

#[test]
fn code_runs_with_its_output_as_it_comes_and_its_pictures_after() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let nobody = Person { id: String::new(), header: "Bearer x".to_owned() };
    let code = "import sys\nprint('out')\nsys.stderr.write('err')\n\
                open('dot.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n')\nopen('fake.png', 'w').write('<svg onload=x>')\n\
                open('page.html', 'w').write('<script>')\nsys.exit(3)";
    let (run, told) = nobody.run(&server, json!({ "language": "python", "code": code }));
    assert_eq!((output(&told, "stdout"), output(&told, "stderr")), ("out\n".to_owned(), "err".to_owned()));
    assert_eq!((&run["state"], &run["exit_code"], &run["sandbox_kept"]), (&json!("exited"), &json!(3), &json!(false)));
    let kinds: Vec<_> = run["artifacts"].as_array().unwrap().iter().map(|file| file["mime_type"].clone()).collect();
    assert_eq!(kinds, ["image/png", "image/png", "text/html"]);
    let artifact = |name: &str| {
        let path = format!("/api/runs/{}/artifact?path=/workspace/{name}", run["id"].as_str().unwrap());
        server.open("GET", &path, &[], b"")
    };
    for (name, kind) in
        [("dot.png", "image/png"), ("fake.png", "application/octet-stream"), ("page.html", "application/octet-stream")]
    {
        let answer = artifact(name);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{name}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("content-disposition"), Some("attachment"));
        assert_eq!(answer.header("content-security-policy"), Some("sandbox; default-src 'none'"));
    }
    assert_eq!(artifact("../etc/passwd").status, 404, "only what the run made");
    assert_eq!(artifact("never").status, 404);
    let refused = nobody.post(&server, "/api/run", json!({ "language": "klingon", "code": "" })).whole();
    assert_eq!(refused.status, 404, "{}", refused.body);
    let plain = server.open("POST", "/api/run", &[("content-type", "text/plain")], b"{}").whole();
    assert_eq!(plain.status, 415, "what a page may send anywhere is not taken");
    assert_eq!(server.ask("GET", "/api/runs", &[]).json()["runs"].as_array().unwrap().len(), 1);
}

#[test]
fn a_run_is_stopped_with_everything_that_it_started() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let nobody = Person { id: String::new(), header: "Bearer x".to_owned() };
    let code = "sleep 3217 & echo begun; wait";
    let begun = nobody.post(&server, "/api/run", json!({ "language": "bash", "code": code })).whole().json();
    let path = format!("/api/runs/{}", begun["id"].as_str().unwrap());
    let mut stream = server.open("GET", &format!("{path}/stream"), &[], b"");
    stream.until("event: output");
    wait_until("it runs", || server.running("3217") == 1);
    let stopped = nobody.delete(&server, &path);
    assert_eq!(stopped.json()["state"], "cancelled", "{}", stopped.body);
    assert_eq!(server.running("3217"), 0);
    stream.until("event: ended");
}

#[test]
fn a_terminal_is_its_stream() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let nobody = Person { id: String::new(), header: "Bearer x".to_owned() };
    let id = nobody.create(&server);
    let open = || {
        let size = json!({ "rows": 33, "columns": 77 });
        let mut stream = nobody.post(&server, &format!("/api/sandboxes/{id}/terminals"), size);
        assert_eq!(stream.status, 200);
        stream.until("\"terminal\":\"");
        let terminal = events(&stream.body)[0].1["terminal"].as_str().unwrap().to_owned();
        (stream, format!("/api/terminals/{terminal}"))
    };
    let screen = |stream: &Answer| {
        let told = events(&stream.body[..stream.body.rfind("\n\n").unwrap_or(0)]);
        told.iter().filter(|(event, _)| event == "output").map(|(_, data)| decoded(&data["base64"])).collect::<String>()
    };
    let wait_for = |stream: &mut Answer, part: &str| {
        while !screen(stream).contains(part) {
            let seen = stream.body.matches("event: ").count();
            while stream.body.matches("event: ").count() == seen {
                assert!(stream.more(), "it ended before {part:?}: {}", screen(stream));
            }
        }
    };
    let (mut stream, terminal) = open();
    let type_in = |terminal: &str, text: &str| {
        let typed = server.open("POST", &format!("{terminal}/input"), &[], text.as_bytes()).whole();
        assert_eq!(typed.status, 200, "{}", typed.body);
    };
    type_in(&terminal, "stty size; echo $TERM\n");
    wait_for(&mut stream, "33 77");
    wait_for(&mut stream, "xterm-256color");
    assert_eq!(
        nobody.post(&server, &format!("{terminal}/size"), json!({ "rows": 40, "columns": 100 })).whole().status,
        200
    );
    type_in(&terminal, "stty size\n");
    wait_for(&mut stream, "40 100");
    for wrong in [json!({ "rows": 0, "columns": 80 }), json!({ "rows": 24, "columns": 60000 }), json!({})] {
        assert_eq!(nobody.post(&server, &format!("{terminal}/size"), wrong).whole().status, 400);
    }
    type_in(&terminal, "exit 5\n");
    stream.until("event: ended");
    assert!(stream.body.contains("\"exit_code\":5"), "{}", stream.body);
    assert_eq!(server.open("POST", &format!("{terminal}/input"), &[], b"x").whole().status, 404);

    let (mut stream, terminal) = open();
    type_in(&terminal, "sleep 4321\n");
    wait_for(&mut stream, "sleep 4321");
    wait_until("it runs", || server.running("4321") == 1);
    drop(stream);
    wait_until("it has ended with its terminal", || server.running("4321") == 0);

    let held: Vec<_> = (0..8).map(|_| open()).collect();
    let one_more =
        nobody.post(&server, &format!("/api/sandboxes/{id}/terminals"), json!({ "rows": 24, "columns": 80 }));
    assert_eq!(one_more.whole().status, 429);
    drop(held);
}

#[test]
fn streams_end_when_the_token_is_revoked() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, admin) = (person(&world, "alice", "run"), person(&world, "alice", "run"));
    let server = Server::guarded(&world, &[]);
    let id = alice.create(&server);
    let size = json!({ "rows": 24, "columns": 80 });
    let mut terminal = alice.post(&server, &format!("/api/sandboxes/{id}/terminals"), size);
    terminal.until("\"terminal\":\"");
    let begun = alice.post(&server, "/api/run", json!({ "language": "bash", "code": "sleep 3218" })).whole().json();
    let run = begun["id"].as_str().unwrap();
    let mut live = server.open("GET", "/api/live", &[alice.shown()], b"");
    live.until(run);
    let follow = server.open("GET", &format!("/api/runs/{run}/stream"), &[alice.shown()], b"");
    world.run(&["token", "revoke", &alice.id]).expect(0, &format!("{}\n", alice.id));
    for stream in [live, follow, terminal] {
        assert!(!stream.whole().body.contains("event: ended"), "it was cut, and nothing more was told");
    }
    assert_eq!(alice.get(&server, "/api/runs").status, 401);
    assert_eq!(admin.get(&server, &format!("/api/runs/{run}")).json()["state"], "running", "the run is the owner's");
}

#[test]
fn live_state_follows_what_happens() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let nobody = Person { id: String::new(), header: "Bearer x".to_owned() };
    let mut live = server.open("GET", "/api/live", &[], b"");
    live.until("\"sandboxes\":[]");
    let id = nobody.create(&server);
    live.until(&format!("\"id\":\"{id}\""));
    live.until("\n\n");
    let told = events(&live.body[..live.body.rfind("\n\n").unwrap()]);
    let sandbox = &told.last().unwrap().1["sandboxes"][0];
    assert_eq!(
        (&sandbox["owner"], &sandbox["own"], &sandbox["image"]),
        (&json!("local"), &json!(true), &json!(Engine::of_test().image()))
    );
    assert!(sandbox["memory_bytes"].is_u64() && sandbox["created_at"].is_string(), "{sandbox}");
    nobody.delete(&server, &format!("/api/sandboxes/{id}"));
    let before = live.body.len();
    while !live.body[before..].contains("\"sandboxes\":[]") {
        assert!(live.more());
    }
}

#[test]
fn the_page_is_the_same_for_everybody_and_lets_nothing_in() {
    needs_sandboxes!();
    let world = World::new();
    person(&world, "alice", "run");
    let server = Server::guarded(&world, &[]);
    let page = server.ask("GET", "/", &[]);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    let policy = page.header("content-security-policy").unwrap().to_owned();
    for rule in ["default-src 'none'", "script-src 'self';", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{rule}");
    }
    assert!(!page.body.contains("<style") && !page.body.contains("style=") && !page.body.contains("<script>"));
    let assets: Vec<_> = page.body.split('"').filter(|part| part.starts_with("/assets/")).map(str::to_owned).collect();
    assert_eq!(assets.len(), 3, "{}", page.body);
    for asset in &assets {
        let answer = server.ask("GET", asset, &[]);
        assert_eq!(answer.status, 200, "{asset}");
        assert_eq!(answer.header("cache-control"), Some("public, max-age=31536000, immutable"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(server.ask("GET", "/assets/none.js", &[]).status, 404);
    assert_eq!(server.open("POST", "/", &[], b"").whole().status, 405);
    // Who follows a link of another site gets to the page, and to nothing else.
    assert_eq!(server.ask("GET", "/", &[("sec-fetch-site", "cross-site")]).status, 200);
    assert_eq!(server.ask("GET", "/api/session", &[("sec-fetch-site", "cross-site")]).status, 403);
    let open = Server::start(&world, &[]);
    assert_eq!(open.ask("GET", "/", &[("host", "evil.example")]).status, 403, "by a name that was made to lead here");
}

#[test]
fn the_token_of_an_older_server_opens_its_page() {
    needs_sandboxes!();
    let world = World::new();
    let root = world.work().join("older");
    let variables = [
        ("MCP_API_TOKEN", "older-token"),
        ("SANDBOX_ROOT", root.to_str().unwrap()),
        ("FILE_SECRET", "0123456789abcdef0123456789abcdef"),
        ("PUBLIC_BASE_URL", "http://127.0.0.1:1"),
    ];
    let server = Server::by(&world, &["serve", "--listen", "127.0.0.1:0", "--profile", "code-runner"], &variables);
    assert_eq!(server.ask("GET", "/", &[]).status, 200);
    assert_eq!(server.ask("GET", "/api/session", &[]).json(), json!({ "signed_in": false, "sign_in": "token" }));
    assert_eq!(server.ask("GET", "/api/session", &[("authorization", "Bearer other")]).status, 401);
    let older = Person { id: String::new(), header: "Bearer older-token".to_owned() };
    let told = older.get(&server, "/api/session").json();
    assert_eq!((&told["owner"], &told["profile"]), (&json!("local"), &json!("code-runner")));
    assert_eq!((&told["may"]["run"], &told["may"]["read_files"]), (&json!(true), &json!(false)));
    let (_, told) = older.run(&server, json!({ "language": "bash", "code": "echo $((6*7))" }));
    assert_eq!(output(&told, "stdout"), "42\n");
}
