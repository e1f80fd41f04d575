//! Sandboxes that are saved, branched and taken back, by the command line.

mod support;

use serde_json::Value;
use support::exported::{create, shell};
use support::{World, is_embedded, sandboxes_work};

#[test]
fn a_saved_sandbox_is_an_image_like_others() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    create(&world, &[]);
    shell(&world, "lab", "echo one > note; echo two > ~/own; echo three > /tmp/passing");
    let saved = world.run(&["save", "lab", "ready", "--json"]).json();
    assert_eq!((&saved["image"], &saved["left_out"]), (&Value::from("saved:ready"), &Value::from(0)));
    shell(&world, "lab", "echo changed > note");
    let files = "cat note ~/own /tmp/passing";
    world.run(&["run", "bash", files, "--image", "saved:ready"]).expect(0, "one\ntwo\nthree\n");
    world.run(&["stop", "lab"]).succeeds();
    world.run(&["run", "bash", files, "--image", "saved:ready"]).expect(0, "one\ntwo\nthree\n");

    if !is_embedded("image ls, tag, export and rm of what was saved; a daemon's own client has images there") {
        return;
    }
    world.run(&["image", "ls", "-q"]).expect(0, "saved:ready\n");
    world.run(&["image", "tag", "saved:ready", "team/ready:1"]).succeeds();
    world.run(&["image", "export", "saved:ready", "ready.tar"]).succeeds();
    assert!(world.work().join("ready.tar").is_file());
    world.run(&["image", "rm", "saved:ready"]).succeeds();
    world.run(&["image", "ls", "-q"]).expect(0, "team/ready:1\n");
    let gone = world.run(&["run", "bash", "true", "--image", "saved:ready"]);
    assert_eq!(gone.code, Some(125), "{}", gone.stderr);
    world.run(&["image", "rm", "saved:ready"]).says("there is no image saved:ready here");
    for name in ["x.invalid/y", "saved:y", "saved:Y_", "host", "dir:y"] {
        world.run(&["image", "tag", "team/ready:1", name]).says("not a name that an image can be given");
    }
}

#[test]
fn a_name_that_is_none_and_a_sandbox_that_is_not_there_are_told() {
    let world = World::new();
    for (name, part) in [("No Name", "is not a name for a saved image"), ("ready", "there is no sandbox \"nobody\"")] {
        let done = world.run(&["save", "nobody", name]);
        assert_eq!(done.code, Some(1), "{name}");
        done.says(part);
    }
    for command in
        [&["fork", "nobody"][..], &["diff", "nobody"], &["restore", "nobody", "1"], &["export", "nobody", "x"]]
    {
        let done = world.run(command);
        assert_eq!(done.code, Some(1), "{command:?}");
        done.says("there is no sandbox \"nobody\"");
    }
}

#[test]
fn a_fork_has_the_files_and_goes_its_own_way() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    create(&world, &["--memory", "300M", "-e", "WORD=kept"]);
    shell(&world, "lab", "echo one > note");
    let forked = world.run(&["fork", "lab", "--name", "branch", "--json"]).json();
    assert_eq!((&forked["name"], &forked["memory_limit_bytes"]), (&Value::from("branch"), &Value::from(300 << 20)));
    assert_eq!(shell(&world, "branch", "echo two >> note; cat note; echo $WORD"), "one\ntwo\nkept\n");
    assert_eq!(shell(&world, "lab", "cat note"), "one\n");
    let id = world.run(&["fork", "branch"]).succeeds();
    world.run(&["stop", "branch"]).succeeds();
    assert_eq!(shell(&world, id.trim(), "cat note"), "one\ntwo\n", "it ended with what it was forked from");
}

#[test]
fn a_command_is_taken_back() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    create(&world, &[]);
    shell(&world, "lab", "echo one > changed; echo one > removed");
    let done = world.run(&[
        "exec",
        "--checkpoint",
        "--json",
        "lab",
        "--",
        "sh",
        "-c",
        "echo two > changed; rm removed; touch new",
    ]);
    let number = done.json()["checkpoint"].to_string();
    let changes = world.run(&["diff", "lab", "--since", &number]).succeeds();
    assert_eq!(changes, "M /workspace/changed (4 B)\nA /workspace/new (0 B)\nD /workspace/removed\n");
    let listed = world.run(&["diff", "lab", "--since", &number, "--json"]).json();
    assert_eq!(listed["changes"][2]["change"], "removed");
    world.run(&["restore", "lab", &number]).expect(0, "");
    assert_eq!(shell(&world, "lab", "cat changed removed; ls"), "one\none\nchanged\nremoved\n");
    world.run(&["diff", "lab", "--since", &number]).expect(0, "");
    let gone = world.run(&["restore", "lab", "77"]);
    assert_eq!(gone.code, Some(1), "{}", gone.stderr);

    world.run(&["exec", "--detach", "lab", "--", "sleep", "100"]).succeeds();
    let busy = world.run(&["checkpoint", "lab", "--json"]);
    assert_eq!((busy.code, &busy.json()["error"]["kind"]), (Some(1), &Value::from("wrong_state")));
}

/// What a command leaves running is nobody's job, so it has to be named.
#[test]
fn what_is_in_the_way_of_a_checkpoint_is_named_and_can_be_ended() {
    if !is_embedded("programs in the way of a checkpoint are told by name") || !sandboxes_work() {
        return;
    }
    let world = World::new();
    create(&world, &[]);
    shell(&world, "lab", "sleep 1001 >/dev/null 2>&1 & exec setsid sleep 1002 >/dev/null 2>&1 &");
    let busy = world.run(&["checkpoint", "lab", "--json"]).json()["error"].clone();
    let (message, hint) = (busy["message"].as_str().unwrap(), busy["hint"].as_str().unwrap());
    assert!(message.contains(" sleep 1001") && message.contains(" sleep 1002"), "{busy}");
    assert!(!message.contains("init"), "what is ours is told: {busy}");
    let (_, remedy) = hint.rsplit_once(": ").unwrap();
    shell(&world, "lab", remedy);
    world.run(&["checkpoint", "lab"]).expect(0, "1\n");
}
