//! Sandboxes written down as Dockerfiles, which are built again and compared, by the check and by themselves.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};
use support::exported::{
    builds_the_same, builds_work, checks_work, commands_are_done_again, create, differences, export, shell, tool,
};
use support::{World, is_embedded, names, sandboxes_work};

#[test]
fn an_export_is_built_and_compared() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let image = tool(&world).import("tool:1");
    create(&world, &["--image", &image, "-e", "WORD=two words"]);
    world.write("data.txt", "hello\n");
    world.run(&["cp", "data.txt", "lab:"]).succeeds();
    shell(&world, "lab", "cat data.txt data.txt > twice; mkdir d; ln -s ../twice d/link");
    shell(&world, "lab", "cat twice");
    let done = world.run(&["export", "lab", "out", "--json"]);
    let report = done.json();
    let text = world.read("out/Dockerfile");
    assert!(text.starts_with(&format!("FROM {image}\n")), "{text}");
    assert!(text.contains("ENV WORD=\"two words\"\n"), "{text}");
    assert!(!text.contains("RUN cat twice"), "what changed nothing is done again: {text}");
    assert_eq!(world.read("out/files/1/workspace/data.txt"), "hello\n", "{text}");
    let is_embedded = commands_are_done_again();
    if is_embedded {
        assert!(text.contains("\nRUN cat data.txt data.txt > twice; mkdir d; ln -s ../twice d/link\n"), "{text}");
    }
    if is_embedded && !engine_native::can_build() {
        assert_eq!((done.code, &report["result"]), (Some(3), &Value::from("not_built")), "{report}");
        return;
    }
    assert_eq!((done.code, &report["result"]), (Some(0), &Value::from("reproduced")), "{report}\n{text}");
    assert_eq!(names(&world.state_dir().join("exports")), [] as [&str; 0], "something was left");
    if is_embedded {
        world.run(&["image", "ls", "-q"]).expect(0, "tool:1\n");
        let pruned = world.run(&["image", "prune", "--json"]).json();
        assert_eq!(pruned["removed_steps"], 0, "a later build would take what the sandbox made");
    }

    let again = world.run(&["export", "lab", "out"]);
    assert_eq!(again.code, Some(1));
    again.says("out is there already");
}

#[test]
fn a_file_that_several_commands_added_to_is_made_by_all_of_them() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    tool(&world).import("tool:1");
    create(&world, &["--image", "tool:1"]);
    shell(&world, "lab", "echo one >> log");
    shell(&world, "lab", "cat /etc/motd");
    shell(&world, "lab", "echo two >> log");
    let (report, text) = export(&world, "lab");
    assert!(text.contains("\nRUN echo one >> log\n") && text.contains("\nRUN echo two >> log\n"), "{text}");
    assert_eq!(report["builds"], 2, "{report}");
    assert!(report["notes"][0].as_str().unwrap().contains("(/workspace/log has other contents)"), "{report}");
    builds_the_same(&world, "lab", &[]);
}

/// Nothing of what it did is left, and it is needed all the same.
#[test]
fn a_command_that_only_took_something_away_is_done_again_when_it_is_missed() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    tool(&world).import("tool:1");
    create(&world, &["--image", "tool:1"]);
    shell(&world, "lab", "echo one > kept; echo two > scratch");
    shell(&world, "lab", "rm scratch");
    let (report, text) = export(&world, "lab");
    assert!(text.contains("\nRUN rm scratch\n"), "{text}");
    assert_eq!(report["builds"], 2, "{report}");
    builds_the_same(&world, "lab", &[]);
}

#[test]
fn what_is_not_the_same_each_time_is_copied_after_the_command() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    tool(&world).import("tool:1");
    create(&world, &["--image", "tool:1"]);
    shell(&world, "lab", "echo always > always; mkdir d; date +%s%N > d/moment; chmod 600 d/moment");
    let (report, text) = export(&world, "lab");
    let (run, copy) = (text.find("\nRUN echo always").unwrap(), text.rfind("\nCOPY ").unwrap());
    assert!(run < copy, "{text}");
    assert_eq!(report["builds"], 2, "{report}");
    let note = "commands do not make these the same each time, so they are put right at the end: /workspace/d/moment";
    assert_eq!(report["notes"], json!([note]));
    assert!(text.ends_with(&format!("# {note}\n")), "{text}");
    let from = text[copy..].split_whitespace().nth(2).unwrap();
    assert_eq!(names(&world.work().join("out").join(from)), ["d"], "what always comes out the same is not copied");
    builds_the_same(&world, "lab", &[]);
}

