use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tools::{Call, Content};

use crate::support::{Heard, World, text};

#[tokio::test]
async fn a_command_that_fails_is_an_answer() {
    let world = World::new().await;
    let run = world.value("run_command", json!({ "command": "echo out; echo err >&2; exit 3" })).await;
    assert_eq!(run["status"], "exited");
    assert_eq!(run["exit_code"], 3);
    assert_eq!((&run["stdout"], &run["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(run["sandbox_kept"], false);
    assert!(run.get("signal").is_none() && run.get("job_id").is_none(), "{run}");
    assert!(world.service.list(&world.caller().owner).await.unwrap().is_empty(), "a fresh sandbox stayed");
}

#[tokio::test]
async fn what_a_person_reads_says_how_it_ended() {
    let world = World::new().await;
    let output = world.call("run_command", json!({ "command": "echo out; echo err >&2; exit 3" })).await;
    // The fake has no walls, and no result may keep that quiet.
    let (said, walls) =
        text(&output).split_once("\n[this sandbox stands without ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(said, "out\n[stderr]\nerr\n[exit code 3]");
    assert!(walls.contains("seccomp"), "{walls}");
    let output = world.call("run_command", json!({ "command": "true" })).await;
    assert!(text(&output).starts_with("[no output, exit code 0]"), "{}", text(&output));
}

#[tokio::test]
async fn code_gets_its_files_its_input_and_its_arguments() {
    let world = World::new().await;
    let run = world
        .value(
            "run_code",
            json!({
                "language": "bash",
                "code": "cat data/in.txt; cat; echo $1 $NAME",
                "args": ["first"],
                "files": [{ "path": "data/in.txt", "content": "ZnJvbSBhIGZpbGUK", "encoding": "base64" }],
                "stdin": "from stdin\n",
                "env": { "NAME": "value" },
            }),
        )
        .await;
    assert_eq!(run["stdout"], "from a file\nfrom stdin\nfirst value\n", "{run}");
}

#[tokio::test]
async fn time_that_runs_out_says_what_to_do() {
    let world = World::new().await;
    let output = world.call("run_command", json!({ "command": "sleep 100", "timeout_s": 0.2 })).await;
    assert!(!output.is_error);
    assert_eq!(output.structured.as_ref().unwrap()["status"], "timed_out");
    assert!(text(&output).contains("raise timeout_s"), "{}", text(&output));
}

#[tokio::test]
async fn a_run_that_outlasts_the_wait_becomes_a_job() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let run =
        world.value("run_command", json!({ "sandbox_id": id, "command": "echo one; sleep 100", "wait_s": 0.3 })).await;
    assert_eq!(run["status"], "running");
    let job = run["job_id"].as_str().unwrap();
    let seen = world.value("get_job", json!({ "job_id": job })).await;
    assert_eq!((&seen["status"], &seen["stdout"]), (&json!("running"), &json!("one\n")));
    let stopped = world.value("stop_job", json!({ "job_id": job })).await;
    assert_eq!((&stopped["status"], &stopped["stdout"]), (&json!("cancelled"), &json!("one\n")));
    assert_eq!(world.value("stop_job", json!({ "job_id": job })).await["status"], "cancelled");
}

#[tokio::test]
async fn a_job_in_the_background_is_answered_at_once_and_waited_for_later() {
    let world = World::new().await;
    let run = world.value("run_command", json!({ "command": "sleep 0.2; echo done", "background": true })).await;
    assert_eq!(run["status"], "running");
    let ended = world.value("get_job", json!({ "job_id": run["job_id"], "wait_s": 20 })).await;
    assert_eq!((&ended["status"], &ended["stdout"]), (&json!("exited"), &json!("done\n")));
}

#[tokio::test]
async fn the_same_key_runs_once() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let arguments = json!({ "sandbox_id": id, "command": "echo x >> log; cat log", "idempotency_key": "k" });
    let (first, second) =
        tokio::join!(world.value("run_command", arguments.clone()), world.value("run_command", arguments.clone()));
    assert_eq!((&first["stdout"], &second["stdout"]), (&json!("x\n"), &json!("x\n")));
    assert_eq!(world.value("run_command", arguments).await["stdout"], "x\n");
    let other = json!({ "sandbox_id": id, "command": "echo other", "idempotency_key": "k" });
    assert!(world.refusal("run_command", other).await.contains("already_exists"));
}

#[tokio::test]
async fn a_cancelled_call_takes_its_run_along() {
    let world = World::new().await;
    let caller = world.caller();
    let id = world.sandbox().await;
    let cancelled = caller.cancelled.clone();
    let calling = world.call_as(caller, "run_command", json!({ "sandbox_id": id, "command": "sleep 100" }));
    let (output, ()) = tokio::join!(calling, async {
        until(|| world.service.jobs(&world.caller().owner).len() == 1).await;
        cancelled.cancel();
    });
    assert!(output.is_error);
    let job = world.service.jobs(&world.caller().owner).remove(0);
    tokio::time::timeout(Duration::from_secs(10), job.wait()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_that_is_dropped_takes_its_run_along() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let calling = world.call("run_command", json!({ "sandbox_id": id, "command": "sleep 100" }));
    assert!(tokio::time::timeout(Duration::from_millis(200), calling).await.is_err());
    let job = world.service.jobs(&world.caller().owner).remove(0);
    tokio::time::timeout(Duration::from_secs(10), job.wait()).await.unwrap().unwrap();
}

/// A client that gave up by its own clock, cancelled, and asks again gets the run that it started.
#[tokio::test]
async fn a_cancelled_call_with_a_key_can_be_sent_again() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let arguments =
        json!({ "sandbox_id": id, "command": "echo x >> log; sleep 0.5; cat log", "idempotency_key": "again" });
    let caller = world.caller();
    let cancelled = caller.cancelled.clone();
    let (output, ()) = tokio::join!(world.call_as(caller, "run_command", arguments.clone()), async {
        until(|| world.service.jobs(&world.caller().owner).len() == 1).await;
        cancelled.cancel();
    });
    assert!(output.is_error);
    let again = world.value("run_command", arguments).await;
    assert_eq!((&again["status"], &again["stdout"]), (&json!("exited"), &json!("x\n")));
}

/// Its id was given away: a second call that waits for it and gives up does not take it along.
#[tokio::test(start_paused = true)]
async fn a_job_that_was_promised_goes_on() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let arguments = |background: bool| json!({ "sandbox_id": id, "command": "sleep 1000", "timeout_s": 1500, "idempotency_key": "promised", "background": background });
    let job = world.value("run_command", arguments(true)).await["job_id"].as_str().unwrap().to_owned();
    let caller = world.caller();
    let cancelled = caller.cancelled.clone();
    let (output, ()) = tokio::join!(world.call_as(caller, "run_command", arguments(false)), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancelled.cancel();
    });
    assert!(output.is_error);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.value("get_job", json!({ "job_id": job })).await["status"], "running");
    world.value("stop_job", json!({ "job_id": job })).await;
}

