//! Programs in sandboxes that start from an image of the store.

mod support;

use std::fs;

use support::World;
use support::image::Root;

/// An image with a shell of the host, a file of its own and a program that claims to be Python.
fn import(world: &World) {
    let script =
        "#!/bin/sh\ncase \"$1\" in *.py) echo \"the image's own interpreter\";; *) echo Python 3.99.0;; esac\n";
    Root::new(world)
        .with_programs(&["sh", "cat", "id"])
        .with_file("etc/motd", "of the image", 0o644)
        .with_file("usr/bin/python3", script, 0o755)
        .import("tool:1");
}

#[test]
fn programs_and_interpreters_are_those_of_the_image() {
    let world = World::new();
    import(&world);
    let done = world.run(&["run", "--image", "tool:1", "bash", "cat /etc/motd; id -un"]);
    assert_eq!((done.code, &*done.stdout), (Some(0), "of the imagesandbox\n"), "{}", done.stderr);
    let done = world.run(&["run", "--image", "tool:1", "python", "print(1)"]);
    assert_eq!((done.code, &*done.stdout), (Some(0), "the image's own interpreter\n"), "{}", done.stderr);
}

#[test]
fn what_an_image_lacks_is_told_by_its_name() {
    let world = World::new();
    import(&world);
    let done = world.run(&["run", "--image", "tool:1", "ruby", "puts 1"]);
    assert_ne!(done.code, Some(0));
    assert!(done.stderr.contains("Ruby is not in this sandbox's image"), "{}", done.stderr);
    let done = world.run(&["run", "--image", "tool:2", "--pull", "never", "bash", "true"]);
    assert_ne!(done.code, Some(0));
    assert!(done.stderr.contains("there is no image tool:2 here"), "{}", done.stderr);
    assert!(done.stderr.contains("sandpen image pull tool:2"), "{}", done.stderr);
}

#[test]
fn a_file_in_the_place_of_a_name_is_told_apart() {
    let world = World::new();
    import(&world);
    let done = world.run(&["run", "--image", "root.tar", "bash", "true"]);
    done.expect(125, "").says("a file of that name").says("tar:root.tar").says("sandpen image import root.tar NAME");
    world.run(&["run", "--image", "tar:root.tar", "bash", "cat /etc/motd"]).expect(0, "of the image");
}

#[test]
fn an_image_that_a_kept_sandbox_uses_goes_with_it() {
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

/// Images with a directory to work in and a program of their own, over the one above.
fn build(world: &World) {
    import(world);
    world.write("context/note", "a note\n");
    let program = r#"["/bin/sh", "-c", "echo \"$0 $*\"; cat"]"#;
    let steps = format!("FROM tool:1\nWORKDIR /app\nCOPY note .\nENTRYPOINT {program}\nCMD [\"one\", \"two\"]\n");
    world.write("context/app", &steps);
    world.write("context/own", "FROM tool:1\nUSER 1000:1000\nWORKDIR /srv/own\nCMD cat /etc/motd\n");
    for name in ["app", "own"] {
        let file = format!("context/{name}");
        let built = world.run(&["image", "build", "-t", &format!("{name}:1"), "-f", &file, "context"]);
        assert_eq!(built.code, Some(0), "{}", built.stderr);
    }
}

#[test]
fn an_image_s_own_program_runs_without_a_language() {
    let world = World::new();
    build(&world);
    world.run_with_stdin(&["run", "--image", "app:1"], "typed\n").expect(0, "one two\ntyped\n");
    world.run(&["run", "--image", "app:1", "--entrypoint"]).expect(0, "one two\n");
    world.run(&["run", "--image", "app:1", "--entrypoint", "--", "--three"]).expect(0, "--three \n");
    world.run(&["run", "--image", "own:1"]).expect(0, "of the image");
    world.run(&["run", "--image", "own:1", "--entrypoint", "--", "cat", "/no/such"]).expect(1, "").says("/no/such");
    world.run(&["run", "--image", "own:1", "--entrypoint", "--", "/no/such"]).expect(127, "").says("/no/such");
    let told = world.run(&["--json", "run", "--image", "own:1"]).json();
    assert_eq!((&told["status"], &told["stdout"]), (&"exited".into(), &"of the image".into()));

    world.run(&["create", "--name", "lab", "--image", "app:1"]);
    world.run(&["save", "lab", "kept"]);
    world.run(&["run", "--image", "saved:kept"]).expect(0, "one two\n");
}

#[test]
fn what_cannot_be_an_image_s_program_is_said() {
    let world = World::new();
    build(&world);
    world.run(&["run", "--image", "tool:1"]).expect(126, "").says("neither entry point nor command").says("hint: ");
    world.run(&["run"]).expect(125, "").says("there is nothing to run").says("--image");
    world.run(&["run", "--entrypoint"]).expect(125, "").says("there is nothing to run");
    world.run(&["run", "--image", "app:1", "--", "three"]).expect(125, "").says("--entrypoint");
    world.run(&["run", "--image", "app:1", "--file", "x.py"]).expect(125, "").says("sandpen run python --file x.py");
    world.run(&["run", "--image", "app:1", "--entrypoint", "python", "1"]).expect(125, "").says("cannot be used with");
}

#[test]
fn programs_start_in_the_work_directory_of_the_image() {
    let world = World::new();
    build(&world);
    world.run(&["run", "--image", "app:1", "bash", "pwd; cat note"]).expect(0, "/app\na note\n");
    // The code has to lie somewhere else: the directory is root's.
    world.run(&["run", "--image", "app:1", "python", "1"]).expect(0, "the image's own interpreter\n");
    world.run(&["run", "--image", "tool:1", "bash", "pwd"]).expect(0, "/workspace\n");

    world.write("in.txt", "brought\n");
    let both = ["--input", "in.txt", "--output", "out.txt"];
    let copying = ["run", "--image", "own:1", "bash", "cat in.txt >out.txt; pwd"];
    world.run(&[&copying[..], &both].concat()).expect(0, "/srv/own\n");
    assert_eq!(world.read("out.txt"), "brought\n");
}

#[test]
fn what_is_kept_of_a_sandbox_keeps_its_work_directory() {
    let world = World::new();
    build(&world);
    world.write("in.txt", "brought\n");
    assert_eq!(world.run(&["create", "--name", "lab", "--image", "own:1"]).code, Some(0));
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