#[test]
fn names_that_are_never_the_same_leave_copies_alone() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    tool(&world).import("tool:1");
    create(&world, &["--image", "tool:1"]);
    shell(&world, "lab", "echo x > made-$(date +%s%N)");
    let (report, text) = export(&world, "lab");
    assert!(!text.contains("\nRUN "), "{text}");
    assert_eq!(report["builds"], 3, "{report}");
    builds_the_same(&world, "lab", &[]);
}

/// A name that no Dockerfile can hold cannot be removed by one, and a name that is made up each time cannot be foreseen.
#[test]
fn when_nothing_makes_all_of_it_the_most_readable_of_the_best_is_kept_and_the_rest_is_told() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    let odd = OsStr::from_bytes(b"srv/\xff");
    tool(&world).with_open_directory("srv").with_file(odd, "x", 0o644).import("tool:1");
    create(&world, &["--image", "tool:1"]);
    shell(&world, "lab", "rm /srv/*; echo x > made-$(date +%s%N)");
    let done = world.run(&["export", "lab", "out", "--json"]);
    let (report, text) = (done.json(), world.read("out/Dockerfile"));
    assert_eq!((done.code, &report["result"]), (Some(3), &Value::from("differs")), "{report}\n{text}");
    assert_eq!(report["builds"], 3, "{report}");
    let differences = report["differences"].as_array().unwrap();
    assert_eq!((differences.len(), &differences[0]["what"]), (1, &Value::from("extra")), "{report}");
    let path = differences[0]["path"].as_str().unwrap();
    assert!(path.starts_with("/workspace/made-"), "{report}");
    assert!(text.contains("\nRUN rm /srv/*; echo x > "), "{text}");
    assert!(text.contains(&format!("\n#   {path} is there and should not be\n")), "{text}");
}

#[test]
fn removals_links_rights_and_odd_names_are_made_again() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    tool(&world).with_open_directory("srv").with_file("srv/old", "x", 0o644).import("tool:1");
    create(&world, &["--image", "tool:1"]);
    shell(
        &world,
        "lab",
        "rm /srv/old; echo x > '/srv/it'\\''s \"new\" $1 \\'; ln -s /srv/nowhere dangling; mkdir -m 700 closed",
    );
    world.write("some/name with 'quotes\" and $words", "text\n");
    world.write("some/tool", "#!/bin/sh\n");
    world.run(&["cp", "some", "lab:"]).succeeds();
    shell(&world, "lab", "chmod 4711 some/tool; chmod 0 closed; chmod 000 '/srv/it'*; touch ./-rf");
    let (_, text) = export(&world, "lab");
    builds_the_same(&world, "lab", &[]);
    assert!(text.contains("\nRUN "), "{text}");
    assert!(!differences(&world, "tool:1", "built:1").is_empty());
}

/// With owners that only root can give, and in places that are only root's.
#[test]
fn what_root_of_a_sandbox_wrote_is_made_again_with_its_owners() {
    if !builds_work() {
        return;
    }
    let world = World::new();
    tool(&world).with_programs(&["chown", "cp", "id"]).with_file("etc/old", "x", 0o600).import("tool:1");
    create(&world, &["--image", "tool:1", "--container-user", "image"]);
    assert_eq!(shell(&world, "lab", "id -u"), "0\n");
    world.write("some/service.conf", "port = 80\n");
    world.run(&["cp", "some/service.conf", "lab:/etc/service.conf"]).succeeds();
    shell(
        &world,
        "lab",
        "chown 33:44 /etc/service.conf; chmod 640 /etc/service.conf; rm /etc/old; echo new > /etc/motd",
    );
    shell(
        &world,
        "lab",
        "cp /bin/cat /usr/own; chmod 4755 /usr/own; mkdir -p /opt/own/deep; chown 1000:5 /opt/own/deep",
    );
    let (_, text) = export(&world, "lab");
    assert!(text.contains("/etc/service.conf") && text.contains("\nRUN cp /bin/cat /usr/own"), "{text}");
    builds_the_same(&world, "lab", &[]);
}

/// Names and values that sandboxed code chooses are data, in the Dockerfile and in the context.
#[test]
fn hostile_names_come_out_as_they_are_and_do_nothing() {
    if !checks_work() {
        return;
    }
    let world = World::new();
    let image = tool(&world).import("tool:1");
    create(&world, &["--image", &image, "-e", "LINES=a\nRUN touch /evil"]);
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
    if !is_embedded("sandboxes of this machine's own programs") || !sandboxes_work() {
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
