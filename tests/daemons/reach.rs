//! Sandboxes that stay, reached by the daemon's own tools.

use sandpen_tests::program::Ran;
use sandpen_tests::{Result, images};
use serde_json::{Value, json};

use crate::scene::Scene;

/// Both say how, and what they say works.
pub(crate) fn of_a_fork(scene: &mut Scene) -> Result<()> {
    let created = scene.ran(&["create", "--image", images::DEBIAN])?.succeeded()?;
    let id = created.stdout.trim();
    let tried = told(scene, &created, id).and_then(|()| of_branches(scene, id));
    scene.run(&["stop", id])?;
    tried
}

fn of_branches(scene: &Scene, id: &str) -> Result<()> {
    let forked = scene.ran(&["fork", id])?.succeeded()?;
    let branch = forked.stdout.trim();
    let tried = told(scene, &forked, branch);
    scene.run(&["stop", branch])?;
    tried?;
    let object = scene.run(&["fork", id, "--json"])?;
    let object: Value = serde_json::from_str(&object).map_err(|error| format!("{error}: {object}"))?;
    let branch = object["sandbox_id"].as_str().unwrap_or_default();
    scene.run(&["stop", branch])?;
    let engine = scene.daemon.flavour().as_str();
    let stop = format!("{engine} stop sandpen-{branch}");
    if object["reach"]["stop"] == json!(stop) {
        Ok(())
    } else {
        Err(format!("it does not say {stop:?}: {object}").into())
    }
}

/// The command to enter it, with another program than a shell for people.
fn told(scene: &Scene, made: &Ran, id: &str) -> Result<()> {
    let engine = scene.daemon.flavour().as_str();
    let name = format!("sandpen-{id}");
    let enter = format!("exec -it --user 1000:1000 --workdir /workspace {name}");
    for words in [format!("{engine} {enter} sh"), format!("{engine} stop {name}"), format!("{engine} start {name}")] {
        if !made.stderr.contains(&words) {
            return Err(made.told(&format!("it does not say {words:?}")));
        }
    }
    let enter = enter.replace(" -it ", " ");
    let script = ["sh", "-c", "echo kept > note; id -u"];
    let said = scene.daemon.run(&enter.split(' ').chain(script).collect::<Vec<_>>())?;
    if said != "1000\n" {
        return Err(format!("inside it is {said:?}").into());
    }
    scene.daemon.run(&["stop", &name])?;
    scene.daemon.run(&["start", &name])?;
    let kept = scene.run(&["exec", id, "--", "cat", "note"])?;
    if kept == "kept\n" { Ok(()) } else { Err(format!("after a stop and a start it has {kept:?}").into()) }
}
