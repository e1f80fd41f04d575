//! Who waits for an image: a pull goes on for those who stay, and ends when nobody does.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandpen_tests::program::Program;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, images};
use serde_json::json;

use crate::scene::Scene;

/// Ctrl-C, while the registry is silent: of whoever asked for the image, and of whoever asked for a sandbox of it.
pub(crate) fn given_up(scene: &mut Scene) -> Result<()> {
    // Each has an image of its own: a daemon may keep the content of one that nobody got.
    for (tag, words) in [("given-up:1", ["image", "pull"]), ("given-up:2", ["create", "--image"])] {
        let name = at_the_gate(scene, tag)?;
        scene.gate.shut();
        let mut command = scene.command("state", &[&words[..], &[&name]].concat());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut pulling = Program::start(&mut command, &scene.path().join("given-up"))?;
        scene.gate.is_visited().map_err(|trouble| pulling.tell(&trouble.0))?;
        let pid = i32::try_from(pulling.child.id()).ok().and_then(Pid::from_raw).ok_or("it has no process")?;
        kill_process(pid, Signal::INT).map_err(|error| error.to_string())?;
        let started = Instant::now();
        let status = pulling.wait_within(Duration::from_secs(30))?;
        if status.code() != Some(130) {
            return Err(pulling.tell(&format!("after {} ms it ends with {status}", started.elapsed().as_millis())));
        }
        // Daemons do not let go of a registry that is silent, but what comes of it is for nobody then.
        scene.gate.open();
        scene.gate.is_passed()?;
        std::thread::sleep(Duration::from_secs(3));
        if scene.run(&["image", "ls", "--quiet"])?.contains(&name) {
            return Err("there is an image of it".into());
        }
    }
    Ok(())
}

/// One of two calls that wait for an image is cancelled.
pub(crate) fn by_one_of_two(scene: &mut Scene) -> Result<()> {
    let name = at_the_gate(scene, "shared:1")?;
    let place = tempfile::tempdir_in(scene.path())?;
    let allowed = format!("{}/*", scene.gate.host);
    let mut server = Wire::by(&mut scene.command("shared", &["mcp", "--allow-image", &allowed]), place)?;
    scene.gate.shut();
    let first = server.call("create_sandbox", &json!({"image": name}))?;
    scene.gate.is_visited()?;
    let second = server.call("create_sandbox", &json!({"image": name}))?;
    server.listen(Duration::from_millis(500))?;
    server.cancel(first)?;
    server.listen(Duration::from_millis(500))?;
    scene.gate.open();
    let answer = server.answer(second)?;
    let image = &answer["structuredContent"]["image"];
    server.close();
    server.end_within(Duration::from_secs(60))?;
    scene.remove_image(&name)?;
    if *image != json!(name) {
        return Err(format!("the answer is {answer}").into());
    }
    let mut counts = BTreeMap::new();
    for content in scene.gate.asked() {
        *counts.entry(content).or_insert(0) += 1;
    }
    if counts.values().all(|count| *count == 1) {
        Ok(())
    } else {
        Err(format!("it was fetched twice: {counts:?}").into())
    }
}

/// A small image that the daemon no longer has, also not by another name, by its name at the gate.
fn at_the_gate(scene: &Scene, tag: &str) -> Result<String> {
    let name = format!("{}/{tag}", scene.registry.host);
    let tree = scene.daemon.place().join(images::SCRATCH_TREE);
    scene.daemon.run(&["import", "--change", "CMD [\"/program\"]", &tree.to_string_lossy(), &name])?;
    scene.daemon.run(&["push", "--quiet", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    Ok(format!("{}/{tag}", scene.gate.host))
}
