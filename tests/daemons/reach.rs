//! Sandboxes that stay, reached by the daemon's own tools.

use std::process::Command;

use sandpen_tests::daemon::Flavour;
use sandpen_tests::program::{Ran, run};
use sandpen_tests::{Result, images};
use serde_json::{Value, json};

use crate::scene::{LIMIT, Scene};

/// Both say how, and what they say works.
pub(crate) fn of_a_fork(scene: &mut Scene) -> Result<()> {
    let created = scene.ran(&["create", "--image", images::DEBIAN])?.succeeded()?;
    let id = created.stdout.trim();
    let tried = told(scene, &created, id).and_then(|()| of_branches(scene, id));
    scene.run(&["stop", id])?;
    tried
}

/// The printed command that removes one, volume and all.
pub(crate) fn to_its_end(scene: &mut Scene) -> Result<()> {
    let before = scene.holdings()?;
    let created = scene.ran(&["create", "--image", images::DEBIAN])?.succeeded()?;
    typed(scene, &line(&created, "remove")?)?;
    let after = scene.holdings()?;
    if (&after.containers, &after.volumes) == (&before.containers, &before.volumes) {
        Ok(())
    } else {
        Err(format!("instead of {before:?} there is {after:?}").into())
    }
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
    let stop = format!("{} stop sandpen-{branch}", client(scene));
    if object["reach"]["stop"] == json!(stop) {
        Ok(())
    } else {
        Err(format!("it does not say {stop:?}: {object}").into())
    }
}

/// The commands, as whoever reads them types them; the one to enter it with something to do there, and without a terminal.
fn told(scene: &Scene, made: &Ran, id: &str) -> Result<()> {
    let (client, name) = (client(scene), format!("sandpen-{id}"));
    let enter = line(made, "enter")?;
    let wanted = format!("{client} exec -it --user 1000:1000 --workdir /workspace {name} sh");
    if enter != wanted {
        return Err(made.told(&format!("it does not say {wanted:?}")));
    }
    let said = typed(scene, &format!("{} -c 'echo kept > note; id -u'", enter.replace(" -it ", " ")))?;
    if said != "1000\n" {
        return Err(format!("inside it is {said:?}").into());
    }
    for word in ["stop", "start"] {
        typed(scene, &line(made, word)?)?;
    }
    let kept = scene.run(&["exec", id, "--", "cat", "note"])?;
    if kept == "kept\n" { Ok(()) } else { Err(format!("after a stop and a start it has {kept:?}").into()) }
}

/// The daemon's own client, told where this daemon is.
fn client(scene: &Scene) -> String {
    let host = scene.daemon.host();
    match scene.daemon.flavour() {
        Flavour::Docker => format!("docker --host {host}"),
        Flavour::Podman => format!("podman --remote --url {host}"),
    }
}

/// What was printed after this word.
fn line(made: &Ran, word: &str) -> Result<String> {
    let found = made.stderr.lines().find_map(|line| line.trim_start().strip_prefix(word)?.strip_prefix(' '));
    Ok(found.ok_or_else(|| made.told(&format!("it says no way to {word}")))?.trim().to_owned())
}

/// In a shell whose environment says nothing of a daemon.
fn typed(scene: &Scene, words: &str) -> Result<String> {
    let mut shell = Command::new("sh");
    let home = scene.path().join("home");
    shell.args(["-c", words]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", home);
    let ran = run(&mut shell, scene.path(), LIMIT)?.succeeded();
    ran.map(|ran| ran.stdout).map_err(|trouble| format!("{words}: {trouble}").into())
}
