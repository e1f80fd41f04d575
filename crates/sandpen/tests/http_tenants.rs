//! Rows XS-03 and XS-04 of the threat model: what is somebody else's is not there, in the same words and in the same time as what
//! never was. Each is a probe that judges a server, the real one green, and one without that wall red.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, Uri};
use serde_json::{Value, json};
use support::caller::Caller;
use support::plain::{Verdict, expect, judge, plain};
use support::server::{Answer, Server, request};
use support::{World, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

const NO_SANDBOX: &str = "sb-7k2m9x4bqhtw3ecd";
const NO_JOB: &str = "job_7k2m9x4bqhtw3ecd";
const NO_TERMINAL: &str = "00000000000000000000000000000000";
const NO_TASK: &str = "0b4c6b2e-0000-4000-8000-000000000000";

/// Values for arguments that have nothing to do with whose a handle is.
fn ordinary(name: &str, schema: &Value) -> Option<Value> {
    let value = match name {
        "language" => json!("bash"),
        "code" | "command" => json!("echo changed > /workspace/a"),
        "path" => json!("/workspace/a"),
        "content" => json!("changed"),
        "name" => json!("taken"),
        "checkpoint" => json!(1),
        "action" => json!("close"),
        "context" => json!("work"),
        "port" => json!(8000),
        _ => return None,
    };
    let kind = if value.is_string() { "string" } else { "integer" };
    (schema["type"] == kind).then_some(value)
}

/// Asks with a handle.
type Ask = dyn Fn(&Server, &Caller, &str) -> Answer;

/// One way to name something, and what is named there.
struct Way {
    what: String,
    kind: Kind,
    ask: Box<Ask>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sandbox,
    Job,
    Terminal,
    Task,
}

fn modern(method: &'static str, named: &str, mut params: Value) -> (Vec<(&'static str, String)>, Vec<u8>) {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } },
    });
    let headers = vec![
        ("mcp-protocol-version", "2026-07-28".to_owned()),
        ("mcp-method", method.to_owned()),
        ("mcp-name", named.to_owned()),
    ];
    (headers, request(7, method, params))
}

fn ask_mcp(server: &Server, caller: &Caller, method: &'static str, named: &str, params: Value) -> Answer {
    let (headers, body) = modern(method, named, params);
    let mut shown: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    shown.push(caller.shown());
    server.post(&shown, &body).whole()
}

/// Every tool that has an argument for a handle, as the server itself lists them.
fn tools(server: &Server, caller: &Caller) -> Vec<Way> {
    let listed = support::caller::result(&ask_mcp(server, caller, "tools/list", "", json!({})));
    let mut ways = Vec::new();
    for tool in listed["tools"].as_array().expect("a list of tools") {
        let name = tool["name"].as_str().unwrap().to_owned();
        let properties = tool["inputSchema"]["properties"].as_object().unwrap();
        for (argument, kind) in [("sandbox_id", Kind::Sandbox), ("job_id", Kind::Job)] {
            if !properties.contains_key(argument) {
                continue;
            }
            let others = properties.iter().filter_map(|(name, schema)| Some((name.clone(), ordinary(name, schema)?)));
            let others: Vec<(String, Value)> = others.collect();
            let (tool, argument) = (name.clone(), argument.to_owned());
            let ask = move |server: &Server, caller: &Caller, handle: &str| {
                let mut arguments: serde_json::Map<String, Value> = others.iter().cloned().collect();
                arguments.insert(argument.clone(), json!(handle));
                caller.send(server, &tool, Value::Object(arguments))
            };
            ways.push(Way { what: format!("the tool {name}"), kind, ask: Box::new(ask) });
        }
    }
    ways
}

