//! Images are in the daemon, and never silently the embedded engine's.

use sandpen_tests::registry::Registry;
use sandpen_tests::{Result, images};

use crate::scene::Scene;

pub(crate) fn of_the_daemon(scene: &mut Scene) -> Result<()> {
    let listed = scene.run(&["image", "ls", "--quiet"])?;
    if !listed.lines().any(|line| line == images::DEBIAN) || !listed.lines().any(|line| line == images::SCRATCH) {
        return Err(format!("the images are\n{listed}").into());
    }
    let ran = scene.ran(&["image", "prune"])?;
    let engine = scene.daemon.flavour().as_str();
    if ran.status.success() || !ran.stderr.contains(engine) {
        return Err(ran.told("the embedded engine's images were pruned"));
    }
    fetched(scene)
}

/// From a registry that the daemon speaks to; which Podman does only when it was told so before it was started.
fn fetched(scene: &mut Scene) -> Result<()> {
    if scene.daemon.flavour() == sandpen_tests::daemon::Flavour::Podman {
        println!("SKIPPED on podman: pulls, because its registries are named before it starts");
        return Ok(());
    }
    let registry = Registry::start()?;
    let name = format!("{}/tool:1", registry.host);
    scene.daemon.run(&["tag", images::SCRATCH, &name])?;
    scene.daemon.run(&["push", "--quiet", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    scene.run(&["image", "pull", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    let id = scene.run(&["create", "--image", &name])?;
    let said = scene.run(&["exec", id.trim(), "--", "/program"]);
    scene.run(&["stop", id.trim()])?;
    scene.daemon.run(&["rmi", &name])?;
    if said? == "hello\n" { Ok(()) } else { Err("the image that was fetched does not run".into()) }
}
