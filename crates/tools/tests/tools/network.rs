use sandbox::Network;
use serde_json::{Value, json};
use tools::{Call, Catalog, Ceiling, Policy, Secret, Selection, instructions};

use crate::support::{World, text};

/// `default` for calls that do not ask, `most` for those that do.
fn policy(default: &str, most: &str) -> Policy {
    let ceiling = Ceiling { network: network(most), ..Ceiling::default() };
    Policy { network: network(default), ceiling, ..Policy::default() }
}

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

fn connect(hosts: &[(&str, u16)]) -> String {
    hosts.iter().map(|(host, port)| format!("connect {host} {port}; ")).collect()
}

#[tokio::test]
async fn a_run_reaches_what_it_asks_for_and_nothing_else() {
    let world = World::with(policy("none", "internet")).await;
    let command = connect(&[("a.example", 443), ("b.example", 443)]);
    for asked in [json!("a.example"), json!(["a.example"])] {
        let run = world.value("run_command", json!({ "command": command, "network": asked })).await;
        assert_eq!(run["stdout"], "connected\n", "{run}");
        let refused = json!([{
            "host": "b.example",
            "port": 443,
            "rule": "host_not_allowed",
            "description": "the host is not in the sandbox's list",
            "count": 1,
        }]);
        assert_eq!((&run["network"]["connections"], &run["network"]["refused"]), (&json!(1), &refused));
    }
    let code = json!({ "language": "bash", "code": command, "network": "internet" });
    assert_eq!(world.value("run_code", code).await["network"]["connections"], 2);
    let none = world.value("run_command", json!({ "command": command })).await;
    assert!(none.get("network").is_none() && none["stderr"].as_str().unwrap().contains("unreachable"), "{none}");
}

#[tokio::test]
async fn a_request_can_only_tighten() {
    let world = World::with(policy("a.example", "a.example,*.b.example:8443")).await;
    for (asked, has) in [
        (json!(null), "a.example"),
        (json!("none"), "none"),
        (json!([]), "none"),
        (json!("a.example:443"), "a.example:443"),
        (json!("x.b.example:8443"), "x.b.example:8443"),
    ] {
        let arguments = if asked.is_null() { json!({}) } else { json!({ "network": asked }) };
        assert_eq!(world.value("create_sandbox", arguments).await["network"], has);
    }
    for (asked, kind) in [
        ("internet", "denied"),
        ("c.example", "denied"),
        ("a.example:22", "denied"),
        ("*.b.example", "denied"),
        ("https://a.example/", "invalid_input"),
        ("a.example,none", "invalid_input"),
        ("", "invalid_input"),
    ] {
        for (tool, mut arguments) in [
            ("create_sandbox", json!({})),
            ("run_command", json!({ "command": "true" })),
            ("run_code", json!({ "language": "bash", "code": "true" })),
        ] {
            arguments["network"] = json!(asked);
            let refusal = world.refusal(tool, arguments).await;
            assert!(refusal.contains(&format!("({kind})")), "{tool} {asked}: {refusal}");
        }
    }
    let refusal = world.refusal("create_sandbox", json!({ "network": "internet" })).await;
    assert!(refusal.contains("this server allows *.b.example:8443,a.example"), "{refusal}");
}

#[tokio::test]
async fn a_sandbox_keeps_its_network() {
    let world = World::with(policy("none", "internet")).await;
    let id = world.value("create_sandbox", json!({ "network": "a.example,b.example" })).await["sandbox_id"].clone();
    let run = |network: &str| json!({ "sandbox_id": id, "command": "connect a.example 443", "network": network });
    let refusal = world.refusal("run_command", run("c.example")).await;
    assert!(
        refusal.contains("has a.example,b.example") && refusal.contains("create_sandbox with network \"c.example\"")
    );
    assert_eq!(world.value("run_command", run("b.example, a.example")).await["stdout"], "connected\n");
    let listed = world.call("list_sandboxes", json!({})).await;
    assert!(text(&listed).contains("network: a.example,b.example"), "{}", text(&listed));
}

#[tokio::test]
async fn a_sandbox_that_reaches_more_than_the_server_allows_runs_nothing() {
    let world = World::with(policy("none", "internet")).await;
    let id = world.value("create_sandbox", json!({ "network": "a.example" })).await["sandbox_id"].clone();
    let runs = [
        ("run_command", json!({ "sandbox_id": id, "command": "connect a.example 443" })),
        ("run_code", json!({ "sandbox_id": id, "language": "bash", "code": "connect a.example 443" })),
    ];
    for (most, runs_there) in [("none", false), ("b.example", false), ("*.example", true), ("internet", true)] {
        for (tool, arguments) in &runs {
            // As if another server had adopted it.
            let call = Call { policy: policy("none", most).into(), ..world.caller() };
            let said = text(&world.call_as(call, tool, arguments.clone()).await);
            assert_eq!(said.contains("connected"), runs_there, "{tool} where at most {most} is allowed: {said}");
            assert!(runs_there || said.contains("this server"), "{said}");
        }
    }
}