/// Every address under `/api/` that has a handle in it, as the source has them, by every method.
fn routes() -> Vec<Way> {
    let source = concat!(include_str!("../src/api.rs"), include_str!("../src/files.rs"));
    let addresses = source.split('"').filter(|text| text.starts_with("/api/") && text.contains("{id}"));
    let mut ways = Vec::new();
    for address in addresses {
        let kind = match address.split('/').nth(2) {
            Some("sandboxes") => Kind::Sandbox,
            Some("runs") => Kind::Job,
            Some("terminals") => Kind::Terminal,
            other => panic!("handles of what are below {other:?}?"),
        };
        let body =
            if address.ends_with("/links") { r#"{"path":"/workspace/a"}"# } else { r#"{"rows":24,"columns":80}"# };
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
            let path = address.replace("{*path}", "workspace/a").replace("{upload}", NO_TERMINAL);
            let ask = move |server: &Server, caller: &Caller, handle: &str| {
                let path = format!("{}?path=/workspace/a", path.replace("{id}", handle));
                let headers = [caller.shown(), ("content-type", "application/json"), ("tus-resumable", "1.0.0")];
                let answer = server.open(method, &path, &headers, body.as_bytes());
                // The length that is told of a body which does not come is not waited for.
                if method == "HEAD" { answer } else { answer.whole() }
            };
            ways.push(Way { what: format!("{method} {address}"), kind, ask: Box::new(ask) });
        }
    }
    ways
}

fn others() -> Vec<Way> {
    let way = |what: &str, kind, ask: fn(&Server, &Caller, &str) -> Answer| Way {
        what: what.to_owned(),
        kind,
        ask: Box::new(ask),
    };
    vec![
        way("POST /api/run", Kind::Sandbox, |server, caller, handle| {
            let body = json!({ "language": "bash", "code": "echo changed > a", "sandbox_id": handle }).to_string();
            let headers = [caller.shown(), ("content-type", "application/json")];
            server.open("POST", "/api/run", &headers, body.as_bytes()).whole()
        }),
        way("a resource of a sandbox", Kind::Sandbox, |server, caller, handle| {
            let uri = format!("sandbox://{handle}/workspace/a");
            ask_mcp(server, caller, "resources/read", &uri, json!({ "uri": uri }))
        }),
        way("a resource of a job", Kind::Job, |server, caller, handle| {
            let uri = format!("job://{handle}/stdout");
            ask_mcp(server, caller, "resources/read", &uri, json!({ "uri": uri }))
        }),
        way("tasks/get", Kind::Task, |server, caller, handle| {
            ask_mcp(server, caller, "tasks/get", handle, json!({ "taskId": handle }))
        }),
        way("tasks/cancel", Kind::Task, |server, caller, handle| {
            ask_mcp(server, caller, "tasks/cancel", handle, json!({ "taskId": handle }))
        }),
    ]
}

/// What somebody has.
struct Belongings {
    sandboxes: Vec<String>,
    job: String,
    terminal: String,
    task: String,
    /// What goes on as long as it is read.
    _open: Answer,
}

