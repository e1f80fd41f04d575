//! Traces: what a collector gets, which is checked by one that the test starts.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use support::caller::{Caller, result};
use support::client::Client;
use support::server::Server;
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

/// What a collector was sent: the head and the body of each request.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<(String, Value)>>>);

struct Collector {
    address: SocketAddr,
    sent: Sent,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Sent::default();
        let kept = sent.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = BufReader::new(stream);
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if stream.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                        break;
                    }
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head += &line;
                }
                let mut body = vec![0; length];
                if stream.read_exact(&mut body).is_err() {
                    continue;
                }
                kept.0.lock().unwrap().push((head, serde_json::from_slice(&body).unwrap()));
                let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
            }
        });
        Self { address, sent }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    fn heads(&self) -> String {
        self.sent.0.lock().unwrap().iter().map(|(head, _)| head.as_str()).collect()
    }

    fn text(&self) -> String {
        self.sent.0.lock().unwrap().iter().map(|(_, body)| body.to_string()).collect()
    }

    /// All spans of a trace so far, by name. Names that come twice are in the order of their arrival.
    fn spans(&self, trace: &str) -> BTreeMap<String, Vec<Value>> {
        let mut spans: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (_, body) in &*self.sent.0.lock().unwrap() {
            for resource in body["resourceSpans"].as_array().unwrap() {
                for scope in resource["scopeSpans"].as_array().unwrap() {
                    for span in scope["spans"].as_array().unwrap() {
                        check_shape(span);
                        if trace.is_empty() || span["traceId"] == trace {
                            let name = span["name"].as_str().unwrap().to_owned();
                            spans.entry(name).or_default().push(span.clone());
                        }
                    }
                }
            }
        }
        spans
    }

    fn wait_for(&self, trace: &str, names: &[&str]) -> BTreeMap<String, Vec<Value>> {
        wait_until(&format!("{names:?} of {trace}"), || {
            let spans = self.spans(trace);
            names.iter().all(|name| spans.contains_key(*name))
        });
        self.spans(trace)
    }
}

/// As the protocol's JSON has it: ids in hexadecimal digits, times as text.
#[track_caller]
fn check_shape(span: &Value) {
    let is_hexadecimal = |name: &str, count: usize| {
        let text = span[name].as_str().unwrap();
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    assert!(is_hexadecimal("traceId", 32) && is_hexadecimal("spanId", 16), "{span}");
    let time = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(
        time("startTimeUnixNano") > 1_700_000_000_000_000_000 && time("endTimeUnixNano") >= time("startTimeUnixNano")
    );
    assert!([1, 2].contains(&span["kind"].as_u64().unwrap()));
    for attribute in span["attributes"].as_array().unwrap() {
        assert!(attribute["key"].is_string() && attribute["value"].is_object(), "{attribute}");
    }
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == name);
    &found.unwrap_or_else(|| panic!("{name} is not in {span}"))["value"]
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const OTHER: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-{PARENT}-{flags}")
}

