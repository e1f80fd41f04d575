use std::sync::Arc;
use std::time::Duration;

use sandbox::{Owner, Persistence};
use serde_json::{Value, json};
use tools::profile::Automata;
use tools::{Body, Call, Output, Policy, ProfileOption, ProfileOptions, Reason};

use crate::support::{World, text};

fn profile(options: &[ProfileOption]) -> Arc<Automata> {
    let mut chosen = ProfileOptions::default();
    options.iter().for_each(|option| chosen.add(*option));
    Arc::new(Automata::new(chosen))
}

async fn world(options: &[ProfileOption]) -> World {
    World::speaking_as(profile(options), Policy::default()).await
}

/// The one block of an answer, which is never flagged.
async fn said(world: &World, tool: &str, arguments: Value) -> String {
    let output = world.call(tool, arguments).await;
    assert!(!output.is_error && output.content.len() == 1, "{output:?}");
    text(&output)
}

async fn container(world: &World) -> String {
    let answer = said(world, "sandbox_initialize", json!({})).await;
    let id = answer.strip_prefix("container_id: ").unwrap().to_owned();
    assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    id
}

#[tokio::test]
async fn a_row_of_commands_is_a_transcript_until_one_fails() {
    let world = world(&[]).await;
    let id = container(&world).await;
    let commands = json!(["pwd", "cd /tmp", "pwd; echo warned >&2", "printf end", "exit 3", "echo never"]);
    let transcript = said(&world, "sandbox_exec", json!({ "container_id": id, "commands": commands })).await;
    assert_eq!(
        transcript,
        "$ pwd\n/app\n\n$ cd /tmp\n\n$ pwd; echo warned >&2\n/app\nError: warned\n\n$ printf end\nend\n\n$ exit 3\n\
         Command exited with code 3\n"
    );
    let one = said(&world, "sandbox_exec", json!({ "container_id": id, "commands": "echo one" })).await;
    assert_eq!(one, "$ echo one\none\n");
}

/// Each of them is bounded by itself, and there may be many.
#[tokio::test]
async fn of_a_transcript_without_end_the_newest_part_is_told() {
    let world = world(&[]).await;
    let id = container(&world).await;
    let mut commands = vec!["echo first"];
    commands.resize(8, "head -c 1000000 /dev/zero");
    commands.push("echo last");
    let transcript = said(&world, "sandbox_exec", json!({ "container_id": id, "commands": commands })).await;
    assert!(transcript.starts_with("[what is older is left out]\n") && transcript.ends_with("$ echo last\nlast\n"));
    assert!(transcript.len() < 5 << 20 && transcript.len() > 3 << 20, "{} bytes", transcript.len());
}

#[tokio::test]
async fn mistakes_are_told_in_ordinary_answers() {
    let world = world(&[]).await;
    let id = container(&world).await;
    for (tool, arguments, expected) in [
        ("sandbox_exec", json!({}), "container_id is required"),
        ("sandbox_exec", json!({ "container_id": 7, "commands": [] }), "container_id is required"),
        ("sandbox_exec", json!({ "container_id": id }), "commands is required"),
        ("sandbox_exec", json!({ "container_id": id, "commands": [] }), "at least one command is required"),
        ("sandbox_exec", json!({ "container_id": id, "commands": ["a", 1] }), "Each command must be a string"),
        (
            "sandbox_exec",
            json!({ "container_id": id, "commands": 1 }),
            "commands must be a string or an array of strings",
        ),
        ("sandbox_stop", json!({}), "Error: container_id is required"),
        ("write_file", json!({ "file_name": "x", "file_contents": "" }), "container_id is required"),
        ("write_file_sandbox", json!({ "container_id": id, "file_contents": "" }), "file_name is required"),
        ("write_file_sandbox", json!({ "container_id": id, "file_name": "x" }), "file_contents is required"),
        ("copy_file", json!({ "container_id": id }), "local_src_file is required"),
        ("copy_project", json!({ "container_id": id }), "local_src_dir is required"),
        ("copy_file_from_sandbox", json!({ "container_id": id }), "container_src_path is required"),
    ] {
        assert_eq!(said(&world, tool, arguments).await, expected, "{tool}");
    }
    let unknown = world.catalog.profile().unwrap().unknown_tool("run_code").unwrap_err();
    assert_eq!((unknown.reason, unknown.message.as_str()), (Reason::Parameters, "Tool not found: run_code"));
}

