//! Programs in sandboxes that start from an image of the store.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::World;

/// An image with a shell of the host, a file of its own and a program that claims to be Python.
fn import(world: &World) {
    for program in ["sh", "cat", "id"] {
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
    let script =
        "#!/bin/sh\ncase \"$1\" in *.py) echo \"the image's own interpreter\";; *) echo Python 3.99.0;; esac\n";
    world.write("tree/usr/bin/python3", script);
    let made = Command::new("chmod").args(["755", "tree/usr/bin/python3"]).current_dir(world.work()).status();
    assert!(made.unwrap().success());
    let tar = Command::new("tar").args(["-C", "tree", "-cf", "root.tar", "."]).current_dir(world.work()).status();
    assert!(tar.unwrap().success());
    let imported = world.run(&["image", "import", "root.tar", "tool:1"]);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
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
