//! Exports as a user has them: written by the product, built again by it, and compared with the sandbox.

use std::path::PathBuf;

use images::Store;
use images::difference::{Sides, compare};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::image::Root;
use super::{Engine, World, is_embedded, sandboxes_work};

/// Commands are only done again where images can be built inside of sandboxes.
pub fn builds_work() -> bool {
    if !commands_are_done_again() {
        return false;
    }
    if !engine_native::can_build() {
        super::skip("whoever runs this cannot build what was exported");
    }
    engine_native::can_build() && sandboxes_work()
}

/// Exports are only checked where something builds them.
pub fn checks_work() -> bool {
    match Engine::of_test() {
        Engine::Embedded => builds_work(),
        Engine::OfDaemon { .. } => sandboxes_work(),
    }
}

/// A daemon builds outside of the walls of sandboxes, so there an export copies what commands left.
pub fn commands_are_done_again() -> bool {
    is_embedded("commands are done again; tests/daemons: an export is rebuilt by the daemon's own tools")
}

/// A small system to work in.
pub fn tool(world: &World) -> Root<'_> {
    Root::new(world)
        .with_programs(&["sh", "cat", "mkdir", "ln", "rm", "date", "env", "touch", "chmod", "mv"])
        .with_file("etc/motd", "of the image", 0o644)
}

pub fn create(world: &World, arguments: &[&str]) {
    world.run(&[&["create", "--name", "lab"], arguments].concat()).succeeds();
}

#[track_caller]
pub fn shell(world: &World, sandbox: &str, line: &str) -> String {
    world.run(&["exec", sandbox, "--", "sh", "-c", line]).succeeds()
}

/// The report and the Dockerfile of an export that makes everything again.
#[track_caller]
pub fn export(world: &World, sandbox: &str) -> (Value, String) {
    let done = world.run(&["export", sandbox, "out", "--json"]);
    assert_ne!(done.stdout, "", "{}", done.stderr);
    let report = done.json();
    let text = world.read("out/Dockerfile");
    assert_eq!((done.code, &report["result"]), (Some(0), &Value::from("reproduced")), "{report}\n{text}");
    (report, text)
}

/// Builds what was written, as anybody would, and compares the whole image with the sandbox.
#[track_caller]
pub fn builds_the_same(world: &World, sandbox: &str, arguments: &[&str]) {
    world.run(&["save", sandbox, "now"]).succeeds();
    world.run(&["image", "tag", "saved:now", "wanted:1"]).succeeds();
    build(world, arguments);
    let differences = differences(world, "wanted:1", "built:1");
    assert_eq!(differences, [] as [String; 0], "{}", world.read("out/Dockerfile"));
}

#[track_caller]
pub fn build(world: &World, arguments: &[&str]) {
    world.run(&[&["image", "build", "--no-cache", "-t", "built:1", "out"], arguments].concat()).succeeds();
}

/// Between two images, but for what every machine has of its own and what is nobody's to keep.
pub fn differences(world: &World, wanted: &str, built: &str) -> Vec<String> {
    let store = Store::open(&world.state_dir().join("images")).unwrap();
    let image = |name: &str| store.resolve(&name.parse().unwrap()).unwrap().unwrap();
    let (wanted, built) = (image(wanted), image(built));
    let sides = Sides { below: &[], wanted: &wanted.layers, made: &built.layers };
    let ignored = |path: &[u8]| {
        let path = String::from_utf8_lossy(path);
        let top = path.split('/').next().unwrap_or_default();
        ["dev", "mnt", "node_modules", "packages", "proc", "run", "sys", "tmp"].contains(&top)
            || ["etc/hostname", "etc/hosts", "etc/resolv.conf"].contains(&&*path)
            || path.contains("__pycache__")
    };
    let compared = compare(&store, sides, &ignored, 50, &CancellationToken::new()).unwrap();
    assert!(compared.same > 3, "nothing was compared");
    compared.differences.iter().map(|one| format!("{} {:?}", String::from_utf8_lossy(&one.path), one.what)).collect()
}

/// The context that a client was given, where a command line would have written it.
pub fn unpack(world: &World, archive: &[u8]) -> PathBuf {
    let place = world.work().join("out");
    tar::Archive::new(archive).unpack(&place).unwrap();
    place
}