#[tokio::test]
async fn a_name_is_a_name_whatever_a_shell_would_make_of_it() {
    let world = world(&[]).await;
    let id = container(&world).await;
    for (name, directory, path) in [
        ("a b.txt", None, "/app/a b.txt"),
        ("$(touch x);'\".txt", None, "/app/$(touch x);'\".txt"),
        ("deep/er/file", Some("src"), "/app/src/deep/er/file"),
        ("/file", Some("/tmp/other"), "/tmp/other/file"),
    ] {
        let mut arguments = json!({ "container_id": id, "file_name": name, "file_contents": "héllo" });
        if let Some(directory) = directory {
            arguments["dest_dir"] = directory.into();
        }
        let answer = said(&world, "write_file_sandbox", arguments).await;
        assert_eq!(answer, format!("Successfully wrote file {path} to container {id}"));
        let files = sandbox_files(&world).await;
        assert_eq!(files.stat(&path.parse().unwrap()).await.unwrap().bytes, 6, "{path}");
    }
    let answer = said(&world, "write_file", json!({ "container_id": id, "file_name": "e", "file_contents": "" })).await;
    assert_eq!(answer, format!("Successfully wrote file /app/e to container {id}"));
}

async fn sandbox_files(world: &World) -> Box<dyn sandbox::Files> {
    let owner = Owner::local();
    let id = world.service.list(&owner).await.unwrap()[0].id.clone();
    world.service.files(&owner, &id).unwrap()
}

#[tokio::test]
async fn containers_stay_unless_the_operator_wants_otherwise() {
    let kept = world(&[]).await;
    container(&kept).await;
    assert_eq!(kept.service.list(&Owner::local()).await.unwrap()[0].persistence, Persistence::Persistent);
    let passing = world(&[ProfileOption::EndContainers]).await;
    container(&passing).await;
    assert_eq!(passing.service.list(&Owner::local()).await.unwrap()[0].persistence, Persistence::Ephemeral);
}

#[tokio::test]
async fn a_stopped_container_is_gone() {
    let world = world(&[]).await;
    let id = container(&world).await;
    let stopped = said(&world, "sandbox_stop", json!({ "container_id": id })).await;
    assert_eq!(stopped, format!("Successfully stopped and removed container: {id}"));
    assert!(world.service.list(&Owner::local()).await.unwrap().is_empty());
    let again = said(&world, "sandbox_stop", json!({ "container_id": id })).await;
    assert!(again.starts_with("Error: failed to stop container: there is no container"), "{again}");
}

#[tokio::test]
async fn failures_are_flagged_where_that_was_chosen() {
    let world = world(&[ProfileOption::FlagFailures]).await;
    let flagged = async |tool: &str, arguments: Value| world.call(tool, arguments).await.is_error;
    let id = text(&world.call("sandbox_initialize", json!({})).await).replace("container_id: ", "");
    assert!(!flagged("sandbox_exec", json!({ "container_id": id, "commands": "true" })).await);
    assert!(flagged("sandbox_exec", json!({ "container_id": id, "commands": "false" })).await);
    assert!(flagged("sandbox_exec", json!({ "container_id": id })).await);
    assert!(flagged("sandbox_stop", json!({ "container_id": "0123456789ab" })).await);
}

