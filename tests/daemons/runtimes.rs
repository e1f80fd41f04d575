//! Other runtimes than the daemon's own.

use std::fs;

use sandpen_tests::program::is_installed;
use sandpen_tests::{Result, images};
use serde_json::{Value, json};

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

/// That the name gets to the daemon, and what is told of it. What runs here is the host's kernel all the same: of Kata itself this
/// says nothing, which is what the report says too.
pub(crate) fn by_the_name_of_kata(scene: &mut Scene) -> Result<()> {
    let id = scene.run(&["create", "--runtime", "kata"])?.trim().to_owned();
    let format = ["inspect", "--format", "{{.HostConfig.Runtime}}"];
    let runtime = scene.daemon.run(&[&format[..], &[&format!("sandpen-{id}")]].concat());
    scene.run(&["stop", &id])?;
    let runtime = runtime?;
    if runtime != "kata\n" {
        return Err(format!("the daemon was asked for {runtime:?}").into());
    }
    let found = scene.run(&["doctor", "--json", "--runtime", "kata"])?;
    let found: Value = serde_json::from_str(&found).map_err(|error| format!("{error}: {found}"))?;
    if !found["trial"]["detail"].to_string().contains("in a virtual machine (Kata), made by kata") {
        return Err(format!("the doctor found {found}").into());
    }
    let mut server = scene.server_with("state", &[("SANDPEN_RUNTIME", "kata")])?;
    let told = server.good("describe_environment", &json!({}))?;
    let layers = told["isolation"].as_array().ok_or("there are no layers")?;
    let on: Vec<&str> = layers.iter().filter(|layer| layer["state"] == "on").filter_map(name).collect();
    let unknown = layers.iter().filter(|layer| layer["state"] == "unknown").count();
    // What process 1 does itself it does under any kernel.
    let is_honest = on == ["no-capabilities", "no-new-privileges", "rlimits", "descriptors"] && unknown > 8;
    if told["isolation_runtime"] == "kata" && is_honest { Ok(()) } else { Err(format!("it is told as {told}").into()) }
}

fn name(layer: &Value) -> Option<&str> {
    layer["layer"].as_str()
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
