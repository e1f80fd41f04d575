use sandbox::Owner;
use serde_json::json;
use tools::resources;

use crate::support::{World, text};

/// To somebody else a sandbox, its files and its jobs do not exist, whatever is guessed.
#[tokio::test]
async fn what_is_somebody_elses_does_not_exist() {
    let world = World::new().await;
    let id = world.sandbox().await;
    world.value("write_file", json!({ "sandbox_id": id, "path": "secret", "content": "x" })).await;
    let job = world.value("run_command", json!({ "sandbox_id": id, "command": "sleep 100", "background": true })).await;
    let job = job["job_id"].as_str().unwrap().to_owned();
    world.value("save_sandbox", json!({ "sandbox_id": id, "name": "theirs" })).await;
    let stranger: Owner = "stranger".parse().unwrap();
    for (tool, arguments) in [
        ("read_file", json!({ "sandbox_id": id, "path": "secret" })),
        ("write_file", json!({ "sandbox_id": id, "path": "secret", "content": "y" })),
        ("list_files", json!({ "sandbox_id": id })),
        ("delete_file", json!({ "sandbox_id": id, "path": "secret" })),
        ("run_command", json!({ "sandbox_id": id, "command": "true" })),
        ("run_code", json!({ "sandbox_id": id, "language": "bash", "code": "true" })),
        ("stop_sandbox", json!({ "sandbox_id": id })),
        ("describe_environment", json!({ "sandbox_id": id })),
        ("save_sandbox", json!({ "sandbox_id": id, "name": "mine" })),
        ("fork_sandbox", json!({ "sandbox_id": id })),
        ("diff_sandbox", json!({ "sandbox_id": id })),
        ("restore_sandbox", json!({ "sandbox_id": id, "checkpoint": 1 })),
        ("export_dockerfile", json!({ "sandbox_id": id })),
        ("delete_image", json!({ "image": "saved:theirs" })),
        ("get_job", json!({ "job_id": job })),
        ("stop_job", json!({ "job_id": job })),
    ] {
        let output = world.call_as(world.caller_as(stranger.clone()), tool, arguments).await;
        assert!(output.is_error && text(&output).contains("not_found"), "{tool}: {}", text(&output));
    }
    let call = world.caller_as(stranger);
    assert!(resources::list(&call).await.unwrap().is_empty());
    for uri in [format!("sandbox://{id}/workspace/secret"), format!("job://{job}/stdout")] {
        assert!(resources::read(&call, &uri).await.is_err(), "{uri} was read");
        assert!(resources::watch(&call, &uri).await.is_err(), "{uri} was watched");
        assert!(resources::read(&world.caller(), &uri).await.is_ok(), "{uri} is not there for its owner");
    }
    let described = world.call_as(call.clone(), "describe_environment", json!({})).await;
    assert!(!text(&described).contains("saved:"), "{}", text(&described));
    let refused = world.call_as(call.clone(), "create_sandbox", json!({ "image": "saved:theirs" })).await;
    assert!(refused.is_error && text(&refused).contains("not_found"), "{}", text(&refused));
    let output = world.call_as(call, "list_sandboxes", json!({})).await;
    assert_eq!(text(&output), "you have no sandboxes");
}
