use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox::engine::fake::Operation;
use sandbox::{Bounds, ErrorKind, Lifetime, Owner, Persistence, Quota, Result};
use serde_json::{Value, json};
use tools::export::{Export, ExportRequest, Exporter, Outcome, Report};
use tools::profile::SandboxServer;
use tools::{Policy, ProfileOption, ProfileOptions, Progress};

use crate::support::{World, text};

async fn world(options: &[ProfileOption]) -> World {
    world_with(options, Lifetime::default()).await
}

async fn world_with(options: &[ProfileOption], lifetime: Lifetime) -> World {
    let mut chosen = ProfileOptions::default();
    options.iter().for_each(|option| chosen.add(*option));
    let images = vec!["*".parse().unwrap(), "host".parse().unwrap()];
    let policy = Policy { images, lifetime, ..Policy::default() };
    World::speaking_as(Arc::new(SandboxServer::new(chosen)), policy).await
}

/// The text of an answer that is not flagged, which is also its only value.
async fn said(world: &World, tool: &str, arguments: Value) -> String {
    let output = world.call(tool, arguments).await;
    assert!(!output.is_error, "{output:?}");
    assert_eq!(Value::Object(output.structured.clone().unwrap()), json!({ "result": text(&output) }));
    text(&output)
}

fn id(created: &str) -> String {
    let id = created.lines().next().unwrap().strip_prefix("Container created with ID: ").unwrap();
    assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    id.to_owned()
}

async fn container(world: &World, image: &str, persist: bool) -> String {
    id(&said(world, "create_container_environment", json!({ "image": image, "persist": persist })).await)
}

async fn run(world: &World, id: &str, command: &str) -> String {
    said(world, "execute_command_in_container", json!({ "container_id": id, "command": command })).await
}

#[tokio::test]
async fn commands_are_words_and_their_output_is_all_that_is_told() {
    let world = world(&[]).await;
    let id = container(&world, "host", false).await;
    assert_eq!(run(&world, &id, "pwd").await, "/workspace\n");
    assert_eq!(run(&world, &id, "echo a && echo b | cat > c").await, "a && echo b | cat > c\n");
    assert_eq!(run(&world, &id, "sh -c 'echo one; echo two >&2; printenv DEBIAN_FRONTEND; exit 3'").await, {
        "one\ntwo\nnoninteractive\n"
    });
    assert_eq!(run(&world, &id, "false").await, "");
    assert_eq!(
        run(&world, &id, "nope -l").await,
        "OCI runtime exec failed: exec failed: unable to start container process: exec: \"nope\": executable file not found in \
         $PATH: unknown"
    );
    assert_eq!(run(&world, &id, "echo 'a").await, "Error executing command: No closing quotation (invalid_input)");
    assert_eq!(run(&world, &id, " ").await, "Error executing command: there is no command to run (invalid_input)");
}

/// Twice as much as tools of ours keep.
#[tokio::test]
async fn a_mebibyte_of_output_comes_whole_and_of_more_both_ends() {
    let world = world(&[]).await;
    let id = container(&world, "host", false).await;
    assert_eq!(run(&world, &id, "head -c 1048576 /dev/zero").await.len(), 1 << 20);
    let much = run(&world, &id, "head -c 1048586 /dev/zero").await;
    assert!(much.contains("\n[… 10 bytes left out …]\n"), "{} bytes", much.len());
}

#[tokio::test]
async fn options_give_a_shell_and_flag_what_fails() {
    let world = world(&[ProfileOption::Shell, ProfileOption::FlagFailures]).await;
    let id = container(&world, "host", false).await;
    assert_eq!(run(&world, &id, "echo a && echo b > c; cat c").await, "a\nb\n");
    for arguments in
        [json!({ "container_id": id, "command": "exit 3" }), json!({ "container_id": "x", "command": "true" })]
    {
        let output = world.call("execute_command_in_container", arguments).await;
        assert!(output.is_error && output.structured.is_some(), "{output:?}");
    }
    let described = &world.catalog.find("execute_command_in_container").unwrap().description;
    assert!(described.contains("by its shell"), "{described}");
}

#[tokio::test]
async fn files_are_written_below_the_work_directory_only() {
    let world = world(&[]).await;
    let id = container(&world, "host", false).await;
    let file = async |name: &str| {
        let arguments = json!({ "container_id": id, "filename": name, "content": "{\"name\": \"é\"}" });
        said(&world, "create_file_in_container", arguments).await
    };
    assert_eq!(file("src/package.json").await, "File src/package.json has been created in /workspace");
    assert_eq!(run(&world, &id, "cat src/package.json").await, "{\"name\": \"é\"}");
    for name in ["/etc/passwd", "../../root/.profile"] {
        let refusal = file(name).await;
        assert!(
            refusal.starts_with("Error creating file: ") && refusal.contains("is outside of /workspace"),
            "{refusal}"
        );
    }
}

