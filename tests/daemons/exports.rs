//! Exports of sandboxes at a daemon, rebuilt by that daemon's own tools and run.

use sandpen_tests::{Result, images};
use serde_json::{Value, json};

use crate::scene::Scene;

const MADE: &str = "mkdir -p data/empty; echo one > data/a; printf x > tool; chmod 755 tool; ln -s data/a link; \
                    chmod 600 data/a; echo profile > ~/.profile; echo gone > /tmp/gone";

/// What is in it, as both sandboxes and containers of the image tell it.
const TOLD: &str = "cd /workspace; find . ! -name . -printf '%p %y %m %U:%G %l\\n' | sort; cat data/a ~/.profile; \
                    stat --format '%n %u:%g' /workspace \"$HOME\"; ls /tmp; pwd; id -u";

pub(crate) fn rebuilt(scene: &mut Scene) -> Result<()> {
    for image in [images::DEBIAN, images::OTHER_USER] {
        let id = scene.run(&["create", "--image", image, "--env", "COLOUR=a \"b\" $c"])?;
        let done = of_one(scene, image, id.trim());
        scene.run(&["stop", id.trim()])?;
        done?;
    }
    Ok(())
}

fn of_one(scene: &Scene, image: &str, id: &str) -> Result<()> {
    exec(scene, id, MADE)?;
    let seen = exec(scene, id, &format!("rm /tmp/gone; {TOLD}; echo \"$COLOUR\""))?;
    let place = scene.path().join(format!("exported-{}", image.replace(':', "-")));
    let report = scene.run(&["export", id, &place.to_string_lossy(), "--json"])?;
    let report: Value = serde_json::from_str(&report).map_err(|error| error.to_string())?;
    if report["result"] != json!("reproduced") || !report["base"].as_str().is_some_and(|base| base.contains(image)) {
        return Err(format!("the export of {image} is {report}").into());
    }
    let built = format!("exported-{image}");
    let dockerfile = std::fs::read_to_string(place.join("Dockerfile"))?;
    if dockerfile.lines().any(|line| line.starts_with("RUN ")) {
        return Err(format!("commands are done again outside of sandboxes:\n{dockerfile}").into());
    }
    scene.daemon.run(&["build", "--quiet", "--network", "none", "--tag", &built, &place.to_string_lossy()])?;
    let script = format!("{TOLD}; echo \"$COLOUR\"");
    let told = scene.daemon.run(&["run", "--rm", "--network", "none", &built, "sh", "-c", &script]);
    scene.daemon.run(&["rmi", &built])?;
    let told = told?;
    if told != seen {
        return Err(format!("the image of the export says\n{told}instead of\n{seen}for\n{dockerfile}").into());
    }
    nothing_is_left(scene)
}

/// What root does to its system before a save, in a sandbox of what was saved, and what is then there.
const BEFORE: &str = "rm /etc/issue /etc/debian_version; mkdir -p /opt/tool; cd /opt/tool; echo one > one; echo gone > gone; \
                      echo saved > /etc/saved; echo first > /workspace/note; ln -s one link";
const AFTER: &str = "rm /opt/tool/gone /etc/saved; echo again > /etc/debian_version; echo two > /opt/tool/two; \
                     echo second >> /workspace/note";
const SYSTEM: &str =
    "cd /opt/tool; ls; cat link two /etc/debian_version /workspace/note; ls /etc/issue /etc/saved 2> /dev/null; id -u";
const SYSTEM_TOLD: &str = "link\none\ntwo\none\ntwo\nagain\nfirst\nsecond\n0\n";

/// Over the image that the first sandbox began with, which others can have, and not over the saved one.
pub(crate) fn of_what_was_saved(scene: &mut Scene) -> Result<()> {
    let create = |image: &str| scene.run(&["create", "--image", image, "--container-user", "image"]);
    let first = create(images::DEBIAN)?;
    exec(scene, first.trim(), BEFORE)?;
    scene.run(&["save", first.trim(), "halfway"])?;
    scene.run(&["stop", first.trim()])?;
    let second = create("saved:halfway")?;
    exec(scene, second.trim(), AFTER)?;
    // A branch stands on an image of its own, and is no other for that.
    let branch = scene.run(&["fork", second.trim()])?;
    for id in [second.trim(), branch.trim()] {
        let seen = exec(scene, id, SYSTEM)?;
        let place = scene.path().join(format!("exported-{id}"));
        let report = scene.run(&["export", id, &place.to_string_lossy(), "--json"])?;
        let report: Value = serde_json::from_str(&report).map_err(|error| error.to_string())?;
        // Something was removed, which is a command, and those are run by whoever builds it and not by us.
        if report["result"] != json!("not_checked") || report["base"] != json!(images::DEBIAN) {
            return Err(format!("the export is {report}").into());
        }
        let built = format!("exported-{id}:1");
        scene.daemon.run(&["build", "--quiet", "--network", "none", "--tag", &built, &place.to_string_lossy()])?;
        let told = scene.daemon.run(&["run", "--rm", "--network", "none", &built, "sh", "-c", SYSTEM]);
        scene.daemon.run(&["rmi", &built])?;
        scene.run(&["stop", id])?;
        let told = told?;
        if told != seen || told != SYSTEM_TOLD {
            return Err(format!("the image of the export says\n{told}and the sandbox\n{seen}").into());
        }
    }
    let listed = scene.daemon.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"])?;
    for saved in listed.lines().filter(|name| name.contains("sandpen.invalid")) {
        scene.daemon.run(&["rmi", saved])?;
    }
    nothing_is_left(scene)
}

fn exec(scene: &Scene, id: &str, script: &str) -> Result<String> {
    scene.run(&["exec", id, "--", "sh", "-c", &format!("cd /workspace; {script}")])
}

fn nothing_is_left(scene: &Scene) -> Result<()> {
    let listed = scene.daemon.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"])?;
    match listed.lines().find(|name| name.contains("sandpen.invalid")) {
        Some(left) => Err(format!("{left} was left").into()),
        None => Ok(()),
    }
}
