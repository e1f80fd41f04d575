//! Dockerfiles, built by Docker and by us: the same trees, and the same word about how to run them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sandpen_tests::program::run;
use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};

use crate::Stage;
use crate::product::Product;
use crate::tree::expect;

/// What an image says that a build decides.
const SAID: &[&str] =
    &["User", "Env", "Cmd", "Entrypoint", "WorkingDir", "Labels", "ExposedPorts", "Volumes", "Shell", "StopSignal"];

/// What they start from, if they ask.
const BASE: &str = "BASE=debian:test";

/// What they install, if they ask: nothing, because nothing can be fetched.
const PACKAGES: &str = "PACKAGES=";

const ARGUMENTS: [&str; 4] = ["--build-arg", BASE, "--build-arg", PACKAGES];

/// Every Dockerfile of this repository, in its own directory.
pub(crate) fn all_of_the_repository(stage: &Stage) -> Result<()> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the tests lie nowhere")?;
    let mut found = Vec::new();
    search(top, &mut found)?;
    // The product's own has a context that is made for it; the tests of daemons build and run it.
    found.retain(|directory| directory != top);
    found.sort();
    if found.len() < 8 {
        return Err(format!("only {} Dockerfiles were found", found.len()).into());
    }
    let product = with_debian(stage)?;
    let mut wrong = Vec::new();
    for (number, directory) in found.iter().enumerate() {
        let name = format!("build-{number}");
        let context = product.path().join(&name);
        let compared = prepare(&product, directory, &context).and_then(|()| compare(stage, &product, &context, &name));
        if let Err(trouble) = compared {
            wrong.push(format!("{}: {trouble}", directory.display()));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// `export` writes a Dockerfile, from which Docker makes what `save` keeps.
pub(crate) fn exported(stage: &Stage) -> Result<()> {
    let product = with_debian(stage)?;
    let id = product.run(&["create", "--image", "debian:test", "--env", "GREETING=hello world"])?;
    let given = product.file("given");
    fs::write(&given, "b\na\n")?;
    product.run(&["cp", &given, &format!("{}:/workspace/given", id.trim())])?;
    let change = "mkdir -m 750 made && sort given >made/sorted && echo \"$GREETING\" >~/note && ln -s made/sorted link";
    product.run(&["exec", id.trim(), "--", "sh", "-c", change])?;
    product.run(&["exec", id.trim(), "--", "rm", "given"])?;
    let (directory, saved) = (product.path().join("exported"), product.file("saved.tar"));
    // Fails when what is built is not the same.
    product.run(&["export", id.trim(), &directory.to_string_lossy()])?;
    product.run(&["save", id.trim(), "exported"])?;
    product.run(&["stop", id.trim()])?;
    product.run(&["image", "tag", "saved:exported", "exported-ours:1"])?;
    product.run(&["image", "export", "exported-ours:1", &saved])?;
    stage.docker.run(&["load", "--input", &saved])?;
    theirs(stage, &directory, "exported-theirs:1")?;
    let (docker, own) = (stage.tree("exported-theirs:1")?, stage.tree("exported-ours:1")?);
    if !docker.has("workspace/made/sorted") || docker.has("workspace/given") {
        return Err("Docker has not built what was exported".into());
    }
    expect(&docker.differences(&own), &[])
}

/// A Dockerfile that means something else is seen to.
pub(crate) fn another_build_is_seen(stage: &Stage) -> Result<()> {
    let product = with_debian(stage)?;
    let directory = product.path().join("context");
    fs::create_dir(&directory)?;
    for (line, expected) in [("RUN chmod 700 /file", "file:"), ("RUN rm /file", "file is only in the second")] {
        fs::write(directory.join("Dockerfile"), "FROM debian:test\nRUN echo x >/file\n")?;
        ours(stage, &product, &directory, "other-ours:1")?;
        fs::write(directory.join("Dockerfile"), format!("FROM debian:test\nRUN echo x >/file\n{line}\n"))?;
        theirs(stage, &directory, "other-theirs:1")?;
        let differences = stage.tree("other-theirs:1")?.differences(&stage.tree("other-ours:1")?);
        if differences.len() != 1 || !differences[0].starts_with(expected) {
            return Err(format!("{line}: {differences:?}").into());
        }
    }
    Ok(())
}

/// With the image that the Dockerfiles start from.
pub(crate) fn with_debian(stage: &Stage) -> Result<Product> {
    let product = Product::new()?;
    product.run(&["image", "import", &stage.debian.to_string_lossy(), "debian:test"])?;
    Ok(product)
}

/// A copy of a context, with what Git does not keep of it.
fn prepare(product: &Product, directory: &Path, copy: &Path) -> Result<()> {
    let limit = Duration::from_secs(60);
    run(Command::new("cp").arg("--archive").arg(directory).arg(copy), product.path(), limit)?.succeeded()?;
    if copy.join("prepare").is_file() {
        run(Command::new("./prepare").current_dir(copy), product.path(), limit)?.succeeded()?;
    }
    Ok(())
}

fn compare(stage: &Stage, product: &Product, directory: &Path, name: &str) -> Result<()> {
    let (docker, own) = (format!("{name}-theirs:1"), format!("{name}-ours:1"));
    theirs(stage, directory, &docker)?;
    ours(stage, product, directory, &own)?;
    let differences = stage.tree(&docker)?.differences(&stage.tree(&own)?);
    expect(&differences, &[])?;
    let (docker, own) = (said(stage, &docker)?, said(stage, &own)?);
    if docker == own { Ok(()) } else { Err(format!("{docker} is not {own}").into()) }
}

/// Built by Docker, without a network as our builds are.
pub(crate) fn theirs(stage: &Stage, directory: &Path, name: &str) -> Result<()> {
    let directory = directory.to_string_lossy();
    stage
        .docker
        .run(&[&["build", "--quiet", "--network", "none"], &ARGUMENTS[..], &["--tag", name, &directory]].concat())
        .map(drop)
}

/// Built by us, and given to Docker.
fn ours(stage: &Stage, product: &Product, directory: &Path, name: &str) -> Result<()> {
    let directory = directory.to_string_lossy();
    product.run(&[&["image", "build"], &ARGUMENTS[..], &["--tag", name, &directory]].concat())?;
    let exported = product.file("built.tar");
    product.run(&["image", "export", name, &exported])?;
    stage.docker.run(&["load", "--input", &exported])?;
    Ok(fs::remove_file(exported)?)
}

/// What of its configuration is not left empty.
fn said(stage: &Stage, image: &str) -> Result<Value> {
    let text = stage.docker.run(&["image", "inspect", image])?;
    let all: Value = serde_json::from_str(&text).map_err(|error| Trouble(format!("docker printed {text}: {error}")))?;
    // The root is where programs start when nothing is said, and some builders say it.
    let is_said = |value: &&Value| ![json!(null), json!(""), json!("/"), json!([]), json!({})].contains(value);
    let config = &all[0]["Config"];
    Ok(SAID.iter().filter_map(|key| config.get(key).filter(is_said).map(|value| (*key, value.clone()))).collect())
}

fn search(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_dir() && name != "target" && name != ".git" {
            search(&entry.path(), found)?;
        } else if name == "Dockerfile" {
            found.push(directory.to_owned());
        }
    }
    Ok(())
}