#[tokio::test]
async fn a_sandbox_lives_no_longer_than_the_operator_says() {
    let world = World::new().await;
    let mut policy = tools::Policy::default();
    policy.lifetime.total = Some(Duration::from_secs(60));
    let call = Call { policy: Arc::new(policy), ..world.caller() };
    let output = world.call_as(call.clone(), "create_sandbox", json!({ "max_lifetime_s": 61 })).await;
    assert!(output.is_error && text(&output).contains("at most 60 max_lifetime_s"), "{}", text(&output));
    assert!(!world.call_as(call, "create_sandbox", json!({ "max_lifetime_s": 60 })).await.is_error);
}

#[tokio::test]
async fn lines_are_told_while_the_run_goes_on() {
    let world = World::new().await;
    let heard = Arc::new(Heard::default());
    let call = Call { progress: heard.clone(), ..world.caller() };
    let run =
        world.call_as(call, "run_command", json!({ "command": "echo one; sleep 0.3; echo two; sleep 0.3" })).await;
    assert!(!run.is_error);
    assert_eq!(*heard.0.lock().unwrap(), ["one", "two"]);
}

#[tokio::test]
async fn images_are_shown_and_other_files_are_linked() {
    let world = World::new().await;
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgZGIGAAAOAAfXb+R4AAAAAElFTkSuQmCC";
    let output = world
        .call(
            "run_command",
            json!({
                "command": "cat in.png > plot.png; echo a,b > data.csv",
                "files": [{ "path": "in.png", "content": png, "encoding": "base64" }],
            }),
        )
        .await;
    let images: Vec<_> = output.content.iter().filter(|content| matches!(content, Content::Image { .. })).collect();
    assert!(matches!(images.as_slice(), [Content::Image { mime_type: "image/png", .. }]), "{:?}", output.content);
    let links: Vec<_> = output
        .content
        .iter()
        .filter_map(|content| match content {
            Content::Link(link) => Some((link.name.as_str(), link.mime_type, link.uri.clone())),
            Content::Text(_) | Content::Image { .. } | Content::Embedded(_) => None,
        })
        .collect();
    assert!(matches!(links.as_slice(), [("data.csv", "text/csv", _)]), "{links:?}");
    let paths: Vec<_> = output.structured.as_ref().unwrap()["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|artifact| artifact["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(paths, ["/workspace/data.csv", "/workspace/plot.png"]);
    let id = output.structured.as_ref().unwrap()["sandbox_id"].clone();
    let again = world.value("read_file", json!({ "sandbox_id": id, "path": "data.csv" })).await;
    assert_eq!(again["content"], "a,b\n");
    let read = tools::resources::read(&world.caller(), &links[0].2).await.unwrap();
    assert_eq!(read.body, tools::resources::Body::Text("a,b\n".to_owned()), "the sandbox is gone, its artifact is not");
}

#[tokio::test]
async fn a_file_that_is_too_large_to_keep_is_named_and_not_linked() {
    let world = World::new().await;
    let large = "x".repeat((8 << 20) + 1);
    let output = world.call("run_command", json!({ "command": "cat > large; echo a > small", "stdin": large })).await;
    let artifacts = output.structured.as_ref().unwrap()["artifacts"].as_array().unwrap().clone();
    let linked: Vec<_> = artifacts.iter().map(|artifact| artifact.get("uri").is_some()).collect();
    assert_eq!(linked, [false, true], "{artifacts:?}");
    assert!(text(&output).contains("too large to keep: /workspace/large"), "{}", text(&output));
    let links = output.content.iter().filter(|content| matches!(content, Content::Link(_))).count();
    assert_eq!(links, 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_the_background_has_time() {
    let world = World::new().await;
    let run = world.value("run_command", json!({ "command": "sleep 1000; echo done", "background": true })).await;
    let ended = world.value("get_job", json!({ "job_id": run["job_id"], "wait_s": 1200 })).await;
    assert_eq!((&ended["status"], &ended["stdout"]), (&json!("exited"), &json!("done\n")));
}

#[tokio::test]
async fn long_output_keeps_both_ends_and_a_way_to_the_rest() {
    let world = World::new().await;
    let id = world.sandbox().await;
    let lines: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
    let output = world.call("run_command", json!({ "sandbox_id": id, "command": "cat", "stdin": lines })).await;
    let value = output.structured.as_ref().unwrap();
    let stdout = value["stdout"].as_str().unwrap();
    assert_eq!(value["truncated"], true);
    assert!(stdout.starts_with("line 0\n") && stdout.ends_with("line 19999\n") && stdout.len() < 26_000);
    let link = output.content.iter().find_map(|content| match content {
        Content::Link(link) => Some(link),
        Content::Text(_) | Content::Image { .. } | Content::Embedded(_) => None,
    });
    let link = link.unwrap();
    assert_eq!(link.bytes, lines.len() as u64);
    let whole = tools::resources::read(&world.caller(), &link.uri).await.unwrap();
    assert_eq!(whole.body, tools::resources::Body::Text(lines));
}

async fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not come to be");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
