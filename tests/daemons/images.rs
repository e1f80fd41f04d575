//! Images are in the daemon, and never silently the embedded engine's.

use sandpen_tests::{Result, images};

use crate::scene::Scene;

pub(crate) fn of_the_daemon(scene: &mut Scene) -> Result<()> {
    let listed = scene.run(&["image", "ls", "--quiet"])?;
    // Podman shows the registry that a short name means.
    let has = |name: &str| listed.lines().any(|line| line.trim_start_matches("docker.io/library/") == name);
    if !has(images::DEBIAN) || !has(images::SCRATCH) {
        return Err(format!("the images are\n{listed}").into());
    }
    let ran = scene.ran(&["image", "prune"])?;
    let engine = scene.daemon.flavour().as_str();
    if ran.status.success() || !ran.stderr.contains(engine) {
        return Err(ran.told("the embedded engine's images were pruned"));
    }
    fetched(scene)
}

/// When it is asked for, and when a sandbox wants it.
fn fetched(scene: &mut Scene) -> Result<()> {
    let name = format!("{}/tool:1", scene.registry.host);
    scene.daemon.run(&["tag", images::SCRATCH, &name])?;
    scene.daemon.run(&["push", "--quiet", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    scene.run(&["image", "pull", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    let id = scene.run(&["create", "--image", &name])?;
    let said = scene.run(&["exec", id.trim(), "--", "/program"]);
    scene.run(&["stop", id.trim()])?;
    scene.remove_image(&name)?;
    if said? == "hello\n" { Ok(()) } else { Err("the image that was fetched does not run".into()) }
}