impl Belongings {
    /// One sandbox that ends with the server, one that does not, and one that another process has just made.
    fn of(caller: &Caller, server: &Server, world: &World) -> Self {
        let make = |arguments: Value| {
            let made = caller.call(server, "create_sandbox", arguments);
            made["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned()
        };
        let sandboxes = vec![
            make(json!({ "name": "ephemeral" })),
            make(json!({ "name": "kept", "persist": true })),
            world.run(&["create", "--name", "elsewhere"]).succeeds().trim().to_owned(),
        ];
        for id in &sandboxes {
            caller.call(server, "write_file", json!({ "sandbox_id": id, "path": "/workspace/a", "content": "mine" }));
        }
        let endless = json!({ "sandbox_id": sandboxes[0], "command": "sleep 600", "background": true });
        let job =
            caller.call(server, "run_command", endless)["structuredContent"]["job_id"].as_str().unwrap().to_owned();
        let call =
            json!({ "name": "run_command", "arguments": { "sandbox_id": sandboxes[0], "command": "sleep 600" } });
        let begun = ask_mcp(server, caller, "tools/call", "run_command", call);
        let task = support::caller::result(&begun)["taskId"].as_str().unwrap_or_else(|| panic!("{begun:?}")).to_owned();
        let headers = [caller.shown(), ("content-type", "application/json")];
        let path = format!("/api/sandboxes/{}/terminals", sandboxes[0]);
        let mut open = server.open("POST", &path, &headers, br#"{"rows":24,"columns":80}"#);
        open.until("\"terminal\":\"");
        let terminal = open.body.split("\"terminal\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        Self { sandboxes, job, task, terminal: terminal.to_owned(), _open: open }
    }

    fn handles(&self, kind: Kind) -> (Vec<&str>, &'static str) {
        match kind {
            Kind::Sandbox => (self.sandboxes.iter().map(String::as_str).collect(), NO_SANDBOX),
            Kind::Job => (vec![&self.job], NO_JOB),
            Kind::Terminal => (vec![&self.terminal], NO_TERMINAL),
            Kind::Task => (vec![&self.task], NO_TASK),
        }
    }

    /// All that others could have changed.
    fn state(&self, caller: &Caller, server: &Server) -> Vec<String> {
        let read = |id: &String| caller.call(server, "read_file", json!({ "sandbox_id": id, "path": "/workspace/a" }));
        let mut state: Vec<String> = self.sandboxes.iter().map(|id| read(id).to_string()).collect();
        let job = caller.call(server, "get_job", json!({ "job_id": self.job }));
        state.push(job["structuredContent"]["status"].to_string());
        let task =
            support::caller::result(&ask_mcp(server, caller, "tasks/get", &self.task, json!({ "taskId": self.task })));
        state.push(task["status"].to_string());
        let listed = caller.call(server, "list_sandboxes", json!({}));
        state.push(listed["structuredContent"]["sandboxes"].as_array().unwrap().len().to_string());
        state
    }
}

/// Each way with each handle of somebody else's, and with one that nobody has.
fn same_words(server: &Server, ways: &[Way], theirs: &Belongings, stranger: &Caller) -> Verdict {
    for Way { what, kind, ask } in ways {
        let (handles, missing) = theirs.handles(*kind);
        let unknown = ask(server, stranger, missing).told(missing);
        for handle in handles {
            let foreign = ask(server, stranger, handle).told(handle);
            expect(foreign == unknown, || format!("{what}: {foreign}\nand for an unknown one\n{unknown}"))?;
        }
        let is_refused = ["404", "405", "-32602", "-32002", "there is no"].iter().any(|part| unknown.contains(part));
        expect(is_refused, || format!("{what} does not look for the handle: {unknown}"))?;
    }
    Ok(())
}

#[test]
fn xs_03_what_is_somebody_elses_is_not_there_in_the_same_words() {
    needs_sandboxes!();
    let world = World::new();
    // Commands of the machine's owner make sandboxes that the server has not seen yet.
    let (alice, bob) = (Caller::new(&world, &["--owner", "local"]), Caller::new(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &[]);
    let theirs = Belongings::of(&alice, &server, &world);
    let ways: Vec<Way> = tools(&server, &bob).into_iter().chain(routes()).chain(others()).collect();
    let of = |kind: Kind| ways.iter().filter(|way| way.kind == kind).count();
    assert!(
        of(Kind::Sandbox) > 50 && of(Kind::Job) > 20 && of(Kind::Terminal) > 10,
        "some of them are not seen any more"
    );
    let before = theirs.state(&alice, &server);
    let green = same_words(&server, &ways, &theirs, &bob);
    assert_eq!(theirs.state(&alice, &server), before, "somebody else has changed something");
    for (tool, places) in [("list_sandboxes", "sandboxes"), ("describe_environment", "")] {
        let seen = bob.call(&server, tool, json!({})).to_string();
        assert!(theirs.sandboxes.iter().all(|id| !seen.contains(id)), "{places} of {tool}: {seen}");
    }
    // Knows what there is before it asks whose it is.
    let known: Arc<[String]> =
        theirs.sandboxes.iter().chain([&theirs.job, &theirs.terminal, &theirs.task]).cloned().collect();
    let careless = plain(Router::new().fallback(move |address: Uri, body: Bytes| async move {
        let asked = format!("{address}{}", String::from_utf8_lossy(&body));
        match known.iter().any(|id| asked.contains(id)) {
            true => (StatusCode::FORBIDDEN, "this is not yours"),
            false => (StatusCode::NOT_FOUND, "there is no such thing"),
        }
    }));
    judge("XS-03", green, same_words(&careless, &ways, &theirs, &bob));
}

/// Answers of each kind that are compared.
const SAMPLES: usize = 1500;
/// Of Welch. Beyond it two kinds of answers are told apart.
const APART: f64 = 4.5;
/// What a network hides at any number of samples that a server would answer.
const NEGLIGIBLE_NS: f64 = 5000.0;

/// How long each handle takes to be denied, in turns whose order is not known, over one connection.
fn same_time(server: &Server, caller: &Caller, handles: &[&str]) -> Verdict {
    let mut times = vec![Vec::with_capacity(SAMPLES); handles.len()];
    let stream = server.connect();
    stream.set_nodelay(true).unwrap();
    let (mut writer, mut reader) = (stream.try_clone().unwrap(), BufReader::new(stream));
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..SAMPLES {
        let mut turn: Vec<usize> = (0..handles.len()).collect();
        for at in (1..turn.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            turn.swap(at, (seed >> 33) as usize % (at + 1));
        }
        for which in turn {
            let (name, value) = caller.shown();
            let head = format!(
                "GET /api/sandboxes/{} HTTP/1.1\r\nhost: {}\r\n{name}: {value}\r\n\r\n",
                handles[which], server.address
            );
            let started = Instant::now();
            writer.write_all(head.as_bytes()).unwrap();
            let status = read_answer(&mut reader);
            times[which].push(started.elapsed().as_nanos() as f64);
            expect(status == 404, || format!("{} was answered {status}", handles[which]))?;
        }
    }
    let times: Vec<(f64, f64)> = times.into_iter().map(moments).collect();
    let (mean, error) = times[0];
    for (handle, (other_mean, other_error)) in handles.iter().zip(&times).skip(1) {
        let t = (other_mean - mean) / (error + other_error).sqrt();
        let difference = other_mean - mean;
        eprintln!("{handle}: {difference:.0} ns from {mean:.0} ns, t = {t:.1}");
        let is_seen = t.abs() > APART && difference.abs() > NEGLIGIBLE_NS;
        expect(!is_seen, || format!("{handle} is denied {difference:.0} ns later than an unknown one, t = {t:.1}"))?;
    }
    Ok(())
}

fn read_answer(reader: &mut impl BufRead) -> u16 {
    let (mut status, mut length, mut line) = (0, 0, String::new());
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(' ') {
            None => break,
            Some((word, rest)) if word.starts_with("HTTP/") => status = rest[..3].parse().unwrap(),
            Some((word, rest)) if word.eq_ignore_ascii_case("content-length:") => length = rest.parse().unwrap(),
            Some(_) => {}
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    status
}

/// The mean of the faster half, and the square of its error as it is of trimmed means: what the machine does meanwhile makes the others
/// slow, and would hide what is looked for.
fn moments(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    let (count, middle) = (times.len() as f64, times[half]);
    let mean = times[..half].iter().sum::<f64>() / half as f64;
    let cut: Vec<f64> = times.iter().map(|time| time.min(middle)).collect();
    let mean_cut = cut.iter().sum::<f64>() / count;
    let variance = cut.iter().map(|time| (time - mean_cut).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance / (count * 0.25))
}

#[test]
fn xs_03_what_is_somebody_elses_is_not_there_in_the_same_time() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (Caller::new(&world, &["--owner", "local"]), Caller::new(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &[]);
    let theirs = Belongings::of(&alice, &server, &world);
    let (foreign, _) = theirs.handles(Kind::Sandbox);
    let handles: Vec<&str> = [NO_SANDBOX].into_iter().chain(foreign).collect();
    let green = same_time(&server, &bob, &handles);
    // Reads what is written of a sandbox, and then asks whose it is.
    let directory = world.state_dir().join("ledger");
    let careless = plain(Router::new().fallback(move |address: Uri| async move {
        let id = address.path().rsplit('/').next().unwrap_or_default();
        for name in support::names(&directory) {
            if name.starts_with(id) && name.ends_with(".json") {
                let record: Value = serde_json::from_slice(&std::fs::read(directory.join(name)).unwrap()).unwrap();
                assert_ne!(record["owner"], "bob");
            }
        }
        (StatusCode::NOT_FOUND, "there is no such thing")
    }));
    judge("XS-03", green, same_time(&careless, &bob, &handles));
}

/// What a daemon, a shell or a file system would take for something.
fn hostile(theirs: &str, own: &str) -> Vec<String> {
    let words = include_str!("hostile/handles.txt").lines();
    let mut words: Vec<String> = words.map(|word| word.replace("THEIRS", theirs)).collect();
    // Those who use a daemon are used to beginnings of ids, and to no care about how they are written.
    for id in [theirs, own] {
        words.extend([id[..id.len() - 1].to_owned(), id[..6].to_owned(), id[3..].to_owned(), id.to_uppercase()]);
        words.extend([format!("{id}x"), format!(" {id}"), format!("{id} "), format!("{id}\n"), format!("{id}\0")]);
    }
    words
}

/// Whether the answer of a tool is that it was not done.
fn is_refused(answer: &Answer) -> bool {
    let message =
        answer.messages().into_iter().next().unwrap_or_else(|| serde_json::from_str(&answer.body).unwrap_or_default());
    answer.status >= 400 || message["result"]["isError"] == true || message["error"].is_object()
}

fn nothing_by_other_words(server: &Server, ways: &[Way], theirs: &str, own: &str, caller: &Caller) -> Verdict {
    for way in ways.iter().filter(|way| matches!(way.kind, Kind::Sandbox | Kind::Job)) {
        for word in hostile(theirs, own) {
            let answer = (way.ask)(server, caller, &word);
            expect(is_refused(&answer), || format!("{} took {word:?}: {}", way.what, answer.body))?;
        }
    }
    for tool in ["create_sandbox", "run_code", "run_command"] {
        for network in include_str!("hostile/networks.txt").lines() {
            for value in [json!(network), json!([network]), json!({ "mode": network })] {
                let answer = caller.send(server, tool, json!({ "language": "bash", "code": "true", "network": value }));
                expect(is_refused(&answer), || format!("{tool} took the network {value}: {}", answer.body))?;
            }
        }
        // Words of daemons that no schema of ours has.
        for word in include_str!("hostile/arguments.txt").lines() {
            let answer = caller.send(server, tool, json!({ word: "host" }));
            expect(is_refused(&answer), || format!("{tool} took {word}: {}", answer.body))?;
        }
    }
    Ok(())
}

#[test]
fn xs_04_words_that_a_daemon_would_take_are_no_handles() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (Caller::new(&world, &["--owner", "alice"]), Caller::new(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &[]);
    let make = |caller: &Caller, name: &str| {
        let made = caller.call(&server, "create_sandbox", json!({ "name": name }));
        made["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned()
    };
    let (theirs, own) = (make(&alice, "kept"), make(&bob, "own"));
    let ways = tools(&server, &bob);
    let green = nothing_by_other_words(&server, &ways, &theirs, &own, &bob);
    let ids = |caller: &Caller| {
        let listed = caller.call(&server, "list_sandboxes", json!({}));
        let listed = listed["structuredContent"]["sandboxes"].as_array().unwrap().clone();
        listed.iter().map(|one| one["sandbox_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((ids(&alice), ids(&bob)), (vec![theirs.clone()], vec![own.clone()]), "nothing was made or ended");
    // Looks for what begins so, as daemons do.
    let known = [theirs.clone(), own.clone()];
    let careless = plain(Router::new().fallback(move |body: Bytes| async move {
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let handle = asked["params"]["arguments"]["sandbox_id"].as_str().unwrap_or_default().to_owned();
        let is_found = !handle.is_empty() && known.iter().any(|id| id.starts_with(&handle));
        json!({ "jsonrpc": "2.0", "id": 7, "result": { "isError": !is_found, "content": [] } }).to_string()
    }));
    judge("XS-04", green, nothing_by_other_words(&careless, &ways, &theirs, &own, &bob));
}
