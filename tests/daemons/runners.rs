//! Images that bring a language along.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpen_tests::daemon::Flavour;
use sandpen_tests::{Result, images};
use serde_json::json;

use crate::scene::Scene;

/// Those that are shipped, on a base that needs no network; and a language that nothing else knows.
pub(crate) fn by_label(scene: &mut Scene) -> Result<()> {
    let mut server = scene.server("runners")?;
    let [python, javascript, shout] = ["python", "javascript", "shout"].map(|language| here(scene, language));
    build(scene, &shipped("python"), &python)?;
    let code = "import os, sys; print(6 * 7, os.getuid() == 0, sys.argv[1:], os.getcwd())";
    scene.expect(&["run", "python", code, "--", "a", "b c"], "42 False ['a', 'b c'] /workspace\n")?;
    // By whichever of its names, its own entry point runs the code.
    let written_out = match scene.daemon.flavour() {
        Flavour::Docker => "docker.io/library/runner-python:test",
        Flavour::Podman => "localhost/runner-python:test",
    };
    for name in ["runner-python:test", written_out] {
        scene.expect(&["run", "python", "--image", name, "print(__file__)"], "<stdin>\n")?;
    }
    let ran = server.good("run_code", &json!({"language": "python", "code": "print('served')"}))?;
    if ran["stdout"] != "served\n" {
        return Err(format!("an image that came while a server ran is not taken: {ran}").into());
    }
    build(scene, &shipped("javascript"), &javascript)?;
    let ran =
        server.good("run_code", &json!({"language": "js", "code": "console.log([1, 2].map(x => 2 * x).join())"}))?;
    if ran["stdout"] != "2,4\n" {
        return Err(format!("one that came later is not taken: {ran}").into());
    }
    let own = scene.path().join("shout");
    fs::create_dir_all(&own)?;
    let dockerfile = "ARG BASE\nFROM ${BASE}\nLABEL sandbox.runner=true sandbox.language=shout\n\
                      ENTRYPOINT [\"tr\", \"a-z\", \"A-Z\"]\n";
    fs::write(own.join("Dockerfile"), dockerfile)?;
    build(scene, &own, &shout)?;
    scene.expect(&["run", "shout", "loud"], "LOUD")?;
    let ran = server.good("run_code", &json!({"language": "shout", "code": "served"}))?;
    let asked = server.request("tools/list", &json!({}))?;
    let listed = server.answer(asked)?.to_string();
    if ran["stdout"] != "SERVED" || !listed.contains("\"shout\"") {
        return Err(format!("a language that came while a server ran is not taken: {ran}").into());
    }
    // Whoever names an image means that image.
    scene.expect(&["run", "python", "--image", images::DEBIAN, "print(__file__[:11])"], "/workspace/\n")?;
    // It has sandboxes made ahead, which hold the images.
    server.close();
    server.end_within(Duration::from_secs(30))?;
    for name in [&python, &javascript, &shout] {
        scene.remove_image(name)?;
    }
    Ok(())
}

/// What is shipped runs by Bun. In its place is a program that is called as it is, and says that it was.
const BUN: &str = r#"#!/bin/sh
[ "$1 $2" = "run -" ] || exit 64
shift 2
IN_PLACE_OF=bun exec node - "$@"
"#;

pub(crate) fn of_typescript(scene: &mut Scene) -> Result<()> {
    let own = scene.path().join("bun");
    fs::create_dir_all(&own)?;
    fs::write(own.join("bun"), BUN)?;
    fs::set_permissions(own.join("bun"), fs::Permissions::from_mode(0o755))?;
    fs::write(own.join("Dockerfile"), "ARG BASE\nFROM ${BASE}\nCOPY bun /usr/local/bin/bun\n")?;
    let (bun, typescript) = (here(scene, "bun"), here(scene, "typescript"));
    build(scene, &own, &bun)?;
    build_on(scene, &bun, &shipped("typescript"), &typescript)?;
    let code = "console.log(process.env.IN_PLACE_OF, process.argv.slice(2).join(), process.cwd(), process.getuid())";
    let ran = scene.expect(&["run", "typescript", code, "--", "a", "b c"], "bun a,b c /workspace 1000\n");
    let mut server = scene.server("runners")?;
    let served = server.good("run_code", &json!({"language": "typescript", "code": "console.log('served')"}));
    server.close();
    server.end_within(Duration::from_secs(30))?;
    let found = scene.run(&["doctor", "--json"]);
    for name in [&typescript, &bun] {
        scene.remove_image(name)?;
    }
    ran?;
    let (served, found) = (served?, found?);
    if served["stdout"] == "served\n" && found.contains("runner-typescript:test") {
        Ok(())
    } else {
        Err(format!("a server says {served}, and the doctor found {found}").into())
    }
}

