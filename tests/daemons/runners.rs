//! Images that bring a language along.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use sandpen_tests::{Result, images};
use serde_json::json;

use crate::scene::Scene;

/// Those that are shipped, on a base that needs no network; and a language that nothing else knows.
pub(crate) fn by_label(scene: &mut Scene) -> Result<()> {
    let mut server = scene.server("runners")?;
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runners");
    build(scene, &shipped.join("python"), "runner-python:test")?;
    let code = "import os, sys; print(6 * 7, os.getuid() == 0, sys.argv[1:], os.getcwd())";
    scene.expect(&["run", "python", code, "--", "a", "b c"], "42 False ['a', 'b c'] /workspace\n")?;
    let ran = server.good("run_code", &json!({"language": "python", "code": "print('served')"}))?;
    if ran["stdout"] != "served\n" {
        return Err(format!("an image that came while a server ran is not taken: {ran}").into());
    }
    build(scene, &shipped.join("javascript"), "runner-javascript:test")?;
    let ran =
        server.good("run_code", &json!({"language": "js", "code": "console.log([1, 2].map(x => 2 * x).join())"}))?;
    if ran["stdout"] != "2,4\n" {
        return Err(format!("one that came later is not taken: {ran}").into());
    }
    let own = scene.path().join("shout");
    std::fs::create_dir_all(&own)?;
    let dockerfile = "ARG BASE\nFROM ${BASE}\nLABEL sandbox.runner=true sandbox.language=shout\n\
                      ENTRYPOINT [\"tr\", \"a-z\", \"A-Z\"]\n";
    std::fs::write(own.join("Dockerfile"), dockerfile)?;
    build(scene, &own, "runner-shout:test")?;
    scene.expect(&["run", "shout", "loud"], "LOUD")?;
    // Whoever names an image means that image.
    scene.expect(&["run", "python", "--image", images::DEBIAN, "print(__file__[:11])"], "/workspace/\n")?;
    // It has sandboxes made ahead, which hold the images.
    server.close();
    server.end_within(Duration::from_secs(30))?;
    scene.settles_to(&BTreeSet::new(), Duration::from_secs(30))?;
    for name in ["runner-python:test", "runner-javascript:test", "runner-shout:test"] {
        scene.daemon.run(&["rmi", name])?;
    }
    Ok(())
}

/// A label alone, without what it promises, is no runner, and no trouble for those that are.
pub(crate) fn of_others(scene: &mut Scene) -> Result<()> {
    let own = scene.path().join("others");
    std::fs::create_dir_all(&own)?;
    let dockerfile = "ARG BASE\nFROM ${BASE}\nLABEL sandbox.runner=true\nENTRYPOINT [\"cat\"]\n";
    std::fs::write(own.join("Dockerfile"), dockerfile)?;
    build(scene, &own, "others:test")?;
    let ran = scene.expect(&["run", "bash", "--image", images::DEBIAN, "echo plain"], "plain\n");
    scene.daemon.run(&["rmi", "others:test"])?;
    ran
}

fn build(scene: &Scene, context: &Path, name: &str) -> Result<()> {
    let base = format!("BASE={}", images::DEBIAN);
    let context = context.to_string_lossy();
    let arguments = ["build", "--quiet", "--network", "none", "--build-arg", &base, "--build-arg", "PACKAGES="];
    scene.daemon.run(&[&arguments[..], &["--tag", name, &context]].concat()).map(drop)
}