#[tokio::test]
async fn a_container_that_persists_outlives_the_server_and_says_how_to_reach_it() {
    let world = world(&[ProfileOption::EndTemporary]).await;
    let passing = container(&world, "host", false).await;
    let created = said(&world, "create_container_environment", json!({ "image": "host", "persist": true })).await;
    let lines: Vec<&str> = created.lines().collect();
    assert_eq!(lines[1..3], ["Working directory is /workspace", "Container is ready for commands"]);
    let kept = world.service.list(&Owner::local()).await.unwrap().pop().unwrap();
    assert_eq!(kept.persistence, Persistence::Persistent);
    for command in [format!("sandpen exec -t {} -- sh", kept.id), format!("sandpen stop {}", kept.id)] {
        assert!(created.contains(&command), "{created}");
    }
    let id = id(&created);
    run(&world, &id, "sh -c 'echo before > note'").await;
    let world = world.restarted().await;
    assert_eq!(run(&world, &id, "cat note").await, "before\n");
    let file = json!({ "container_id": id, "filename": "later", "content": "x" });
    assert_eq!(said(&world, "create_file_in_container", file).await, "File later has been created in /workspace");
    assert_eq!(run(&world, &passing, "true").await, format!("Container {passing} not found"));
    let ended = said(&world, "exit_container", json!({ "container_id": id })).await;
    assert_eq!(ended, format!("Container {id} has been stopped and removed."));
    let again = said(&world, "exit_container", json!({ "container_id": id, "force": true })).await;
    assert_eq!(again, format!("Container {id} not found"));
}

/// What nobody asked to keep has a day to be found again, whatever the operator gives the others.
#[tokio::test]
async fn a_container_with_persist_may_be_unused_for_longer() {
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    let lifetime = Lifetime { idle: days(30), total: None };
    for (options, persist, idle, told) in [
        (&[][..], true, days(30), Some("ends when it was not used for 30 days.")),
        (&[], false, days(1), None),
        (&[ProfileOption::EndTemporary], false, days(1), None),
        (&[ProfileOption::EndContainers], true, days(1), None),
    ] {
        let world = world_with(options, lifetime).await;
        let arguments = json!({ "image": "host", "persist": persist });
        let created = said(&world, "create_container_environment", arguments).await;
        let made = world.service.list(&Owner::local()).await.unwrap().pop().unwrap();
        assert_eq!(made.lifetime.idle, idle, "{options:?}");
        assert_eq!(told.is_some_and(|told| created.contains(told)), told.is_some(), "{created}");
    }
}

#[tokio::test]
async fn a_container_that_does_not_stop_is_told_with_what_may_help() {
    let world = world(&[]).await;
    let id = container(&world, "host", true).await;
    // Whatever else tries to end it meanwhile must not have more luck.
    world.host.fail(Operation::Destroy, usize::MAX, ErrorKind::Unavailable);
    let told = said(&world, "exit_container", json!({ "container_id": id })).await;
    assert!(told.starts_with("Failed to stop container gracefully: "), "{told}");
    assert!(told.ends_with(". Try using force=True if needed."), "{told}");
    let told = said(&world, "exit_container", json!({ "container_id": id, "force": true })).await;
    assert!(told.starts_with("Error cleaning up container: "), "{told}");
    world.host.fail(Operation::Destroy, 0, ErrorKind::Unavailable);
}

/// It is there for good, and its id is the only way to be rid of it.
#[tokio::test]
async fn the_id_of_a_container_is_told_although_the_ways_to_it_are_not_known() {
    let world = world(&[]).await;
    world.host.fail(Operation::Reach, 1, ErrorKind::Unavailable);
    let created = said(&world, "create_container_environment", json!({ "image": "host", "persist": true })).await;
    assert_eq!(created.lines().count(), 3, "{created}");
    assert_eq!(run(&world, &id(&created), "echo here").await, "here\n");
}

#[tokio::test]
async fn nothing_outlives_a_server_that_ends_its_containers() {
    let world = world(&[ProfileOption::EndContainers]).await;
    let created = said(&world, "create_container_environment", json!({ "image": "host", "persist": true })).await;
    assert_eq!(created.lines().count(), 3, "{created}");
    let id = id(&created);
    let world = world.restarted().await;
    assert_eq!(run(&world, &id, "true").await, format!("Container {id} not found"));
}

