//! Programs in sandboxes that start from an image of the store.

mod support;

use std::fs;

use support::image::Root;
use support::{Done, Engine, World, is_embedded};

/// An image with a shell of the host, a file of its own and a program that claims to be Python.
fn import(world: &World) -> String {
    let script =
        "#!/bin/sh\ncase \"$1\" in *.py) echo \"the image's own interpreter\";; *) echo Python 3.99.0;; esac\n";
    Root::new(world)
        .with_programs(&["sh", "cat", "id"])
        .with_file("etc/motd", "of the image", 0o644)
        .with_file("usr/bin/python3", script, 0o755)
        .import("tool:1")
}

#[test]
fn programs_and_interpreters_are_those_of_the_image() {
    let world = World::new();
    let tool = import(&world);
    world.run(&["run", "--image", &tool, "bash", "cat /etc/motd; id -u"]).expect(0, "of the image1000\n");
    if is_embedded("a name for the user of an image that has no list of users") {
        world.run(&["run", "--image", &tool, "bash", "id -un"]).expect(0, "sandbox\n");
    }
    let done = world.run(&["run", "--image", &tool, "python", "print(1)"]);
    assert_eq!((done.code, &*done.stdout), (Some(0), "the image's own interpreter\n"), "{}", done.stderr);
}

#[test]
fn what_an_image_lacks_is_told_by_its_name() {
    let world = World::new();
    let tool = import(&world);
    let done = world.run(&["run", "--image", &tool, "ruby", "puts 1"]);
    assert_ne!(done.code, Some(0));
    assert!(done.stderr.contains("Ruby is not in this sandbox's image"), "{}", done.stderr);
    let done = world.run(&["run", "--image", "tool:2", "--pull", "never", "bash", "true"]);
    assert_ne!(done.code, Some(0));
    assert!(done.stderr.contains("there is no image tool:2 here"), "{}", done.stderr);
    let remedy = match Engine::of_test() {
        Engine::Embedded => "sandpen image pull tool:2".to_owned(),
        Engine::OfDaemon { name, .. } => format!("`{name} pull`"),
    };
    done.says(&remedy);
}

#[test]
fn a_file_in_the_place_of_a_name_is_told_apart() {
    if !is_embedded("images in files of this machine") {
        return;
    }
    let world = World::new();
    import(&world);
    let done = world.run(&["run", "--image", "root.tar", "bash", "true"]);
    done.expect(125, "").says("a file of that name").says("tar:root.tar").says("sandpen image import root.tar NAME");
    world.run(&["run", "--image", "tar:root.tar", "bash", "cat /etc/motd"]).expect(0, "of the image");
}

#[test]
fn an_image_that_a_kept_sandbox_uses_goes_with_it() {
    if !is_embedded("a store of our own; a daemon keeps the images that it uses") {
        return;
    }
    let world = World::new();
    import(&world);
    for arguments in [&["--name", "lab", "--image", "tool:1"][..], &["--name", "other"]] {
        let created = world.run(&[&["create"], arguments].concat());
        assert_eq!(created.code, Some(0), "{}", created.stderr);
    }
    assert!(world.run(&["ps"]).stdout.contains("tool:1"));
    assert_eq!(world.run(&["image", "rm", "tool:1"]).code, Some(0));
    let done = world.run(&["exec", "lab", "cat", "/etc/motd"]);
    assert_eq!((done.code, &*done.stdout), (Some(0), "of the image"), "{}", done.stderr);
    assert_eq!(layers(&world), 1);
    assert_eq!(world.run(&["stop", "lab"]).code, Some(0));
    // The next who looks around removes what nobody uses.
    assert_eq!(world.run(&["ps"]).code, Some(0));
    assert_eq!(layers(&world), 0);
    assert_eq!(world.run(&["stop", "other"]).code, Some(0));
}

fn layers(world: &World) -> usize {
    let entries = fs::read_dir(world.state_dir().join("images/v1/layers")).unwrap().flatten();
    entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"sha256-")).count()
}

/// What the images below are called.
struct Built {
    tool: String,
    app: String,
    own: String,
}

/// Images with a directory to work in and a program of their own, over the one above.
fn build(world: &World) -> Built {
    let tool = import(world);
    world.write("context/note", "a note\n");
    let program = r#"["/bin/sh", "-c", "echo \"$0 $*\"; cat"]"#;
    let steps = format!("FROM {tool}\nWORKDIR /app\nCOPY note .\nENTRYPOINT {program}\nCMD [\"one\", \"two\"]\n");
    world.write("context/app", &steps);
    // On a daemon an image is read-only but for its volumes.
    let volume = match Engine::of_test() {
        Engine::Embedded => "",
        Engine::OfDaemon { .. } => "VOLUME /srv/own\n",
    };
    let steps = format!("FROM {tool}\nUSER 1000:1000\nWORKDIR /srv/own\n{volume}CMD cat /etc/motd\n");
    world.write("context/own", &steps);
    let [app, own] = ["app", "own"].map(|name| {
        let file = format!("context/{name}");
        world.build_image(&format!("{name}:1"), &file, "context")
    });
    Built { tool, app, own }
}

