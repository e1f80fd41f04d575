//! `copy_files`: what a model reaches of this machine, and what not, however it and the code in its sandbox try.

mod support;

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use support::client::Client;
use support::{World, sandboxes_work};

struct Scene {
    world: World,
    client: Client,
    sandbox: String,
}

impl Scene {
    /// One directory is open, one inside of it for reading only, and a secret lies beside it.
    fn new() -> Self {
        let world = World::new();
        world.write("secret", "nobody's");
        fs::create_dir_all(world.work().join("open/fixed")).unwrap();
        world.write("open/in.txt", "from the host");
        world.write("open/fixed/kept", "as it was");
        symlink("../secret", world.work().join("open/link")).unwrap();
        symlink("..", world.work().join("open/up")).unwrap();
        let open = world.work().join("open").canonicalize().unwrap();
        let (open, fixed) = (open.display().to_string(), format!("{}/fixed:ro", open.display()));
        let mut client = Client::hello(&world, &["--allow-path", &open, "--allow-path", &fixed], "2025-11-25");
        let created = client.call("create_sandbox", json!({}));
        let sandbox = created["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned();
        Self { world, client, sandbox }
    }

    fn copy(&mut self, direction: &str, host: &str, guest: &str) -> Value {
        let open = self.world.work().canonicalize().unwrap();
        let host = if host.starts_with('/') { host.to_owned() } else { format!("{}/{host}", open.display()) };
        let arguments =
            json!({ "sandbox_id": self.sandbox, "direction": direction, "host_path": host, "sandbox_path": guest });
        self.client.call("copy_files", arguments)
    }

    fn copies(&mut self, direction: &str, host: &str, guest: &str) -> bool {
        self.copy(direction, host, guest)["isError"] != json!(true)
    }

    fn shell(&mut self, command: &str) -> String {
        let answer = self.client.call("run_command", json!({ "sandbox_id": self.sandbox, "command": command }));
        answer["structuredContent"]["stdout"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn files_and_directories_go_in_and_out_below_the_open_place() {
    if !sandboxes_work() {
        return;
    }
    let mut scene = Scene::new();
    assert!(scene.copies("in", "open/in.txt", "."));
    assert_eq!(
        scene.shell("cat in.txt; mkdir -p d/e; echo made > d/e/out.txt; ln -s e/out.txt d/near"),
        "from the host"
    );
    let copied = scene.copy("out", "open", "d");
    assert_eq!(copied["structuredContent"]["files"], 1, "{copied}");
    assert_eq!(scene.world.read("open/d/e/out.txt"), "made\n");
    assert_eq!(scene.world.read("open/d/near"), "made\n", "a link that stays in the copy comes along");
    assert!(scene.copies("in", "open", "whole"));
    assert_eq!(scene.shell("cat whole/in.txt"), "from the host");
}

#[test]
fn nothing_else_is_reached_by_path_or_by_link() {
    if !sandboxes_work() {
        return;
    }
    let mut scene = Scene::new();
    scene.shell("echo x > x");
    for outside in
        ["secret", "open/../secret", "open/link", "open/up/secret", "/etc/hostname", "/proc/self/environ", "relative"]
    {
        let outside = if outside == "relative" { "../secret" } else { outside };
        assert!(!scene.copies("in", outside, "got"), "{outside} was read");
    }
    for outside in ["secret", "new", "open/../new", "open/up/new", "open/link", "/tmp", "open/fixed", "open/fixed/new"]
    {
        let done = scene.copies("out", outside, "x");
        // A link at the very place is replaced, not followed.
        assert!(!done || outside == "open/link", "{outside} was written");
    }
    assert_eq!(scene.world.read("secret"), "nobody's");
}

/// The oldest trick: plant a link in one copy, and go through it in the next.
#[test]
fn links_that_were_planted_lead_nowhere() {
    if !sandboxes_work() {
        return;
    }
    let mut scene = Scene::new();
    let secret = scene.world.work().canonicalize().unwrap().join("secret").display().to_string();
    scene.shell(&format!(
        "mkdir -p d/d1/d2 fixed; ln -s {secret} d/absolute; ln -s ../../secret d/up; ln -s ../.. d/d1/d2/top; \
         ln -s d1/d2/top/../../secret d/through; echo bad > fixed/kept"
    ));
    let copied = scene.copy("out", "open", "d");
    assert_eq!(copied["structuredContent"]["skipped"], 3, "{copied}");
    let planted = support::names(&scene.world.work().join("open/d"));
    assert_eq!(planted, ["d1"]);
    for through in ["open/d/d1/d2/top/in.txt", "open/d/d1/d2/top"] {
        assert!(!scene.copies("in", through, "got"), "{through} was read");
    }
    assert!(!scene.copies("out", "open", "fixed"), "a name that the sandbox chose led into a place for reading");
    assert_eq!(scene.world.read("open/fixed/kept"), "as it was");
}
