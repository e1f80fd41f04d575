//! Images that go to and fro.

use std::fs;
use std::process::Command;
use std::time::Duration;

use sandpen_tests::program::run;
use sandpen_tests::{Result, Trouble};
use serde_json::Value;

use crate::Stage;
use crate::builds::with_debian;
use crate::product::Product;
use crate::tree::expect;

/// All that an image can say about how to run something, and files that are not everybody's.
const DOCKERFILE: &str = r#"FROM debian:test
RUN mkdir -p /srv/app/data && echo secret >/srv/app/key && chmod 600 /srv/app/key && chown -R 1234:5678 /srv/app
RUN ln -s data /srv/app/link && ln /srv/app/key /srv/app/same && rm -r /usr/share/bug* && chmod 1775 /srv/app/data && chmod 2755 /srv/app
ENV GREETING="from Docker" PATH=/srv/app:/usr/bin:/bin
LABEL kind=test
USER 1234:5678
WORKDIR /srv/app/data
CMD ["python3", "-c", "print(6 * 7)"]
"#;

/// Prints what of all that a program sees.
const LOOK: &str = "import os; print(os.getuid(), os.environ['GREETING'], open('/srv/app/key').read().strip(), \
                    os.readlink('/srv/app/link'), oct(os.stat('/srv/app/data').st_mode), os.stat('/srv/app/same').st_nlink)";
const SEEN: &str = "1234 from Docker secret data 0o41775 2\n";

/// Builds an image by Docker from a Dockerfile and the program.
fn build(stage: &Stage, product: &Product, name: &str, dockerfile: &str) -> Result<()> {
    let context = product.path().join("context");
    fs::create_dir(&context)?;
    fs::copy(&stage.program, context.join("program"))?;
    fs::write(context.join("Dockerfile"), dockerfile)?;
    let context = context.to_string_lossy();
    stage.docker.run(&["build", "--quiet", "--network", "none", "--tag", name, &context]).map(drop)
}

/// `docker save` → `image import` → run → `image export` → `docker load`.
pub(crate) fn saved_by_docker(stage: &Stage) -> Result<()> {
    let product = Product::new()?;
    build(stage, &product, "kept:1", DOCKERFILE)?;
    let saved = product.file("saved.tar");
    stage.docker.run(&["save", "--output", &saved, "kept:1"])?;
    product.run(&["image", "import", &saved])?;
    expect_text(&product.run(&["run", "python", "--image", "kept:1", "--pull", "never", LOOK])?, SEEN)?;
    expect_text(&stage.docker.run(&["run", "--rm", "--network", "none", "kept:1", "python3", "-c", LOOK])?, SEEN)?;

    product.run(&["image", "tag", "kept:1", "back:1"])?;
    let exported = product.file("exported.tar");
    product.run(&["image", "export", "back:1", &exported])?;
    let config = inspect(&product, &format!("oci-archive:{exported}"))?;
    expect_text(&config["config"]["User"], "1234:5678")?;
    expect_text(&config["config"]["WorkingDir"], "/srv/app/data")?;
    expect_text(&config["config"]["Labels"]["kind"], "test")?;
    stage.docker.run(&["load", "--input", &exported])?;
    expect_text(&stage.docker.run(&["run", "--rm", "--network", "none", "back:1"])?, "42\n")?;
    same_trees(stage, "kept:1", "back:1")
}

/// A sandbox from an image of Docker's → `save` → `image export` → `skopeo inspect`, `docker load`, `docker run`.
pub(crate) fn saved_by_us(stage: &Stage) -> Result<()> {
    let product = with_debian(stage)?;
    let id = product.run(&["create", "--image", "debian:test"])?;
    let change = "mkdir -m 750 /workspace/made && echo kept >/workspace/made/file && chmod 640 /workspace/made/file && \
                  ln -s made/file /workspace/link && ln /workspace/made/file /workspace/same && echo mine >~/note";
    product.run(&["exec", id.trim(), "--", "sh", "-c", change])?;
    product.run(&["save", id.trim(), "lab"])?;
    product.run(&["stop", id.trim()])?;
    let look = "cat ~/note && cat /workspace/link && stat --format='%a %u %g %h' /workspace/made /workspace/made/file";
    let seen = "mine\nkept\n750 1000 1000 2\n640 1000 1000 2\n";
    expect_text(&product.run(&["run", "bash", "--image", "saved:lab", look])?, seen)?;

    product.run(&["image", "tag", "saved:lab", "lab:1"])?;
    let exported = product.file("exported.tar");
    product.run(&["image", "export", "lab:1", &exported])?;
    let config = inspect(&product, &format!("oci-archive:{exported}"))?;
    if config["rootfs"]["diff_ids"].as_array().is_none_or(|layers| layers.len() != 2) {
        return Err(format!("it has not one layer more: {config}").into());
    }
    stage.docker.run(&["load", "--input", &exported])?;
    let look = look.replace('~', "/home/sandbox");
    expect_text(&stage.docker.run(&["run", "--rm", "--network", "none", "lab:1", "sh", "-c", &look])?, seen)?;
    let differences = stage.tree("debian:test")?.differences(&stage.tree("lab:1")?);
    let is_ours = |line: &&String| ["workspace", "home/sandbox", "tmp"].iter().any(|place| line.starts_with(place));
    let (own, others): (Vec<_>, Vec<_>) = differences.into_iter().partition(|line| is_ours(&line));
    if own.len() < 6 {
        return Err(format!("little is different: {own:?}").into());
    }
    expect(&others, &[])
}

