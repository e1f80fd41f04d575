//! A server in a container, beside the containers that it makes. It sees other paths than the daemon does, and other process
//! ids than another server in another container; all that the two share is the daemon's socket and a volume with its state.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use sandpen_tests::program::{built, run};
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, images};
use serde_json::{Value, json};

use crate::scene::Scene;

const IMAGE: &str = "sandpen:test";
const STATE: &str = "sandpen-state";
/// Podman may keep the stream of a dead server open; then process 1 misses a sign of it for a minute.
const SETTLES: Duration = Duration::from_secs(150);
/// In the container, where the daemon knows nothing of it.
const SOCKET: &str = "/var/run/docker.sock";

pub(crate) fn its_containers(scene: &mut Scene) -> Result<()> {
    build(scene)?;
    let (before, running_before) = (scene.containers()?, running(scene)?);
    let mut first = serve(scene, "first")?;
    let ran = first.good("run_command", &json!({"command": "echo out of $(hostname)"}))?;
    if !ran["stdout"].as_str().is_some_and(|said| said.starts_with("out of ")) {
        return Err(format!("a command says {ran}").into());
    }
    let kept = id(first.good("create_sandbox", &json!({"persist": true}))?)?;
    first.good("write_file", &json!({"sandbox_id": kept, "path": "note", "content": "kept\n"}))?;
    first.good("save_sandbox", &json!({"sandbox_id": kept, "name": "beside"}))?;
    first.good("create_sandbox", &json!({}))?;
    scene.daemon.run(&["kill", "sandpen-first"])?;
    first.end_within(SETTLES)?;
    drop(first);
    let container = scene.daemon.run(&["inspect", "--format", "{{.Id}}", &format!("sandpen-{kept}")])?;
    let mut stays = running_before;
    stays.insert(container.trim().to_owned());
    settles_to_run(scene, &stays)?;

    let mut second = serve(scene, "second")?;
    let read = second.good("run_command", &json!({"sandbox_id": kept, "command": "cat note"}))?;
    if read["stdout"] != "kept\n" {
        return Err(format!("the next server finds {read}").into());
    }
    let again = second.good("run_command", &json!({"image": "saved:beside", "command": "cat /workspace/note"}))?;
    if again["stdout"] != "kept\n" {
        return Err(format!("the image that the first one saved holds {again}").into());
    }
    at_the_same_time(scene, &mut second)?;

    second.good("stop_sandbox", &json!({"sandbox_id": kept}))?;
    second.good("delete_image", &json!({"image": "saved:beside"}))?;
    // As a manager of containers ends one: it is the first process of its own, and must hear it.
    let stopping = Instant::now();
    scene.daemon.run(&["stop", "--time", "30", "sandpen-second"])?;
    second.end_within(SETTLES)?;
    if stopping.elapsed() > Duration::from_secs(25) {
        return Err("a server in a container does not end when it is asked to".into());
    }
    scene.settles_to(&before, SETTLES)?;
    scene.daemon.run(&["volume", "rm", STATE])?;
    scene.daemon.run(&["rmi", IMAGE]).map(drop)
}

/// Two with one directory of state: each leaves alone what the other has, although neither sees the other's processes.
fn at_the_same_time(scene: &Scene, second: &mut Wire) -> Result<()> {
    let theirs = id(second.good("create_sandbox", &json!({}))?)?;
    let mut third = serve(scene, "third")?;
    third.good("run_command", &json!({"command": "true"}))?;
    let listed = run(&mut command(scene, &["run", "--rm"], &["ps", "--quiet"]), scene.path(), SETTLES)?.succeeded()?;
    if listed.stdout.contains(&theirs) {
        return Err(format!("a command lists what ends with its server:\n{}", listed.stdout).into());
    }
    let said = second.good("run_command", &json!({"sandbox_id": theirs, "command": "echo alive"}))?;
    if said["stdout"] != "alive\n" {
        return Err(format!("beside another server a sandbox says {said}").into());
    }
    scene.daemon.run(&["kill", "sandpen-third"])?;
    third.end_within(SETTLES)?;
    second.good("stop_sandbox", &json!({"sandbox_id": theirs})).map(drop)
}

/// From the file that is shipped, on an image that is here.
fn build(scene: &Scene) -> Result<()> {
    let context = scene.path().join("beside");
    std::fs::create_dir_all(&context)?;
    // What a debugger wants would be most of the image.
    let mut strip = Command::new("strip");
    strip.arg("--output-file").arg(context.join("sandpen")).arg(built("sandpen")?);
    run(&mut strip, scene.path(), SETTLES)?.succeeded()?;
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Dockerfile");
    let base = format!("BASE={}", images::DEBIAN);
    let (recipe, context) = (recipe.to_string_lossy(), context.to_string_lossy());
    scene.daemon.run(&["build", "--tag", IMAGE, "--build-arg", &base, "--file", &recipe, &context]).map(drop)
}

/// The program in a container that has the daemon's socket and the volume.
fn command(scene: &Scene, how: &[&str], arguments: &[&str]) -> Command {
    let mut command = scene.daemon.docker();
    let engine = scene.daemon.flavour().as_str();
    command
        .args(how)
        .args(["--network", "none"])
        .arg("--volume")
        .arg(format!("{}:{SOCKET}", scene.daemon.socket().display()))
        .args(["--volume", &format!("{STATE}:/var/lib/sandpen")])
        .args(["--env", &format!("SANDPEN_ENGINE={engine}")])
        .args(["--env", &format!("SANDPEN_DAEMON_HOST=unix://{SOCKET}")])
        .args(["--env", &format!("SANDPEN_CONTAINER_IMAGE={}", images::DEBIAN)])
        .arg(IMAGE)
        .args(arguments);
    command
}

fn serve(scene: &Scene, name: &str) -> Result<Wire> {
    let name = format!("sandpen-{name}");
    let how = ["run", "--rm", "--interactive", "--name", &name];
    Wire::by(&mut command(scene, &how, &["mcp"]), tempfile::tempdir_in(scene.path())?)
}

fn id(made: Value) -> Result<String> {
    made["sandbox_id"].as_str().map(str::to_owned).ok_or_else(|| format!("no sandbox was made: {made}").into())
}

fn running(scene: &Scene) -> Result<BTreeSet<String>> {
    let listed = scene.daemon.run(&["ps", "--quiet", "--no-trunc"])?;
    Ok(listed.lines().map(|line| line.trim().to_owned()).collect())
}

/// One that was just made and not started is for the next server to remove.
fn settles_to_run(scene: &Scene, expected: &BTreeSet<String>) -> Result<()> {
    let started = Instant::now();
    loop {
        let there = running(scene)?;
        if there == *expected {
            return Ok(());
        }
        if started.elapsed() > SETTLES {
            return Err(format!("after {} s {there:?} run instead of {expected:?}", SETTLES.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