#[tokio::test]
async fn a_refusal_says_how_to_ask_for_more() {
    let world = World::with(policy("a.example", "a.example,b.example,*.c.example:*")).await;
    let command = connect(&[("b.example", 443), ("x.c.example", 22), ("d.example", 443)]);
    let said = text(&world.call("run_command", json!({ "command": command })).await);
    for part in [
        "[network: refused b.example:443, x.c.example:22, d.example:443 (host_not_allowed: the host is not in",
        "call again with network \"a.example,b.example,x.c.example:22\"",
        "only the operator of this server can allow d.example:443",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let asked = json!({ "command": command, "network": "a.example,b.example,x.c.example:22" });
    assert_eq!(world.value("run_command", asked).await["network"]["connections"], 2);

    let id = world.value("create_sandbox", json!({})).await["sandbox_id"].clone();
    let said = text(&world.call("run_command", json!({ "sandbox_id": id, "command": "connect b.example 80" })).await);
    assert!(said.contains("call create_sandbox with network \"a.example,b.example\" and run there"), "{said}");
}

#[tokio::test]
async fn a_job_tells_its_refusals_when_it_has_ended() {
    let world = World::with(policy("none", "internet")).await;
    let started = json!({ "command": "connect b.example 443", "network": "a.example", "background": true });
    let job = world.value("run_command", started).await["job_id"].clone();
    let ended = world.call("get_job", json!({ "job_id": job, "wait_s": 20 })).await;
    assert!(text(&ended).contains("[network: refused b.example:443"), "{}", text(&ended));
}

#[tokio::test]
async fn the_environment_tells_the_network_and_secrets_by_name() {
    let secret = |name: &str, host: &str| Secret { name: name.parse().unwrap(), hosts: vec![host.parse().unwrap()] };
    let policy = Policy {
        secrets: vec![secret("API_KEY", "api.example.com"), secret("ELSEWHERE", "api.example.net")],
        passed_through: vec!["REGION".to_owned()],
        ..policy("none", "*.example.com")
    };
    let world = World::with(policy).await;
    let described = world.call("describe_environment", json!({})).await;
    let secrets = json!([{ "name": "API_KEY", "hosts": ["api.example.com"] }]);
    assert_eq!(
        described.structured.as_ref().unwrap()["network"],
        json!({ "allowed": "none", "max": "*.example.com", "secrets": secrets, "passed_through_env": ["REGION"] })
    );
    for part in ["network: none; at most *.example.com can be asked for", "secret $API_KEY", "can read: REGION"] {
        assert!(text(&described).contains(part), "{part:?} is not in {}", text(&described));
    }
    let id = world.value("create_sandbox", json!({ "network": "api.example.com" })).await["sandbox_id"].clone();
    let named = world.value("describe_environment", json!({ "sandbox_id": id })).await;
    assert_eq!(named["network"]["allowed"], "api.example.com");
}

#[test]
fn the_words_follow_the_policy() {
    for (default, most, part, open) in [
        ("none", "none", "There is no network.", false),
        ("none", "internet", "no network unless network asks for it", true),
        ("none", "a.example", "for some or all of a.example", true),
        ("a.example", "a.example", "a.example can be reached, and nothing else", true),
        ("a.example", "internet", "ask for other hosts with network", true),
        ("a.example", "a.example,b.example", "for others of a.example,b.example", true),
        ("internet", "internet", "Every public host can be reached", true),
    ] {
        let policy = policy(default, most);
        let catalog = Catalog::new(&policy, &Selection::default()).unwrap();
        assert!(instructions::text(&policy, &catalog).contains(part), "{default} {most}");
        for name in ["run_code", "run_command", "create_sandbox"] {
            let tool = catalog.find(name).unwrap();
            assert!(tool.description.contains(part), "{name}: {}", tool.description);
            assert_eq!(tool.hints.open_world, open, "{name} with {most}");
            let argument = &tool.input_schema["properties"]["network"];
            assert_eq!(argument["type"], "string", "{name}");
            let says = argument["description"].as_str().unwrap();
            assert!(says.contains("none, on this server") != open && (!open || says.contains(most)), "{says}");
        }
    }
}

#[test]
fn a_long_list_does_not_fill_every_conversation() {
    let hosts: Vec<String> = (0..256).map(|number| format!("host{number}.example")).collect();
    let policy = policy("none", &hosts.join(","));
    let catalog = Catalog::new(&policy, &Selection::default()).unwrap();
    let words = instructions::text(&policy, &catalog);
    assert!(words.len() < 1500 && words.contains("244 more"), "{words}");
    let shown = serde_json::to_string(&Value::Object(catalog.find("run_code").unwrap().input_schema.clone())).unwrap();
    assert!(shown.len() < 6000, "{} bytes", shown.len());
}
