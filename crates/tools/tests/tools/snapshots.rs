use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{Owner, Result};
use serde_json::{Value, json};
use tools::export::{Check, Difference, Export, ExportRequest, Exporter, Outcome, Report, What};
use tools::{Content, Policy, Progress};

use crate::support::{World, text};

async fn run(world: &World, id: &str, command: &str) -> Value {
    world.value("run_command", json!({ "sandbox_id": id, "command": command, "checkpoint": true })).await
}

async fn shown(world: &World, id: &str, file: &str) -> String {
    let run = world.value("run_command", json!({ "sandbox_id": id, "command": format!("cat {file}") })).await;
    run["stdout"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_saved_sandbox_is_an_image_until_it_is_deleted() {
    let world = World::new().await;
    let id = world.sandbox().await;
    run(&world, &id, "echo one > note").await;
    let saved = world.value("save_sandbox", json!({ "sandbox_id": id, "name": "lab" })).await;
    assert_eq!(saved["image"], "saved:lab");
    run(&world, &id, "echo two > note").await;
    let again = world.value("run_command", json!({ "image": "saved:lab", "command": "cat note" })).await;
    assert_eq!(again["stdout"], "one\n");
    let other = world.value("create_sandbox", json!({ "image": "saved:lab" })).await;
    let described = world.call("describe_environment", json!({})).await;
    assert_eq!(described.structured.as_ref().unwrap()["saved_images"][0]["image"], "saved:lab");
    assert!(text(&described).contains("saved images: saved:lab"), "{}", text(&described));

    assert_eq!(world.value("delete_image", json!({ "image": "saved:lab" })).await["deleted"], true);
    assert_eq!(shown(&world, other["sandbox_id"].as_str().unwrap(), "note").await, "one\n", "it lost its files");
    let refusal = world.refusal("run_command", json!({ "image": "saved:lab", "command": "true" })).await;
    assert!(refusal.contains("(not_found)"), "{refusal}");
    for (image, kind) in [("saved:lab", "not_found"), ("host", "invalid_input"), ("saved:No", "invalid_input")] {
        let refusal = world.refusal("delete_image", json!({ "image": image })).await;
        assert!(refusal.contains(kind), "{image}: {refusal}");
    }
    let refusal = world.refusal("save_sandbox", json!({ "sandbox_id": id, "name": "No Name" })).await;
    assert!(refusal.contains("lower-case letters"), "{refusal}");
}

#[tokio::test]
async fn forks_have_the_same_files_and_go_their_own_ways() {
    let world = World::new().await;
    let id = world.sandbox().await;
    run(&world, &id, "echo same > note").await;
    let forked = world.value("fork_sandbox", json!({ "sandbox_id": id, "count": 3, "names": ["left", "right"] })).await;
    let ids: Vec<String> =
        forked["sandbox_ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 3);
    run(&world, "left", "echo changed > note").await;
    assert_eq!(shown(&world, &ids[0], "note").await, "changed\n");
    for other in [id.as_str(), "right", &ids[2]] {
        assert_eq!(shown(&world, other, "note").await, "same\n", "{other}");
    }
}

#[tokio::test]
async fn forks_are_made_all_or_none() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let taken = json!({ "sandbox_id": id, "names": ["a", "b", "a"] });
    assert!(world.refusal("fork_sandbox", taken).await.contains("(already_exists)"));
    for wrong in [json!({ "count": 0 }), json!({ "count": 17 }), json!({ "count": 1, "names": ["a", "b"] })] {
        let mut arguments = wrong.clone();
        arguments["sandbox_id"] = json!(id);
        assert!(world.refusal("fork_sandbox", arguments).await.contains("count must be 1 to 16"), "{wrong}");
    }
    assert_eq!(world.service.list(&world.caller().owner).await.unwrap().len(), 1, "some were left behind");
}

#[tokio::test]
async fn a_run_can_be_looked_at_and_taken_back() {
    let world = World::new().await;
    let id = world.sandbox().await;
    run(&world, &id, "echo one > kept; echo one > changed; echo one > removed").await;
    let output = world
        .call(
            "run_command",
            json!({ "sandbox_id": id, "command": "echo two > changed; rm removed; touch new", "checkpoint": true }),
        )
        .await;
    let checkpoint = output.structured.as_ref().unwrap()["checkpoint"].clone();
    assert!(text(&output).contains("restore_sandbox goes back"), "{}", text(&output));
    let output = world.call("diff_sandbox", json!({ "sandbox_id": id, "since": checkpoint })).await;
    let lines = text(&output);
    assert!(lines.contains("M /workspace/changed (4 B)"), "{lines}");
    assert!(lines.contains("+ /workspace/new (0 B)") && lines.contains("- /workspace/removed"), "{lines}");
    assert!(!lines.contains("kept"), "{lines}");
    let value = world.value("diff_sandbox", json!({ "sandbox_id": id })).await;
    let paths: Vec<&str> =
        value["changes"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&"/workspace/kept") && !paths.contains(&"/workspace/removed"), "{paths:?}");

    let restored = world.value("restore_sandbox", json!({ "sandbox_id": id, "checkpoint": checkpoint })).await;
    assert_eq!(restored["restored"], true);
    assert_eq!(shown(&world, &id, "changed removed").await, "one\none\n");
    let difference = world.call("diff_sandbox", json!({ "sandbox_id": id, "since": checkpoint })).await;
    assert_eq!(text(&difference), "nothing has changed");
    let refusal = world.refusal("restore_sandbox", json!({ "sandbox_id": id, "checkpoint": 4000 })).await;
    assert!(refusal.contains("(not_found)"), "{refusal}");
    let refusal = world.refusal("run_command", json!({ "command": "true", "checkpoint": true })).await;
    assert!(refusal.contains("nothing to go back to"), "{refusal}");
}

/// Answers with what it was asked for.
struct Echo;

#[async_trait]
impl Exporter for Echo {
    async fn export(&self, _: &Owner, request: ExportRequest, _: &Arc<dyn Progress>) -> Result<Export> {
        let outcome = match request.check {
            Check::Skip(why) => Outcome::NotChecked(why),
            Check::Rebuild => Outcome::Compared {
                same: 7,
                differences: vec![Difference { path: "/workspace/a\nb".parse()?, what: What::Contents }],
                more: 2,
            },
        };
        let base = request.base.map_or_else(|| "own:1".to_owned(), |base| base.to_string());
        let report = Report { base, base_digest: None, outcome, builds: 1, notes: vec!["a note".to_owned()] };
        let context = Box::new(std::io::Cursor::new(b"the context".to_vec()));
        Ok(Export { dockerfile: "FROM own:1\n".to_owned(), context, report })
    }
}

#[tokio::test]
async fn an_export_comes_as_text_report_and_archive() {
    let world = World::with(Policy { images: vec!["debian:*".parse().unwrap()], ..Policy::default() }).await;
    let id = world.sandbox().await;
    let export = async |arguments: Value| {
        let mut call = world.caller();
        call.exporter = Some(Arc::new(Echo));
        let mut whole = json!({ "sandbox_id": id });
        whole.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        world.call_as(call, "export_dockerfile", whole).await
    };
    let output = export(json!({})).await;
    let value = output.structured.clone().unwrap();
    assert_eq!(
        (&value["result"], &value["same"], &value["more_differences"]),
        (&json!("differs"), &json!(7), &json!(2))
    );
    assert_eq!(value["differences"][0]["what"], "contents");
    let said = text(&output);
    assert!(said.starts_with("FROM own:1\n") && said.contains("7 paths came out the same, 3 did not"), "{said}");
    assert!(said.contains("[contents: /workspace/a\\nb]"), "a name broke its line: {said}");
    let link = output.content.iter().find_map(|content| match content {
        Content::Link(link) => Some(link.clone()),
        Content::Text(_) | Content::Image { .. } | Content::Embedded(_) => None,
    });
    let link = link.unwrap();
    assert_eq!((link.mime_type, link.bytes), ("application/x-tar", 11));
    assert_eq!(json!(link.uri), value["context_uri"]);
    assert_eq!(shown(&world, &id, value["context_path"].as_str().unwrap()).await, "the context");

    let value = export(json!({ "verify": false, "base": "debian:12" })).await.structured.unwrap();
    assert_eq!((&value["result"], &value["base"]), (&json!("not_checked"), &json!("debian:12")));
    // One that sandboxes may not start from is written down and not fetched.
    let value = export(json!({ "base": "evil.example/x" })).await.structured.unwrap();
    assert_eq!(value["result"], "not_checked");
    assert!(value["reason"].as_str().unwrap().contains("not among those"), "{value:?}");
    assert_eq!(export(json!({ "base": "debian:12" })).await.structured.unwrap()["result"], "differs");
    let refusal = world.refusal("export_dockerfile", json!({ "sandbox_id": id })).await;
    assert!(refusal.contains("(unsupported)"), "{refusal}");
}