#[test]
fn a_call_is_one_trace_from_the_client_to_the_program() {
    needs_sandboxes!();
    let world = World::new();
    let collector = Collector::start();
    let alice = Caller::new(&world, &["--owner", "alice-the-canary"]);
    let endpoint = collector.endpoint();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of%20the%20collector"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
        ("OTEL_SERVICE_NAME", "pens"),
    ];
    let server = Server::by(&world, &["serve", "--listen", "127.0.0.1:0"], &variables);
    let told = traceparent(TRACE, "01");
    let run = json!({ "command": "echo canary-argument" });
    let answer = alice.send_with(&server, "run_command", run.clone(), &[("traceparent", &told)], json!({}));
    assert_eq!(result(&answer)["structuredContent"]["stdout"], "canary-argument\n");

    let names = ["POST /mcp", "tools/call run_command", "create sandbox", "exec"];
    let spans = collector.wait_for(TRACE, &names);
    let [request, call, create, exec] = names.map(|name| &spans[name][0]);
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!(PARENT), &json!(2)));
    assert_eq!(call["parentSpanId"], request["spanId"]);
    assert_eq!(create["parentSpanId"], call["spanId"]);
    assert_eq!(exec["parentSpanId"], call["spanId"]);
    assert_eq!(attribute(request, "http.response.status_code"), &json!({ "intValue": "200" }));
    assert_eq!(attribute(exec, "sandpen.run.status"), &json!({ "stringValue": "exited" }));
    assert_eq!(attribute(exec, "sandpen.sandbox.id"), attribute(create, "sandpen.sandbox.id"));
    let time = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time(exec, "startTimeUnixNano") >= time(create, "endTimeUnixNano"));
    assert!(time(call, "endTimeUnixNano") >= time(exec, "endTimeUnixNano"));

    // In the request itself a client may say where its trace goes on, by whatever way it came.
    let meta = json!({ "traceparent": traceparent(OTHER, "01") });
    alice.send_with(&server, "run_command", run.clone(), &[], meta);
    let spans = collector.wait_for(OTHER, &["tools/call run_command", "exec"]);
    let call = &spans["tools/call run_command"][0];
    assert_eq!(call["parentSpanId"], PARENT);
    let way = call["links"][0]["traceId"].as_str().unwrap().to_owned();
    collector.wait_for(&way, &["POST /mcp"]);

    // With a session the program runs elsewhere than the request is answered.
    let session = alice.session(&server);
    session.call("run_code", json!({ "language": "bash", "code": "true" }));
    let spans = collector.wait_for("", &["tools/call run_code"]);
    let call = &spans["tools/call run_code"][0];
    let trace = call["traceId"].as_str().unwrap();
    let spans = collector.wait_for(trace, &["POST /mcp", "create sandbox", "exec"]);
    assert_eq!(spans["POST /mcp"][0]["spanId"], call["parentSpanId"]);
    assert_eq!(spans["exec"][0]["parentSpanId"], call["spanId"]);

    let heads = collector.heads();
    assert!(heads.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{heads}");
    assert!(heads.contains("content-type: application/json") && heads.contains("x-key: of the collector"), "{heads}");
    let text = collector.text();
    for (name, value) in [("service.name", "pens"), ("deployment.environment.name", "test")] {
        let resource = json!({ "key": name, "value": { "stringValue": value } }).to_string();
        assert!(text.contains(&resource), "{resource}");
    }
    for private in ["canary-argument", "alice-the-canary", &alice.token] {
        assert!(!text.contains(private), "{private} is in the traces");
    }
}

#[test]
fn what_a_client_does_not_keep_is_not_kept_and_failures_are_said() {
    needs_sandboxes!();
    let world = World::new();
    let collector = Collector::start();
    let alice = Caller::new(&world, &[]);
    let endpoint = collector.endpoint();
    let mut server = Server::by(
        &world,
        &["serve", "--listen", "127.0.0.1:0"],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())],
    );
    let unkept = traceparent(TRACE, "00");
    let run = json!({ "command": "true" });
    alice.send_with(&server, "run_command", run, &[("traceparent", &unkept)], json!({}));
    let kept = traceparent(OTHER, "01");
    let missing = json!({ "command": "true", "sandbox_id": "sb-7k2m9x4bqhtw3ecd" });
    alice.send_with(&server, "run_command", missing, &[("traceparent", &kept)], json!({}));
    // What has ended is sent before the server is gone.
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().0.success());
    assert!(collector.spans(TRACE).is_empty());
    let spans = collector.spans(OTHER);
    assert_eq!(spans["tools/call run_command"][0]["status"], json!({ "code": 2, "message": "failed" }));
}

#[test]
fn a_collector_that_is_not_there_costs_nothing_but_a_line() {
    needs_sandboxes!();
    let world = World::new();
    let alice = Caller::new(&world, &[]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{nobody}");
    let server = Server::by(
        &world,
        &["serve", "--listen", "127.0.0.1:0"],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())],
    );
    for _ in 0..2 {
        let ran = alice.call(&server, "run_command", json!({ "command": "echo here" }));
        assert_eq!(ran["structuredContent"]["stdout"], "here\n");
        wait_until("the line", || server.log().contains("spans did not reach the collector"));
    }
    assert_eq!(server.log().matches("spans did not reach the collector").count(), 1, "{}", server.log());
    let refused = world.command(&["serve"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", "nowhere").output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("OTEL_EXPORTER_OTLP_ENDPOINT"));
}

#[test]
fn a_client_over_stdio_has_traces_too() {
    needs_sandboxes!();
    let world = World::new();
    let collector = Collector::start();
    let endpoint = collector.endpoint();
    let mut client = Client::hello_with(&world, &[], "2025-11-25", |command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    });
    let meta = json!({ "traceparent": traceparent(TRACE, "01") });
    let run = json!({ "name": "run_command", "arguments": { "command": "true" }, "_meta": meta });
    client.ask("tools/call", run);
    let spans = collector.wait_for(TRACE, &["tools/call run_command", "create sandbox", "exec"]);
    assert_eq!(spans["tools/call run_command"][0]["parentSpanId"], PARENT);
}
