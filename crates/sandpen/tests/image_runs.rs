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