/// Whoever may ask for it has it fetched, and its labels are not believed for that. The operator's word is.
pub(crate) fn from_a_registry(scene: &mut Scene) -> Result<()> {
    let own = scene.path().join("fetched");
    fs::create_dir_all(&own)?;
    let dockerfile = "ARG BASE\nFROM ${BASE}\nLABEL sandbox.runner=true sandbox.language=bash\n\
                      ENTRYPOINT [\"echo\", \"taken\"]\n";
    fs::write(own.join("Dockerfile"), dockerfile)?;
    let name = format!("{}/fetched:1", scene.registry.host);
    build(scene, &own, &name)?;
    scene.daemon.run(&["push", "--quiet", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    let id = scene.run(&["create", "--image", &name])?;
    scene.run(&["stop", id.trim()])?;
    // The image that Bash has otherwise is in a registry that is not reached.
    let plain = scene.ran(&["run", "--pull", "never", "bash", "echo plain"])?;
    let found = scene.run(&["doctor", "--json"]);
    let pattern = format!("{}/*", scene.registry.host);
    let named = scene.expect(&["run", "--runner-image", &pattern, "bash", "echo plain"], "taken\n");
    let mine = here(scene, "mine");
    scene.daemon.run(&["tag", &name, &mine])?;
    let tagged = scene.expect(&["run", "bash", "echo plain"], "taken\n");
    for name in [&name, &mine] {
        scene.remove_image(name)?;
    }
    if plain.status.code() != Some(125) || !plain.stderr.contains("library/bash") {
        return Err(plain.told("a language without an image"));
    }
    named?;
    tagged?;
    let (found, reason) = (found?, format!("{name} is no runner: it is from a registry"));
    if found.contains(&reason) { Ok(()) } else { Err(format!("the doctor found {found}").into()) }
}

/// A label alone, without what it promises, is no runner, and no trouble for those that are.
pub(crate) fn of_others(scene: &mut Scene) -> Result<()> {
    let own = scene.path().join("others");
    fs::create_dir_all(&own)?;
    let dockerfile = "ARG BASE\nFROM ${BASE}\nLABEL sandbox.runner=true\nENTRYPOINT [\"cat\"]\n";
    fs::write(own.join("Dockerfile"), dockerfile)?;
    let others = here(scene, "others");
    build(scene, &own, &others)?;
    let ran = scene.expect(&["run", "bash", "--image", images::DEBIAN, "echo plain"], "plain\n");
    let found = scene.run(&["doctor", "--json"]);
    scene.remove_image(&others)?;
    ran?;
    let found = found?;
    if found.contains("runner-others:test is no runner") {
        Ok(())
    } else {
        Err(format!("the doctor found {found}").into())
    }
}

/// The context of one that is shipped.
pub(crate) fn shipped(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../runners").join(language)
}

/// A name that means an image of this host. Docker's client, which asks Podman here, would write out another.
pub(crate) fn here(scene: &Scene, language: &str) -> String {
    match scene.daemon.flavour() {
        Flavour::Docker => format!("runner-{language}:test"),
        Flavour::Podman => format!("localhost/runner-{language}:test"),
    }
}

pub(crate) fn build(scene: &Scene, context: &Path, name: &str) -> Result<()> {
    build_on(scene, images::DEBIAN, context, name)
}

/// Without its packages, which are in registries.
fn build_on(scene: &Scene, base: &str, context: &Path, name: &str) -> Result<()> {
    let base = format!("BASE={base}");
    let context = context.to_string_lossy();
    let arguments = ["build", "--quiet", "--network", "none", "--build-arg", &base, "--build-arg", "PACKAGES="];
    scene.daemon.run(&[&arguments[..], &["--tag", name, &context]].concat()).map(drop)
}
