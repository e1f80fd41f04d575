use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tools::resources::{self, Body};

use crate::support::World;

#[tokio::test]
async fn resources_are_listed_and_read() {
    let world = World::new().await;
    let id = world.sandbox().await;
    world.value("write_file", json!({ "sandbox_id": id, "path": "a b.csv", "content": "1,2" })).await;
    world
        .value("write_file", json!({ "sandbox_id": id, "path": "x.bin", "content": "AP8=", "encoding": "base64" }))
        .await;
    world.value("run_command", json!({ "sandbox_id": id, "command": "echo out" })).await;
    let listed = resources::list(&world.caller()).await.unwrap();
    let names: Vec<_> = listed.iter().map(|resource| resource.name.as_str()).collect();
    assert!(names[0].ends_with(" stdout"), "{names:?}");
    assert_eq!(&names[1..], ["a b.csv", "x.bin"], "the run wrote no errors");
    let mut bodies = Vec::new();
    for resource in &listed {
        bodies.push(resources::read(&world.caller(), &resource.uri).await.unwrap().body);
    }
    let text = |text: &str| Body::Text(text.to_owned());
    assert_eq!(bodies, [text("out\n"), text("1,2"), Body::Bytes(vec![0, 0xff])]);
}

#[tokio::test]
async fn a_file_that_is_too_large_is_refused_not_cut() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let content = "x".repeat(resources::MAX_BYTES as usize + 1);
    let written = world.value("write_file", json!({ "sandbox_id": id, "path": "large", "content": content })).await;
    let error = resources::read(&world.caller(), written["uri"].as_str().unwrap()).await.unwrap_err();
    assert!(error.hint().unwrap().contains("read_file"), "{error}");
}

#[tokio::test]
async fn a_sandbox_is_known_by_its_name_too() {
    let world = World::new().await;
    world.value("create_sandbox", json!({ "name": "lab" })).await;
    world.value("write_file", json!({ "sandbox_id": "lab", "path": "a", "content": "x" })).await;
    let read = resources::read(&world.caller(), "sandbox://lab/workspace/a").await.unwrap();
    assert_eq!(read.body, Body::Text("x".to_owned()));
}

#[tokio::test]
async fn ids_and_paths_are_completed() {
    let world = World::new().await;
    let id = world.sandbox().await;
    world.value("write_file", json!({ "sandbox_id": id, "path": "data/one.csv", "content": "" })).await;
    world.value("write_file", json!({ "sandbox_id": id, "path": "data/two.csv", "content": "" })).await;
    let template = resources::TEMPLATES[0].uri_template;
    let complete = async |variable: &str, typed: &str| {
        let known = BTreeMap::from([("sandbox_id".to_owned(), id.clone())]);
        resources::complete(&world.caller(), template, variable, typed, &known).await.unwrap()
    };
    assert_eq!(complete("sandbox_id", &id[..4]).await, std::slice::from_ref(&id));
    assert_eq!(complete("sandbox_id", "none").await, [""; 0]);
    assert_eq!(complete("path", "workspace/da").await, ["workspace/data/"]);
    assert_eq!(complete("path", "workspace/data/t").await, ["workspace/data/two.csv"]);
}

#[tokio::test]
async fn changes_are_told_to_those_who_watch() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let call = world.caller();
    let mut file = resources::watch(&call, &format!("sandbox://{id}/workspace/a")).await.unwrap();
    world.value("write_file", json!({ "sandbox_id": id, "path": "other", "content": "" })).await;
    world.value("write_file", json!({ "sandbox_id": id, "path": "a", "content": "" })).await;
    soon(file.changed()).await.unwrap();
    let job = world
        .value("run_command", json!({ "sandbox_id": id, "command": "sleep 0.2; echo x", "background": true }))
        .await;
    let job = job["job_id"].as_str().unwrap();
    let mut output = resources::watch(&call, &format!("job://{job}/stdout")).await.unwrap();
    soon(output.changed()).await.unwrap();
    assert_eq!(soon(output.changed()).await, None, "an output that has ended changes no more");
    assert!(resources::watch(&call, "sandbox://sb-none/a").await.is_err());
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), work).await.expect("nothing was told")
}
