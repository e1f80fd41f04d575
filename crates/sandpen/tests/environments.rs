//! Sandboxes that are saved, branched, taken back and written down, by the command line.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{World, names, sandboxes_work};

/// An image with a few programs of the host.
fn import(world: &World) {
    for program in ["sh", "cat", "mkdir", "ln", "rm", "date", "env", "touch"] {
        let program = Path::new("/bin").join(program);
        let listed = Command::new("ldd").arg(&program).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let libraries = listed.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
        for file in libraries.chain([program.as_path()]) {
            let copy = world.work().join("tree").join(file.strip_prefix("/").unwrap());
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(file, copy).unwrap();
        }
    }
    world.write("tree/etc/motd", "of the image");
    let tar = Command::new("tar").args(["-C", "tree", "-cf", "root.tar", "."]).current_dir(world.work()).status();
    assert!(tar.unwrap().success());
    world.run(&["image", "import", "root.tar", "tool:1"]).succeeds();
}

fn create(world: &World, arguments: &[&str]) {
    world.run(&[&["create", "--name", "lab"], arguments].concat()).succeeds();
}

fn shell(world: &World, sandbox: &str, line: &str) -> String {
    let done = world.run(&["exec", sandbox, "--", "sh", "-c", line]);
    assert_eq!(done.code, Some(0), "{line}: {}", done.stderr);
    done.stdout
}

trait Succeeds {
    fn succeeds(self) -> String;
}

impl Succeeds for support::Done {
    #[track_caller]
    fn succeeds(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

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

#[test]
fn an_export_is_built_and_compared() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    import(&world);
    create(&world, &["--image", "tool:1", "-e", "WORD=two words"]);
    world.write("data.txt", "hello\n");
    world.run(&["cp", "data.txt", "lab:"]).succeeds();
    shell(&world, "lab", "cat data.txt data.txt > twice; mkdir d; ln -s ../twice d/link");
    shell(&world, "lab", "cat twice");
    let done = world.run(&["export", "lab", "out", "--json"]);
    let report = done.json();
    let text = world.read("out/Dockerfile");
    assert!(text.starts_with("FROM tool:1\n") && text.contains("ENV WORD=\"two words\"\n"), "{text}");
    assert!(text.contains("\nRUN cat data.txt data.txt > twice; mkdir d; ln -s ../twice d/link\n"), "{text}");
    assert!(!text.contains("RUN cat twice"), "what changed nothing is done again: {text}");
    assert_eq!(world.read("out/files/1/workspace/data.txt"), "hello\n", "{text}");
    if !is_root() {
        assert_eq!((done.code, &report["result"]), (Some(3), &Value::from("not_built")), "{report}");
        return;
    }
    assert_eq!((done.code, &report["result"]), (Some(0), &Value::from("reproduced")), "{report}\n{text}");
    assert_eq!(names(&world.state_dir().join("exports")), [] as [&str; 0], "something was left");
    world.run(&["image", "ls", "-q"]).expect(0, "tool:1\n");
    let pruned = world.run(&["image", "prune", "--json"]).json();
    assert_eq!(pruned["removed_steps"], 0, "a later build would take what the sandbox made");

    let again = world.run(&["export", "lab", "out"]);
    assert_eq!(again.code, Some(1));
    again.says("out is there already");
}

#[test]
fn what_does_not_come_out_the_same_is_told() {
    if !sandboxes_work() || !is_root() {
        return;
    }
    let world = World::new();
    import(&world);
    create(&world, &["--image", "tool:1"]);
    shell(&world, "lab", "echo always > always; date +%s%N > moment");
    let done = world.run(&["export", "lab", "out", "--json"]);
    let report = done.json();
    assert_eq!((done.code, &report["result"]), (Some(3), &Value::from("differs")), "{report}");
    assert_eq!(report["differences"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(
        (&report["differences"][0]["path"], &report["differences"][0]["what"]),
        (&"/workspace/moment".into(), &"contents".into())
    );
    assert!(world.read("out/Dockerfile").contains("\n#   /workspace/moment has other contents\n"));
}

/// Names and values that sandboxed code chooses are data, in the Dockerfile and in the context.
#[test]
fn hostile_names_come_out_as_they_are_and_do_nothing() {
    if !sandboxes_work() || !is_root() {
        return;
    }
    let world = World::new();
    import(&world);
    create(&world, &["--image", "tool:1", "-e", "LINES=a\nRUN touch /evil"]);
    let odd = [&b"a\nRUN touch evil"[..], b"\xff\xfe", b"$(touch evil)", b"-rf", b" padded ", b"quote'\"\\"];
    let directory = world.work().join("odd");
    fs::create_dir(&directory).unwrap();
    for name in odd {
        fs::write(directory.join(OsStr::from_bytes(name)), "x").unwrap();
    }
    world.run(&["cp", "odd", "lab:"]).succeeds();
    let done = world.run(&["export", "lab", "out", "--json"]);
    let report = done.json();
    let text = world.read("out/Dockerfile");
    assert_eq!((done.code, &report["result"]), (Some(0), &Value::from("reproduced")), "{report}\n{text}");
    assert!(!text.lines().any(|line| line.starts_with("RUN")), "{text}");
    assert!(report["notes"].to_string().contains("LINES has several lines"), "{report}");
}

#[test]
fn a_sandbox_of_the_host_needs_a_base() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    create(&world, &[]);
    shell(&world, "lab", "echo one > note");
    let done = world.run(&["export", "lab", "out"]);
    assert_eq!(done.code, Some(1));
    done.says("this machine's own programs").says("for example ");
    assert!(!world.work().join("out").exists());
    let done = world.run(&["export", "lab", "out", "--base", "debian:12", "--no-verify", "--json"]);
    assert_eq!((done.code, &done.json()["result"]), (Some(0), &Value::from("not_checked")), "{}", done.stderr);
    let text = world.read("out/Dockerfile");
    assert!(text.starts_with("FROM debian:12\n") && text.contains("USER 1000:1000"), "{text}");
}