#[tokio::test]
async fn a_container_without_persist_is_left_behind_too_and_for_a_week_at_most() {
    for (options, is_kept) in [
        (&[][..], true),
        (&[ProfileOption::EndTemporary], false),
        (&[ProfileOption::EndContainers], false),
        (&[ProfileOption::EndTemporary, ProfileOption::EndContainers], false),
    ] {
        let world = world(options).await;
        let created = said(&world, "create_container_environment", json!({ "image": "host", "persist": false })).await;
        assert_eq!(created.lines().count(), 3, "{created}");
        let id = id(&created);
        run(&world, &id, "sh -c 'echo one > note'").await;
        let made = world.service.list(&Owner::local()).await.unwrap().pop().unwrap();
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        assert_eq!(made.lifetime.total, is_kept.then_some(week), "{options:?}");
        assert_eq!(made.lifetime.idle, Lifetime::default().idle, "{options:?}");
        let world = world.restarted().await;
        let expected = if is_kept { "one\n".to_owned() } else { format!("Container {id} not found") };
        assert_eq!(run(&world, &id, "cat note").await, expected, "{options:?}");
    }
}

/// Who has long forgotten those of last week must not be told to end them first.
#[tokio::test]
async fn what_was_left_behind_is_in_nobodys_way() {
    let world = world(&[]).await;
    let quota = Quota { persistent: 2, ..Quota::default() };
    world.service.set_bounds(Bounds { usual: quota, of: BTreeMap::new() });
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(container(&world, "host", false).await);
    }
    let refused = said(&world, "create_container_environment", json!({ "image": "host", "persist": true })).await;
    assert!(refused.contains("you have 2 persistent sandboxes"), "one that was asked for is not made less: {refused}");
    let world = world.restarted().await;
    for (number, id) in all.iter().enumerate() {
        let expected = if number < 2 { "here\n".to_owned() } else { format!("Container {id} not found") };
        assert_eq!(run(&world, id, "echo here").await, expected);
    }
}

#[tokio::test]
async fn what_was_saved_is_an_image_with_the_work_directory_for_its_owner_alone() {
    let world = world(&[]).await;
    let first = container(&world, "host", false).await;
    run(&world, &first, "sh -c 'echo one > note'").await;
    for name in ["my-env", "my-env:v1", "localhost:5000/team/my-env:v1", "fake:1"] {
        let saved = said(&world, "save_container_state", json!({ "container_id": first, "name": name })).await;
        assert!(saved.starts_with(&format!("Environment saved as image: {name}\n\n")), "{saved}");
        let call = format!("create_container_environment(image=\"{name}\", persist=false)");
        assert!(saved.contains(&call), "it names no tool that there is: {saved}");
        let next = container(&world, name, false).await;
        assert_eq!(run(&world, &next, "cat note").await, "one\n", "{name}");
    }
    let tagged = container(&world, "my-env:latest", false).await;
    assert_eq!(run(&world, &tagged, "cat note").await, "one\n");
    let missing = said(&world, "create_container_environment", json!({ "image": "my-env:v2", "persist": false })).await;
    assert_eq!(missing, "Error: Image my-env:v2 not found. Please verify the image name.");
    let wrong = said(&world, "save_container_state", json!({ "container_id": first, "name": "My Env" })).await;
    assert!(wrong.starts_with("Error saving container: invalid reference format"), "{wrong}");
    let stranger = world.caller_as("stranger".parse().unwrap());
    let theirs = json!({ "image": "my-env", "persist": false });
    let refused = text(&world.call_as(stranger, "create_container_environment", theirs).await);
    assert_eq!(refused, "Error: Image my-env not found. Please verify the image name.");
}

#[tokio::test]
async fn to_others_a_container_is_not_there() {
    let world = world(&[]).await;
    let id = container(&world, "host", true).await;
    for (tool, arguments) in [
        ("create_file_in_container", json!({ "container_id": id, "filename": "a", "content": "" })),
        ("execute_command_in_container", json!({ "container_id": id, "command": "true" })),
        ("save_container_state", json!({ "container_id": id, "name": "theirs" })),
        ("export_dockerfile", json!({ "container_id": id })),
        ("exit_container", json!({ "container_id": id, "force": true })),
    ] {
        let stranger = world.caller_as("stranger".parse().unwrap());
        let output = world.call_as(stranger, tool, arguments).await;
        assert_eq!(text(&output), format!("Container {id} not found"), "{tool}");
    }
    assert_eq!(run(&world, &id, "echo here").await, "here\n");
}

