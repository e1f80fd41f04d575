//! Docker, skopeo and a registry beside ours on the same images: what the one makes the other takes, and a Dockerfile means
//! the same to both.
//!
//! `cargo xtask test docker` installs them and builds the program. What is not installed is skipped by name.

mod builds;
mod exchange;
mod left;
mod product;
mod tree;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};
use sandpen_tests::daemon::{Daemon, Flavour};
use sandpen_tests::program::is_installed;
use sandpen_tests::registry::Registry;
use sandpen_tests::{Result, Trouble, images};
use tempfile::TempDir;
use tree::Tree;

type Test = fn(&Stage) -> Result<()>;

const TESTS: &[(&str, Test)] = &[
    ("every difference of two trees is seen", |_| tree::every_difference_is_seen()),
    ("nothing is left of a daemon", left::nothing),
    ("nothing is left of a daemon when its test is killed", left::nothing_after_a_kill),
    ("what Docker saves runs here and goes back the same", exchange::saved_by_docker),
    ("an image without a shell goes there and back", exchange::from_scratch),
    ("what is saved of a sandbox runs in Docker with the same files", exchange::saved_by_us),
    ("what Docker pushes is pulled, and what we push Docker pulls", exchange::by_registry),
    ("every Dockerfile here is the same to Docker and to us", builds::all_of_the_repository),
    ("a sandbox as a Dockerfile is the same sandbox when Docker builds it", builds::exported),
    ("a build that is another is seen to be", builds::another_build_is_seen),
    ("what skopeo puts into a registry is fetched when a sandbox asks for it", exchange::by_skopeo),
];

const PROGRAMS: &[&str] = &["docker-registry", "skopeo", "mmdebstrap", "cc"];

/// What the tests share: all of it takes a while to start.
struct Stage {
    docker: Daemon,
    registry: Registry,
    debian: PathBuf,
    program: PathBuf,
    _directory: TempDir,
}

impl Stage {
    fn set() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-stage-").tempdir()?;
        let debian = images::debian()?;
        let program = images::program(directory.path())?;
        let docker = Daemon::start(Flavour::Docker)?;
        docker.run(&["import", &debian.to_string_lossy(), images::DEBIAN])?;
        Ok(Self { docker, registry: Registry::start()?, debian, program, _directory: directory })
    }

    /// All files of an image, as Docker has them.
    fn tree(&self, image: &str) -> Result<Tree> {
        let archive = self.docker.export(image)?;
        let tree = Tree::read(fs::File::open(&archive)?);
        fs::remove_file(archive)?;
        tree
    }
}

fn main() -> ExitCode {
    if let Some(code) = left::hold() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // They share one daemon, and each is busy on several processors by itself.
    arguments.test_threads = Some(1);
    let missing = missing();
    if let Some(why) = &missing {
        eprintln!("SKIPPED: no image is exchanged with Docker: {why}");
    }
    let stage: Arc<OnceLock<Result<Stage>>> = Arc::default();
    let trial = |&(name, test): &(&'static str, Test)| {
        let stage = stage.clone();
        let run = move || match stage.get_or_init(Stage::set) {
            Ok(stage) => test(stage).map_err(|trouble| Failed::from(trouble.to_string())),
            Err(Trouble(why)) => Err(Failed::from(format!("the stage could not be set: {why}"))),
        };
        Trial::test(name, run).with_ignored_flag(missing.is_some())
    };
    let conclusion = libtest_mimic::run(&arguments, TESTS.iter().map(trial).collect());
    let left = match Arc::into_inner(stage).and_then(OnceLock::into_inner) {
        Some(Ok(stage)) => stage.docker.end(),
        Some(Err(_)) | None => Vec::new(),
    };
    for line in &left {
        println!("left by the daemon: {line}");
    }
    if left.is_empty() { conclusion.exit_code() } else { ExitCode::FAILURE }
}

fn missing() -> Option<String> {
    let absent = || PROGRAMS.iter().find(|name| !is_installed(name)).map(|name| format!("{name} is not installed"));
    Flavour::Docker.missing().or_else(absent)
}
