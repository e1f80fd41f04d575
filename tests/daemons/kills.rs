//! A server that dies in the middle of anything.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandpen_tests::random::Random;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, images, number_from};
use serde_json::json;

use crate::scene::Scene;

/// The daemon works through what it was asked for last; a machine that does other things takes its time.
const SETTLES: Duration = Duration::from_secs(60);
/// Longer than making a sandbox takes, so that every step of it is among the moments.
const LONGEST: Duration = Duration::from_millis(1500);

pub(crate) fn at_random_moments(scene: &mut Scene) -> Result<()> {
    let mut random = Random::announced();
    let rounds = number_from("SANDPEN_TEST_KILLS", 5);
    let other = scene.daemon.run(&["run", "--detach", "--network", "none", images::DEBIAN, "sleep", "86400"])?;
    let mut neighbour = scene.server("neighbour")?;
    let theirs = neighbour.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    let keeper = scene.run(&["create", "--idle", "4h"])?;
    // Spares are made in the background.
    std::thread::sleep(Duration::from_secs(3));
    let before = scene.containers()?;
    for round in 0..rounds {
        let mut server = scene.server("state")?;
        let file =
            json!({"sandbox_id": keeper.trim(), "path": format!("round-{round}"), "content": format!("{round}")});
        server.good("write_file", &file)?;
        busy(&mut server)?;
        std::thread::sleep(random.duration_below(LONGEST));
        kill(&mut server)?;
        // The next process clears away what cannot end by itself.
        scene.run(&["ps"])?;
        scene.settles_to(&before, SETTLES)?;
    }
    let kept = scene.run(&["exec", keeper.trim(), "--", "sh", "-c", "cat round-* | wc -c; ls | wc -l"])?;
    let digits: usize = (0..rounds).map(|round| round.to_string().len()).sum();
    if kept != format!("{digits}\n{rounds}\n") {
        return Err(format!("of {rounds} files with {digits} characters there are {kept:?}").into());
    }
    let ran = neighbour.good("run_command", &json!({"sandbox_id": theirs, "command": "echo still here"}))?;
    if ran["stdout"] != "still here\n" {
        return Err(format!("a sandbox of another installation says {ran}").into());
    }
    let state = scene.daemon.run(&["inspect", "--format", "{{.State.Running}}", other.trim()])?;
    if state.trim() != "true" {
        return Err("a container of somebody else was ended".into());
    }
    neighbour.close();
    neighbour.end_within(SETTLES)?;
    scene.run(&["stop", keeper.trim()])?;
    scene.daemon.run(&["rm", "--force", other.trim()])?;
    scene.settles_to(&Default::default(), SETTLES)
}

/// Something of everything, under way when the end comes.
fn busy(server: &mut Wire) -> Result<()> {
    server.call("create_sandbox", &json!({}))?;
    server.call("run_code", &json!({"language": "bash", "code": "sleep 60", "image": images::DEBIAN}))?;
    server.call("run_command", &json!({"command": "echo a; sleep 60"}))?;
    server.call("run_command", &json!({"command": "sleep 60", "background": true}))?;
    Ok(())
}

fn kill(server: &mut Wire) -> Result<()> {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).ok_or("the server has no process")?;
    kill_process(pid, Signal::KILL).map_err(|error| error.to_string())?;
    server.end_within(Duration::from_secs(10)).map(drop)
}
