//! Other runtimes than the daemon's own.

use std::fs;

use sandpen_tests::program::is_installed;
use sandpen_tests::{Result, images};

use crate::scene::Scene;

/// Programs speak to another kernel than the host's, and whoever asks what holds them hears of it.
pub(crate) fn of_gvisor(scene: &mut Scene) -> Result<()> {
    if !is_installed("runsc") {
        return scene.skip("runsc is not installed");
    }
    let code = ["run", "bash", "--image", images::DEBIAN, "cat /proc/version"];
    let (hosts, plain) = (fs::read_to_string("/proc/version")?, scene.run(&code)?);
    let other = scene.run(&[&code[..], &["--runtime", "runsc"]].concat())?;
    if plain != hosts || other == hosts || other.trim().is_empty() {
        return Err(format!("the host's kernel is {hosts}, that of a sandbox {plain}, and of gVisor's {other}").into());
    }
    for (flags, is_gvisor) in [(&["--runtime", "runsc"][..], true), (&[], false)] {
        let found = scene.run(&[&["doctor", "--json"], flags].concat())?;
        if found.contains("gVisor") != is_gvisor {
            return Err(format!("with {flags:?} the doctor found {found}").into());
        }
    }
    Ok(())
}

/// Podman's service would take the name and start its own runtime, and we would tell of a kernel that is not there.
pub(crate) fn not_of_the_service(scene: &mut Scene) -> Result<()> {
    let run = |runtime: &'static str| ["run", "bash", "--image", images::DEBIAN, "echo ran", "--runtime", runtime];
    let ran = scene.ran(&run("runsc"))?;
    let is_told = ran.stderr.contains("that is runc, not runsc") && ran.stderr.contains("containers.conf");
    if ran.status.code() != Some(125) || !ran.stdout.is_empty() || !is_told {
        return Err(ran.told("a runtime that would not be what runs"));
    }
    if scene.run(&run("runc"))?.trim() != "ran" {
        return Err("Podman's own runtime is refused by its name".into());
    }
    Ok(())
}

/// It is never another one, and the error says which there are.
pub(crate) fn unheard_of(scene: &mut Scene) -> Result<()> {
    let ran = scene.ran(&["run", "bash", "--image", images::DEBIAN, "echo ran", "--runtime", "nothing"])?;
    let is_told = ran.stderr.contains("has no runtime \"nothing\"") && ran.stderr.contains("runc");
    if ran.status.code() == Some(125) && ran.stdout.is_empty() && is_told {
        Ok(())
    } else {
        Err(ran.told("a runtime that is not there"))
    }
}
