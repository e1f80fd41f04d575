//! The images that are shipped, with all that they bring along. What they are made of comes from other people's registries, as
//! far as these answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sandpen_tests::program::run;
use sandpen_tests::{Result, Trouble, images};

use crate::runners::{here, shipped};
use crate::scene::Scene;

/// For some hundred megabytes.
const LIMIT: Duration = Duration::from_secs(900);

/// Where Debian keeps whom it believes.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

pub(crate) fn of_python(scene: &mut Scene) -> Result<()> {
    let place = empty(scene, "with-pip")?;
    let mut probe = Command::new("python3");
    probe.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--retries",
        "0",
        "--timeout",
        "15",
    ]);
    probe.args(["--dest", &place.join("probe").to_string_lossy(), "requests"]);
    if let Some(why) = refusal(&mut probe, &place) {
        return scene.skip(format!("the index of Python does not answer: {why}"));
    }
    let tree = "tree-with-pip:test";
    scene.daemon.run(&["import", &images::debian_with_pip()?.to_string_lossy(), tree])?;
    let settings = variables("PIP_", &["INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST"]);
    // Debian's own pip leaves its own Python alone unless it is told otherwise.
    let more = format!("{settings}ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_CERT={AUTHORITIES}\n");
    let code = "import numpy, pandas, matplotlib.pyplot, sklearn, requests, psycopg2\n\
                print(numpy.arange(4).sum(), pandas.DataFrame({'a': [1, 2]}).a.sum())";
    let done = runs(scene, "python", &base(&place, tree, &more)?, code, "6 3\n");
    scene.remove_image(tree)?;
    done
}

pub(crate) fn of_typescript(scene: &mut Scene) -> Result<()> {
    let place = empty(scene, "with-bun")?;
    let mut fetch = Command::new("npm");
    fetch.args(["install", "--no-audit", "--no-fund", "--prefix", &place.join("fetched").to_string_lossy(), "bun"]);
    if let Some(why) = refusal(&mut fetch, &place) {
        return scene.skip(format!("npm does not bring Bun: {why}"));
    }
    fs::copy(place.join("fetched/node_modules/bun/bin/bun.exe"), place.join("context/bun"))?;
    let asked = run(Command::new("npm").args(["config", "get", "registry"]), &place, LIMIT)?.succeeded()?;
    let settings = format!("registry={}\ncafile={AUTHORITIES}\n", asked.stdout.trim());
    fs::write(place.join("context/npmrc"), settings)?;
    let more = format!("COPY bun /usr/local/bin/bun\nCOPY npmrc /.npmrc\nENV NODE_EXTRA_CA_CERTS={AUTHORITIES}\n");
    let code = "import postgres from 'postgres';\nimport pg from 'pg';\nimport csv from 'csv-parser';\n\
                import Papa from 'papaparse';\n\
                const rows: number = Papa.parse('a,b\\n1,2').data.length;\n\
                console.log(typeof postgres, typeof pg.Client, typeof csv, rows);";
    runs(scene, "typescript", &base(&place, images::DEBIAN, &more)?, code, "function function function 2\n")
}

/// Builds the base and the image that is shipped, as anybody would, and runs code in it, without a network.
fn runs(scene: &Scene, language: &str, base: &Path, code: &str, says: &str) -> Result<()> {
    let (under, whole) = (here(scene, &format!("base-of-{language}")), here(scene, language));
    build(scene, base, &under, &[])?;
    let built = build(scene, &shipped(language), &whole, &[format!("BASE={under}")]);
    let ran = built.and_then(|()| {
        let ran = scene.expect(&["run", language, "--timeout", "2m", code], says);
        scene.remove_image(&whole)?;
        ran
    });
    scene.remove_image(&under)?;
    ran
}

fn build(scene: &Scene, context: &Path, name: &str, arguments: &[String]) -> Result<()> {
    let mut command = scene.daemon.docker();
    command.args(["build", "--quiet", "--network", "host", "--tag", name]);
    let proxies = ["HTTPS_PROXY", "https_proxy"].into_iter().filter(|name| std::env::var_os(name).is_some());
    for argument in arguments.iter().map(String::as_str).chain(proxies) {
        // One without a value has that of the variable.
        command.args(["--build-arg", argument]);
    }
    for name in ["HTTPS_PROXY", "https_proxy"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    run(command.arg(context), scene.path(), LIMIT)?.succeeded().map(drop)
}

/// A context with whom this machine believes; its Dockerfile goes on with these lines.
fn base(place: &Path, tree: &str, more: &str) -> Result<PathBuf> {
    let context = place.join("context");
    let mut dockerfile = format!("FROM {tree}\n");
    if Path::new(AUTHORITIES).exists() {
        fs::copy(AUTHORITIES, context.join("authorities"))?;
        dockerfile += &format!("COPY authorities {AUTHORITIES}\n");
    }
    fs::write(context.join("Dockerfile"), dockerfile + more)?;
    Ok(context)
}

/// Where this machine's own clients look, as lines of a Dockerfile.
fn variables(prefix: &str, names: &[&str]) -> String {
    let set = names.iter().filter_map(|name| {
        let name = format!("{prefix}{name}");
        std::env::var(&name).ok().map(|value| format!("ENV {name}=\"{value}\"\n"))
    });
    set.collect()
}

fn empty(scene: &Scene, name: &str) -> Result<PathBuf> {
    let place = scene.path().join(name);
    fs::create_dir_all(place.join("context"))?;
    Ok(place)
}

/// Why a client got nothing, in its own last words.
fn refusal(command: &mut Command, place: &Path) -> Option<String> {
    let last = |words: &str| words.trim().lines().last().unwrap_or_default().to_owned();
    match run(command, place, Duration::from_secs(180)) {
        Ok(ran) if ran.status.success() => None,
        Ok(ran) => Some(last(&ran.stderr)),
        Err(Trouble(why)) => Some(last(&why)),
    }
}
