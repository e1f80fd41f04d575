//! One state directory and several daemons: what belongs to sandboxes of one is left alone by who uses another.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;

use sandpen_tests::Result;
use sandpen_tests::daemon::{Daemon, Flavour};
use sandpen_tests::program::run;
use serde_json::json;

use crate::scene::{LIMIT, Scene};

const STATE: &str = "several";

/// A persistent sandbox with a secret and a checkpoint, while the next process looks around on another daemon.
pub(crate) fn on_one_state(scene: &mut Scene) -> Result<()> {
    keep_secret(scene)?;
    let create = ["create", "--name", "lab", "--network", "api.example.com", "--secret", "SEVERAL_TOKEN"];
    let id = said(scene, &create)?.trim().to_owned();
    said(scene, &["exec", "lab", "--", "sh", "-c", "echo one > file"])?;
    let checkpoint = said(scene, &["checkpoint", "lab"])?.trim().to_owned();
    said(scene, &["exec", "lab", "--", "sh", "-c", "echo two > file"])?;
    for flavour in [Flavour::Docker, Flavour::Podman] {
        if let Some(why) = flavour.missing() {
            println!("SKIPPED: a second daemon of {}: {why}", flavour.as_str());
            continue;
        }
        let other = Daemon::start(flavour)?;
        let looked = look_around(scene, &other);
        let left = other.end();
        looked?;
        if !left.is_empty() {
            return Err(format!("the second daemon leaves {left:?}").into());
        }
    }
    // The secret's part of it is needed for any command, and the record for its name.
    let listed = said(scene, &["ps"])?;
    if !listed.contains(&id) || !listed.contains("lab") {
        return Err(format!("it is not listed any more: {listed}").into());
    }
    said(scene, &["restore", "lab", &checkpoint])?;
    let file = said(scene, &["exec", "lab", "--", "cat", "file"])?;
    if file != "one\n" {
        return Err(format!("its checkpoint brings back {file:?}").into());
    }
    said(scene, &["stop", "lab"]).map(drop)
}

/// A server looks around at its start and after a while, a list at once.
fn look_around(scene: &Scene, other: &Daemon) -> Result<()> {
    let command = |arguments: &[&str]| {
        let mut command = scene.command(STATE, arguments);
        command.env("SANDPEN_ENGINE", other.flavour().as_str()).env("SANDPEN_DAEMON_HOST", other.host());
        command
    };
    let listed = run(&mut command(&["ps"]), scene.path(), LIMIT)?.succeeded()?.stdout;
    if listed.contains("lab") {
        return Err(format!("another daemon has it: {listed}").into());
    }
    let place = tempfile::tempdir_in(scene.path())?;
    let mut server = sandpen_tests::wire::Wire::by(&mut command(&["mcp"]), place)?;
    let listed = server.good("list_sandboxes", &json!({}))?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    server.close();
    server.end_within(LIMIT)?;
    if listed.to_string().contains("lab") {
        return Err(format!("another daemon has it: {listed}").into());
    }
    Ok(())
}

fn said(scene: &Scene, arguments: &[&str]) -> Result<String> {
    let ran = run(&mut scene.command(STATE, arguments), scene.path(), LIMIT)?.succeeded();
    ran.map(|ran| ran.stdout).map_err(|trouble| format!("sandpen {}: {trouble}", arguments.join(" ")).into())
}

fn keep_secret(scene: &Scene) -> Result<()> {
    let log = scene.path().join("secret.log");
    let mut command = scene.command(STATE, &["secret", "set", "SEVERAL_TOKEN", "--host", "api.example.com"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
    child.stdin.take().ok_or("no input")?.write_all(b"value-that-stays-outside")?;
    if child.wait()?.success() {
        return Ok(());
    }
    Err(format!("the secret is not kept: {}", std::fs::read_to_string(log)?).into())
}