#[test]
fn an_image_s_own_program_runs_without_a_language() {
    let world = World::new();
    let Built { app, own, .. } = build(&world);
    world.run_with_stdin(&["run", "--image", &app], "typed\n").expect(0, "one two\ntyped\n");
    world.run(&["run", "--image", &app, "--entrypoint"]).expect(0, "one two\n");
    world.run(&["run", "--image", &app, "--entrypoint", "--", "--three"]).expect(0, "--three \n");
    world.run(&["run", "--image", &own]).expect(0, "of the image");
    world.run(&["run", "--image", &own, "--entrypoint", "--", "cat", "/no/such"]).expect(1, "").says("/no/such");
    world.run(&["run", "--image", &own, "--entrypoint", "--", "/no/such"]).expect(127, "").says("/no/such");
    let told = world.run(&["--json", "run", "--image", &own]).json();
    assert_eq!((&told["status"], &told["stdout"]), (&"exited".into(), &"of the image".into()));

    world.run(&["create", "--name", "lab", "--image", &app]);
    world.run(&["save", "lab", "kept"]);
    world.run(&["run", "--image", "saved:kept"]).expect(0, "one two\n");
}

#[test]
fn what_cannot_be_an_image_s_program_is_said() {
    let world = World::new();
    let Built { tool, app, .. } = build(&world);
    world.run(&["run", "--image", &tool]).expect(126, "").says("neither entry point nor command").says("hint: ");
    // On a daemon there is one in the settings.
    let without_image = |words: &[&str]| Done::from(world.command(words).env_remove("SANDPEN_IMAGE").output().unwrap());
    without_image(&["run"]).expect(125, "").says("there is nothing to run").says("--image");
    without_image(&["run", "--entrypoint"]).expect(125, "").says("there is nothing to run");
    world.run(&["run", "--image", &app, "--", "three"]).expect(125, "").says("--entrypoint");
    world.run(&["run", "--image", &app, "--file", "x.py"]).expect(125, "").says("sandpen run python --file x.py");
    world.run(&["run", "--image", &app, "--entrypoint", "python", "1"]).expect(125, "").says("cannot be used with");
}

#[test]
fn programs_start_in_the_work_directory_of_the_image() {
    let world = World::new();
    let Built { tool, app, own } = build(&world);
    world.run(&["run", "--image", &app, "bash", "pwd; cat note"]).expect(0, "/app\na note\n");
    // The code has to lie somewhere else: the directory is root's.
    world.run(&["run", "--image", &app, "python", "1"]).expect(0, "the image's own interpreter\n");
    world.run(&["run", "--image", &tool, "bash", "pwd"]).expect(0, "/workspace\n");

    world.write("in.txt", "brought\n");
    let both = ["--input", "in.txt", "--output", "out.txt"];
    let copying = ["run", "--image", &own, "bash", "cat in.txt >out.txt; pwd"];
    world.run(&[&copying[..], &both].concat()).expect(0, "/srv/own\n");
    assert_eq!(world.read("out.txt"), "brought\n");
}

#[test]
fn what_is_kept_of_a_sandbox_keeps_its_work_directory() {
    let world = World::new();
    let Built { own, .. } = build(&world);
    world.write("in.txt", "brought\n");
    assert_eq!(world.run(&["create", "--name", "lab", "--image", &own]).code, Some(0));
    world.run(&["cp", "in.txt", "lab:"]).expect(0, "");
    world.run(&["exec", "lab", "cat", "/srv/own/in.txt"]).expect(0, "brought\n");
    world.run(&["exec", "-w", "deep/er", "lab", "true"]).expect(127, "").says("/srv/own/deep/er");
    world.run(&["cp", "lab:in.txt", "again.txt"]).expect(0, "");
    assert_eq!(world.read("again.txt"), "brought\n");
    assert_eq!(world.run(&["fork", "lab", "--name", "branch"]).code, Some(0));
    assert_eq!(world.run(&["save", "lab", "kept"]).code, Some(0));
    let script = "pwd; cat in.txt; echo x >new";
    world.run(&["exec", "branch", "--", "sh", "-c", script]).expect(0, "/srv/own\nbrought\n");
    world.run(&["run", "--image", "saved:kept", "bash", script]).expect(0, "/srv/own\nbrought\n");
    world.run(&["exec", "lab", "--", "sh", "-c", script]).expect(0, "/srv/own\nbrought\n");
}