#[tokio::test]
async fn a_call_that_is_given_up_takes_its_command_along() {
    let world = world(&[]).await;
    let id = container(&world, "host", false).await;
    let call = world.caller();
    let given_up = call.cancelled.clone();
    let arguments = json!({ "container_id": id, "command": "sleep 100" });
    let running = world.call_as(call, "execute_command_in_container", arguments);
    let (output, ()) = tokio::join!(running, async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        given_up.cancel();
    });
    assert!(text(&output).starts_with("Error executing command: the request was cancelled"), "{}", text(&output));
    for _ in 0..100 {
        if world.service.list(&Owner::local()).await.unwrap()[0].running == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the command goes on");
}

/// Knows one Dockerfile, with a context.
struct Known(Vec<u8>);

#[async_trait]
impl Exporter for Known {
    async fn export(&self, _: &Owner, request: ExportRequest, _: &Arc<dyn Progress>) -> Result<Export> {
        assert_eq!(request.base, None);
        let outcome = Outcome::Compared { same: 7, differences: Vec::new(), more: 0 };
        let report = Report { base: "own:1".to_owned(), base_digest: None, outcome, builds: 1, notes: Vec::new() };
        let context = Box::new(std::io::Cursor::new(self.0.clone()));
        Ok(Export { dockerfile: "FROM own:1\nWORKDIR /workspace\n".to_owned(), context, report })
    }
}

#[tokio::test]
async fn an_export_is_a_dockerfile_between_words_about_it() {
    let world = world(&[ProfileOption::EndTemporary]).await;
    for persist in [false, true] {
        let id = container(&world, "host", persist).await;
        let mut call = world.caller();
        call.exporter = Some(Arc::new(Known(b"the context".to_vec())));
        let told = text(&world.call_as(call, "export_dockerfile", json!({ "container_id": id })).await);
        let start = "Here's a Dockerfile to recreate this environment:\n\nFROM own:1\nWORKDIR /workspace\n\n\
                     To use this Dockerfile:\n1. ";
        assert!(told.starts_with(start), "{told}");
        assert!(told.contains("docker build -t your-image-name - < context.tar"), "{told}");
        assert!(told.contains("[built and compared: all 7 paths came out the same]"), "{told}");
        assert_eq!(told.contains("sandpen export sb-"), persist, "{told}");
        assert_eq!(run(&world, &id, "cat /tmp/dockerfile-context.tar").await, "the context");
    }
    let id = container(&world, "host", false).await;
    let without = said(&world, "export_dockerfile", json!({ "container_id": id })).await;
    assert!(
        without.starts_with("Error generating Dockerfile: ") && without.contains("save_container_state"),
        "{without}"
    );
}

#[tokio::test]
async fn a_context_that_no_answer_has_room_for_is_fetched_in_parts() {
    let world = world(&[]).await;
    for (bytes, parts) in [(1000, None), (3 << 20, Some("N from 0 to 5"))] {
        let id = container(&world, "host", false).await;
        let mut call = world.caller();
        call.exporter = Some(Arc::new(Known(vec![7; bytes])));
        let told = text(&world.call_as(call, "export_dockerfile", json!({ "container_id": id })).await);
        match parts {
            Some(parts) => {
                assert!(told.contains(parts) && told.contains("dd if=/tmp/dockerfile-context.tar bs="), "{told}");
            }
            None => assert!(told.contains("with base64 /tmp/dockerfile-context.tar, decoded"), "{told}"),
        }
    }
}

#[tokio::test]
async fn mistakes_are_flagged() {
    let world = world(&[]).await;
    for (tool, arguments, told) in [
        ("create_container_environment", json!({ "image": "host" }), "persist\n  Field required [type=missing"),
        (
            "exit_container",
            json!({ "container_id": 5 }),
            "container_id\n  Input should be a valid string [type=string_type",
        ),
        ("save_container_state", json!({}), "2 validation errors for save_container_stateArguments\ncontainer_id\n"),
    ] {
        let output = world.call(tool, arguments).await;
        assert!(output.is_error && output.structured.is_none(), "{output:?}");
        let said = text(&output);
        assert!(said.starts_with(&format!("Error executing tool {tool}: ")) && said.contains(told), "{said}");
    }
    let unknown = world.catalog.profile().unwrap().unknown_tool("create_container").unwrap();
    assert!(unknown.is_error);
    assert_eq!(text(&unknown), "Unknown tool: create_container");
}
