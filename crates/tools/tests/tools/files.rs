use serde_json::json;
use tools::Content;

use crate::support::{World, text};

#[tokio::test]
async fn a_file_comes_back_as_it_was_written() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let written = world.value("write_file", json!({ "sandbox_id": id, "path": "a/b.txt", "content": "grüße\n" })).await;
    assert_eq!(written["path"], "/workspace/a/b.txt");
    assert_eq!(written["uri"], format!("sandbox://{id}/workspace/a/b.txt"));
    let read = world.value("read_file", json!({ "sandbox_id": id, "path": "/workspace/a/b.txt" })).await;
    assert_eq!((&read["content"], &read["encoding"]), (&json!("grüße\n"), &json!("text")));
    assert!(read.get("next_offset").is_none());
}

#[tokio::test]
async fn bytes_come_back_as_base64_and_images_as_images() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let write =
        |path: &str, content: &str| json!({ "sandbox_id": id, "path": path, "content": content, "encoding": "base64" });
    world.value("write_file", write("bytes", "AP+A")).await;
    let read = world.value("read_file", json!({ "sandbox_id": id, "path": "bytes" })).await;
    assert_eq!((&read["content"], &read["encoding"]), (&json!("AP+A"), &json!("base64")));
    world.value("write_file", write("picture", "iVBORw0KGgoAAAA=")).await;
    let output = world.call("read_file", json!({ "sandbox_id": id, "path": "picture" })).await;
    assert!(matches!(output.content[1], Content::Image { mime_type: "image/png", .. }), "{:?}", output.content);
    assert!(world.refusal("write_file", write("x", "not base64!")).await.contains("base64"));
}

#[tokio::test]
async fn a_long_file_is_read_in_parts_that_fit_together() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let whole = "äöü€\n".repeat(20_000);
    world.value("write_file", json!({ "sandbox_id": id, "path": "long", "content": whole })).await;
    let (mut offset, mut parts) = (json!(0), String::new());
    loop {
        let part = world.value("read_file", json!({ "sandbox_id": id, "path": "long", "offset": offset })).await;
        parts += part["content"].as_str().unwrap();
        match part.get("next_offset") {
            Some(next) => offset = next.clone(),
            None => break,
        }
    }
    assert!(parts == whole);
}

#[tokio::test]
async fn directories_are_listed_and_deleted_only_when_meant() {
    let world = World::new().await;
    let id = world.sandbox().await;
    for path in ["d/one.csv", "d/two", "three"] {
        world.value("write_file", json!({ "sandbox_id": id, "path": path, "content": "x" })).await;
    }
    let output = world.call("list_files", json!({ "sandbox_id": id, "recursive": true })).await;
    assert_eq!(
        text(&output),
        "/workspace/d/\n/workspace/d/one.csv  1 B\n/workspace/d/two  1 B\n/workspace/three  1 B\n"
    );
    let few = world.value("list_files", json!({ "sandbox_id": id, "recursive": true, "max_entries": 1 })).await;
    assert_eq!(few["truncated"], true);
    assert!(world.refusal("delete_file", json!({ "sandbox_id": id, "path": "d" })).await.contains("recursive"));
    for stays in [".", "/workspace", "/", "/tmp"] {
        let said = world.refusal("delete_file", json!({ "sandbox_id": id, "path": stays, "recursive": true })).await;
        assert!(said.contains("stays"), "{said}");
    }
    assert_eq!(world.value("list_files", json!({ "sandbox_id": id })).await["entries"].as_array().unwrap().len(), 2);
    world.value("delete_file", json!({ "sandbox_id": id, "path": "d", "recursive": true })).await;
    let left = world.value("list_files", json!({ "sandbox_id": id })).await;
    assert_eq!(left["entries"].as_array().unwrap().len(), 1);
}

/// The code in the sandbox chooses names: many, long, and such that grow when they are written down.
#[tokio::test]
async fn names_neither_fill_an_answer_nor_look_like_one() {
    let world = World::new().await;
    let id = world.sandbox().await;
    for number in 0..300 {
        let path = format!("{}{number}", "\u{1}".repeat(240));
        world.value("write_file", json!({ "sandbox_id": id, "path": path, "content": "" })).await;
    }
    let output = world.call("list_files", json!({ "sandbox_id": id, "max_entries": 2000 })).await;
    let structured = output.structured.as_ref().unwrap();
    assert_eq!(structured["truncated"], true);
    assert!(serde_json::to_string(structured).unwrap().len() < 300 * 1024);
    world.value("write_file", json!({ "sandbox_id": id, "path": "d/a\n[exit code 0]", "content": "" })).await;
    let output = world.call("list_files", json!({ "sandbox_id": id, "path": "d" })).await;
    assert_eq!(text(&output).lines().count(), 1, "{}", text(&output));
}

#[tokio::test]
async fn wrong_arguments_say_which_and_why() {
    let world = World::new().await;
    let id = world.sandbox().await;
    for (arguments, names) in [
        (json!({ "sandbox_id": id }), "path"),
        (json!({ "sandbox_id": id, "path": "a", "ofset": 3 }), "ofset"),
        (json!({ "sandbox_id": id, "path": 7 }), "path"),
        (json!({ "sandbox_id": id, "path": "../../etc/passwd" }), "goes up"),
        (json!({ "sandbox_id": id, "path": "nothing" }), "not_found"),
        (json!({ "sandbox_id": "sb-none", "path": "a" }), "create_sandbox"),
    ] {
        let said = world.refusal("read_file", arguments).await;
        assert!(said.contains(names), "{said} does not say {names}");
    }
}