/// To somebody else a container does not exist, although its id is known.
#[tokio::test]
async fn an_id_is_good_for_its_owner_alone() {
    let world = world(&[]).await;
    let id = container(&world).await;
    let stranger = || world.caller_as("stranger".parse().unwrap());
    for (tool, arguments, beginning) in [
        ("sandbox_exec", json!({ "container_id": id, "commands": "true" }), "Error executing command: "),
        (
            "write_file_sandbox",
            json!({ "container_id": id, "file_name": "x", "file_contents": "x" }),
            "Error creating directory: ",
        ),
        ("sandbox_stop", json!({ "container_id": id }), "Error: failed to stop container: "),
    ] {
        let answer = text(&world.call_as(stranger(), tool, arguments).await);
        assert_eq!(answer, format!("{beginning}there is no container \"{id}\" of yours (not_found)"), "{tool}");
    }
    let read = world.catalog.profile().unwrap().read(&stranger(), &format!("containers://{id}/logs")).await;
    assert_eq!(read.unwrap_err().reason, Reason::Internal);
}

/// The rest of these is tried where there is a host.
#[tokio::test]
async fn without_an_opened_directory_nothing_is_copied_and_the_flag_is_named() {
    let world = world(&[]).await;
    let id = container(&world).await;
    for (tool, arguments, beginning) in [
        ("copy_file", json!({ "container_id": id, "local_src_file": "/etc/passwd" }), "Error accessing source file: "),
        ("copy_project", json!({ "container_id": id, "local_src_dir": "/etc" }), "Error accessing source directory: "),
        (
            "copy_file_from_sandbox",
            json!({ "container_id": id, "container_src_path": "x" }),
            "Error copying file from container: ",
        ),
    ] {
        let answer = said(&world, tool, arguments).await;
        assert!(answer.starts_with(beginning) && answer.contains("--allow-path"), "{answer}");
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_what_it_runs() {
    let world = world(&[]).await;
    let id = container(&world).await;
    let call = world.caller();
    let cancelled = call.cancelled.clone();
    let running = world.call_as(call, "sandbox_exec", json!({ "container_id": id, "commands": ["sleep 100", "true"] }));
    let cancelling = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancelled.cancel();
    };
    let (output, ()) = tokio::join!(running, cancelling);
    assert!(text(&output).starts_with("Error executing command: the request was cancelled"), "{output:?}");
}

async fn logs(world: &World, call: &Call, id: &str) -> Result<String, tools::Rejection> {
    let contents = world.catalog.profile().unwrap().read(call, &format!("containers://{id}/logs")).await?;
    assert_eq!(contents.mime_type, "text/plain");
    match contents.body {
        Body::Text(text) => Ok(text),
        Body::Bytes(_) => panic!("logs are text"),
    }
}

#[tokio::test]
async fn logs_tell_what_was_run_and_what_it_wrote() {
    let world = world(&[]).await;
    let id = container(&world).await;
    assert_eq!(logs(&world, &world.caller(), &id).await.unwrap(), "");
    let exec = async |commands: Value| -> Output {
        world.call("sandbox_exec", json!({ "container_id": id, "commands": commands })).await
    };
    exec(json!(["echo one", "echo one"])).await;
    exec(json!(["echo two\necho three >&2", "exit 4"])).await;
    assert_eq!(
        logs(&world, &world.caller(), &id).await.unwrap(),
        "$ echo one\none\n\n$ echo one\none\n\n$ echo two\necho three >&2\ntwo\nError: three\n\n$ exit 4\nCommand exited \
         with code 4\n"
    );
}

#[tokio::test]
async fn an_address_that_is_none_is_refused() {
    let world = world(&[]).await;
    container(&world).await;
    let profile = world.catalog.profile().unwrap();
    for uri in ["containers:///logs", "containers://x/y/logs", "containers://x", "file:///etc/passwd", ""] {
        let refused = profile.read(&world.caller(), uri).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Parameters, "{uri}");
    }
    assert_eq!(logs(&world, &world.caller(), &"0".repeat(64)).await.unwrap_err().reason, Reason::Internal);
}
