use sandbox::engine::fake::FakeHost;
use serde_json::{Value, json};
use tools::{Catalog, Policy, Selection};

use crate::support::{World, text};

fn policy(images: &[&str]) -> Policy {
    Policy { images: images.iter().map(|text| text.parse().unwrap()).collect(), ..Policy::default() }
}

/// The same request by each tool that makes sandboxes.
fn requests(image: &str) -> [(&'static str, Value); 3] {
    [
        ("create_sandbox", json!({ "image": image })),
        ("run_command", json!({ "command": "echo ran", "image": image })),
        ("run_code", json!({ "language": "bash", "code": "echo ran", "image": image })),
    ]
}

#[tokio::test]
async fn an_image_that_is_open_is_started_from() {
    let world = World::with(policy(&["fake:*"])).await;
    for image in [FakeHost::IMAGE, "host"] {
        let [(create, asked), runs @ ..] = requests(image);
        assert_eq!(world.value(create, asked).await["image"], image);
        for (tool, asked) in runs {
            assert_eq!(world.value(tool, asked).await["stdout"], "ran\n", "{tool} {image}");
        }
    }
    assert_eq!(world.value("create_sandbox", json!({})).await["image"], "host");
    let described = world.call("describe_environment", json!({})).await;
    assert_eq!(described.structured.as_ref().unwrap()["allowed_images"], json!(["fake:*"]));
    assert!(text(&described).contains("image: host; fake:* can be asked for"), "{}", text(&described));
}

#[tokio::test]
async fn an_image_that_is_not_open_is_denied_with_those_that_are() {
    let world = World::with(policy(&["tool:*", "debian:12"])).await;
    for (image, kind) in [
        (FakeHost::IMAGE, "denied"),
        ("tool:5000/other", "denied"),
        ("debian:12@sha256:00", "denied"),
        ("dir:/", "invalid_input"),
        ("tar:/root.tar", "invalid_input"),
        ("/", "invalid_input"),
        ("", "invalid_input"),
    ] {
        for (tool, asked) in requests(image) {
            let refusal = world.refusal(tool, asked).await;
            assert!(refusal.contains(&format!("({kind})")), "{tool} {image}: {refusal}");
            assert!(refusal.contains("one of tool:*, debian:12"), "{tool} {image}: {refusal}");
        }
    }
    for (tool, asked) in requests("tool:1") {
        let refusal = world.refusal(tool, asked).await;
        assert!(refusal.contains("(not_found)"), "it is open and not there: {tool}: {refusal}");
    }
    let closed = World::new().await;
    for (tool, asked) in requests(FakeHost::IMAGE) {
        assert!(closed.refusal(tool, asked).await.contains("leave image out: this server has no other"), "{tool}");
    }
}

#[tokio::test]
async fn a_sandbox_keeps_its_image() {
    let world = World::with(policy(&["fake:1"])).await;
    let id = world.value("create_sandbox", json!({ "image": "fake:1" })).await["sandbox_id"].clone();
    let run = |image: &str| json!({ "sandbox_id": id, "command": "echo ran", "image": image });
    assert_eq!(world.value("run_command", run("fake:1")).await["stdout"], "ran\n");
    let refusal = world.refusal("run_command", run("host")).await;
    assert!(refusal.contains("this one has fake:1") && refusal.contains("create_sandbox"), "{refusal}");
}

#[test]
fn the_words_follow_the_policy() {
    let many: Vec<String> = (0..100).map(|number| format!("tool{number}:*")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (images, part) in [
        (&[][..], "always host, on this server"),
        (&["python:*", "debian:12"], "There are python:*, debian:12, where"),
        (&many, "and 88 more"),
    ] {
        let catalog = Catalog::new(&policy(images), &Selection::default()).unwrap();
        for name in ["run_code", "run_command", "create_sandbox"] {
            let argument = &catalog.find(name).unwrap().input_schema["properties"]["image"];
            assert_eq!(argument["type"], "string", "{name}");
            assert_eq!(catalog.find(name).unwrap().hints.open_world, !images.is_empty(), "{name}");
            assert!(argument["description"].as_str().unwrap().contains(part), "{name}: {argument}");
        }
    }
}

#[tokio::test]
async fn an_image_says_where_it_works_and_what_it_runs() {
    let world = World::with(policy(&["fake:*"])).await;
    let app = FakeHost::APP_IMAGE;
    let created = world.value("create_sandbox", json!({ "image": app })).await;
    assert_eq!(created["work_directory"], "/app");
    let listed = world.value("list_sandboxes", json!({})).await;
    assert_eq!(listed["sandboxes"][0]["work_directory"], "/app");
    for place in [json!({ "image": app }), json!({ "sandbox_id": created["sandbox_id"] })] {
        let asked = |more: Value| {
            let mut asked = place.clone();
            asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            asked
        };
        let stdout = async |more: Value| world.value("run_command", asked(more)).await["stdout"].clone();
        assert_eq!(stdout(json!({})).await, "hello\n");
        assert_eq!(stdout(json!({ "entrypoint": true, "argv": ["other"] })).await, "other\n");
        assert_eq!(stdout(json!({ "argv": ["pwd"] })).await, "/app\n");
        assert_eq!(stdout(json!({ "command": "pwd", "cwd": "/tmp" })).await, "/tmp\n");
        let refusal = world.refusal("run_command", asked(json!({ "entrypoint": true, "command": "ls" }))).await;
        assert!(refusal.contains("in argv"), "{refusal}");
    }
    let refusal = world.refusal("run_command", json!({})).await;
    assert!(refusal.contains("no program of its own") && refusal.contains("give a command"), "{refusal}");
    let code = json!({ "language": "bash", "code": "pwd", "image": app });
    assert_eq!(world.value("run_code", code).await["stdout"], "/app\n");
}
