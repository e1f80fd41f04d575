//! What is said of a daemon, and what when there is none.

use std::time::{Duration, Instant};

use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};

use crate::scene::Scene;

/// What is promised for a daemon that does not answer.
const PROMISED: Duration = Duration::from_secs(30);

pub(crate) fn doctor(scene: &mut Scene) -> Result<()> {
    let text = scene.run(&["doctor", "--json"])?;
    let found: Value = serde_json::from_str(&text).map_err(|error| Trouble(format!("{error}: {text}")))?;
    let is_on = |layer: &Value| layer["state"] == "on";
    let layers = found["layers"].as_array().ok_or("there are no layers")?;
    let standing = layers.iter().filter(|layer| is_on(layer)).count();
    if found["trial"]["works"] != true
        || found["daemon"]["place"].as_str() != scene.daemon.socket().to_str()
        || standing < 12
    {
        return Err(format!("the doctor found {found}").into());
    }
    Ok(())
}

/// It says where it looked, does not take long, and takes no other engine.
pub(crate) fn nowhere(scene: &mut Scene) -> Result<()> {
    let started = Instant::now();
    let ran = scene.ran(&["run", "bash", "echo ran", "--daemon-host", "unix:///nowhere/socket"])?;
    if ran.status.code() != Some(125) || !ran.stderr.contains("/nowhere/socket") || ran.stdout.contains("ran") {
        return Err(ran.told("a daemon that is not there"));
    }
    if started.elapsed() > PROMISED { Err("it took too long to say so".into()) } else { Ok(()) }
}

/// A server whose daemon stops and comes back says so, and goes on.
pub(crate) fn for_a_while(scene: &mut Scene) -> Result<()> {
    let mut server = scene.server("for-a-while")?;
    let run = json!({"command": "echo here"});
    if server.good("run_command", &run)?["stdout"] != "here\n" {
        return Err("nothing runs before".into());
    }
    let sandbox = server.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    scene.daemon.stop_for_now()?;
    for arguments in [run.clone(), json!({"command": "echo here", "sandbox_id": sandbox})] {
        let started = Instant::now();
        let asked = server.call("run_command", &arguments)?;
        let answer = server.answer(asked)?;
        if answer["isError"] != true {
            return Err(format!("without a daemon {arguments} is answered with {answer}").into());
        }
        if started.elapsed() > PROMISED {
            return Err(format!("it took {} s to say that there is no daemon", started.elapsed().as_secs()).into());
        }
    }
    scene.daemon.start_again()?;
    if server.good("run_command", &run)?["stdout"] != "here\n" {
        return Err("nothing runs after".into());
    }
    Ok(())
}