pub(crate) fn from_scratch(stage: &Stage) -> Result<()> {
    let product = Product::new()?;
    build(stage, &product, "scratch:1", "FROM scratch\nCOPY program /bin/\nENTRYPOINT [\"/bin/program\"]\n")?;
    let saved = product.file("saved.tar");
    stage.docker.run(&["save", "--output", &saved, "scratch:1"])?;
    product.run(&["image", "import", &saved, "without-a-shell:1"])?;
    expect_text(&product.run_in("without-a-shell:1", &["/bin/program"])?, "hello\n")?;
    let exported = product.file("exported.tar");
    product.run(&["image", "export", "without-a-shell:1", &exported])?;
    stage.docker.run(&["load", "--input", &exported])?;
    expect_text(&stage.docker.run(&["run", "--rm", "--network", "none", "without-a-shell:1"])?, "hello\n")?;
    same_trees(stage, "scratch:1", "without-a-shell:1")
}

/// `docker push` → `image pull` → run, and `image push` → `docker pull`.
pub(crate) fn by_registry(stage: &Stage) -> Result<()> {
    let product = Product::new()?;
    let host = &*stage.registry.host;
    let (theirs, ours) = (format!("{host}/theirs:1"), format!("{host}/ours:1"));
    build(stage, &product, &theirs, DOCKERFILE)?;
    stage.docker.run(&["push", "--quiet", &theirs])?;
    product.run(&["image", "--insecure-registry", host, "pull", &theirs])?;
    expect_text(&product.run(&["run", "python", "--image", &theirs, "--pull", "never", LOOK])?, SEEN)?;

    product.run(&["image", "--insecure-registry", host, "push", &theirs, &ours])?;
    stage.docker.run(&["pull", "--quiet", &ours])?;
    expect_text(&stage.docker.run(&["run", "--rm", "--network", "none", &ours])?, "42\n")?;
    same_trees(stage, &theirs, &ours)
}

pub(crate) fn by_skopeo(stage: &Stage) -> Result<()> {
    let product = Product::new()?;
    let host = &*stage.registry.host;
    let layout = product.file("layout");
    product.run(&["image", "import", &stage.debian.to_string_lossy(), "debian:tree"])?;
    product.run(&["image", "export", "--directory", "debian:tree", &layout])?;
    let target = format!("docker://{host}/debian:1");
    skopeo(&product, &["copy", "--dest-tls-verify=false", &format!("oci:{layout}"), &target])?;
    let other = Product::new()?;
    let image = format!("{host}/debian:1");
    let asked = ["--image", &image, "--insecure-registry", host];
    let python = other.run(&[&["run", "python", "print(6 * 7)"], &asked[..]].concat())?;
    expect_text(&python, "42\n")?;
    let node = other.run(&[&["run", "javascript", "console.log(6 * 7)"], &asked[..]].concat())?;
    expect_text(&node, "42\n")
}

fn skopeo(product: &Product, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("skopeo");
    command.arg("--insecure-policy").args(arguments).env_clear().env("HOME", product.path().join("home"));
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TMPDIR", product.path());
    run(&mut command, product.path(), Duration::from_secs(180))?.succeeded().map(|ran| ran.stdout)
}

/// The configuration of an image as skopeo reads it.
fn inspect(product: &Product, source: &str) -> Result<Value> {
    let text = skopeo(product, &["inspect", "--config", source])?;
    serde_json::from_str(&text).map_err(|error| Trouble(format!("skopeo printed {text}: {error}")))
}

fn same_trees(stage: &Stage, one: &str, other: &str) -> Result<()> {
    let (one, other) = (stage.tree(one)?, stage.tree(other)?);
    if !one.has("bin") && !one.has("bin/program") {
        return Err("a tree is empty".into());
    }
    expect(&one.differences(&other), &[])
}

fn expect_text<T: PartialEq<str> + std::fmt::Debug>(found: &T, wanted: &str) -> Result<()> {
    if *found == *wanted { Ok(()) } else { Err(format!("{found:?} is not {wanted:?}").into()) }
}
