//! The one test command: every stage in order, one sum at the end.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{fs, os::unix::fs::PermissionsExt};

use crate::clients::{self, Trouble};
use crate::prepare::{self, Delegated, TestUser};
use crate::process::{is_installed, is_root};
use crate::programs::{self, Kind, Program, TESTS, Walls, run_each, run_removable};
use crate::root;
use crate::stage::{Counting, Tally, run};
use crate::targets;
use daemons::Engine;

mod daemons;
mod network;

pub const MINUTE: Duration = Duration::from_secs(60);

/// What a stage was able to do: count, or say why it could not run here.
pub enum Outcome {
    Ran(Tally),
    Skipped(String),
}

struct Stage {
    name: &'static str,
    run: fn(&Machine) -> Outcome,
}

struct Machine {
    user: Result<TestUser, String>,
    extent: Extent,
}

/// How much is wanted of a stage that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What must hold before a change is taken.
    Part,
    /// It was named.
    Whole,
}

const STAGES: &[Stage] = &[
    Stage { name: "format", run: format },
    Stage { name: "clippy", run: clippy },
    Stage { name: "targets", run: |machine| Outcome::Ran(targets::all(machine.extent)) },
    Stage { name: "tidy", run: tidy },
    Stage { name: "unit", run: unit },
    Stage { name: "engine-fake", run: |_| Outcome::Ran(integration_tests("sandpen-sandbox", &[])) },
    Stage { name: "tools", run: |_| Outcome::Ran(integration_tests("sandpen-tools", &[])) },
    Stage { name: "egress", run: |_| Outcome::Ran(integration_tests("sandpen-egress", &[])) },
    Stage { name: "images", run: |_| Outcome::Ran(integration_tests("sandpen-images", &[])) },
    Stage { name: "agent", run: agent },
    Stage { name: "engine-native", run: |_| Outcome::Ran(integration_tests("sandpen-engine-native", &[])) },
    Stage { name: "engine-native-ordinary-user", run: engine_native_ordinary_user },
    Stage { name: "engine-docker", run: |machine| daemons::suite(Engine::Docker, machine.extent) },
    Stage { name: "engine-podman", run: |machine| daemons::suite(Engine::Podman, machine.extent) },
    Stage { name: "engine-gvisor", run: |_| daemons::gvisor() },
    Stage { name: "command-line", run: |_| Outcome::Ran(integration_tests("sandpen", &[])) },
    Stage { name: "command-line-docker", run: |machine| daemons::behaviour(Engine::Docker, machine.extent) },
    Stage { name: "command-line-podman", run: |machine| daemons::behaviour(Engine::Podman, machine.extent) },
    Stage { name: "daemons", run: |machine| daemons::daemons(machine.extent) },
    Stage { name: "docker", run: |_| Outcome::Ran(on_programs(&[PRODUCT], "docker")) },
    Stage { name: "mcp", run: |_| Outcome::Ran(on_programs(&[PRODUCT], "mcp")) },
    Stage { name: "mcp-docker", run: |_| daemons::on_product(Engine::Docker, "mcp") },
    Stage { name: "mcp-podman", run: |_| daemons::on_product(Engine::Podman, "mcp") },
    Stage { name: "profiles", run: |_| Outcome::Ran(on_programs(&[PRODUCT], "profiles")) },
    Stage { name: "profiles-docker", run: |_| daemons::on_product(Engine::Docker, "profiles") },
    Stage { name: "profiles-podman", run: |_| daemons::on_product(Engine::Podman, "profiles") },
    Stage { name: "clients", run: mcp_clients },
    Stage { name: "clients-docker", run: |_| mcp_clients_on(Engine::Docker) },
    Stage { name: "clients-podman", run: |_| mcp_clients_on(Engine::Podman) },
    Stage { name: "browser", run: browser },
    Stage { name: "browser-docker", run: |_| browser_on(Engine::Docker) },
    Stage { name: "browser-podman", run: |_| browser_on(Engine::Podman) },
    Stage { name: "escape", run: |_| weakened("escape") },
    Stage { name: "escape-ordinary-user", run: escape_ordinary_user },
    Stage { name: "escape-docker", run: |machine| daemons::escape(Engine::Docker, machine.extent) },
    Stage { name: "escape-podman", run: |machine| daemons::escape(Engine::Podman, machine.extent) },
    Stage { name: "network", run: |_| network::as_root() },
    Stage { name: "network-ordinary-user", run: |machine| network::as_ordinary_user(&machine.user) },
    Stage { name: "network-docker", run: |_| network::on_daemon(Engine::Docker) },
    Stage { name: "network-podman", run: |_| network::on_daemon(Engine::Podman) },
    Stage { name: "cycles", run: |_| weakened("cycles") },
    Stage { name: "cycles-docker", run: |_| daemons::cycles(Engine::Docker) },
    Stage { name: "cycles-podman", run: |_| daemons::cycles(Engine::Podman) },
    Stage { name: "crash", run: |_| weakened("crash") },
    Stage { name: "fuzz", run: fuzz },
    Stage { name: "dependencies", run: dependencies },
];

/// Stages that run only when they are named, because the rest must end in good time on two cores: what they try on one daemon
/// or kernel another stage tries on another engine.
const BY_NAME: &[&str] = &[
    "engine-gvisor",
    "command-line-podman",
    "mcp-docker",
    "mcp-podman",
    "profiles-docker",
    "profiles-podman",
    "clients-docker",
    "clients-podman",
    "browser-docker",
    "browser-podman",
    "escape-podman",
    "network-docker",
    "network-podman",
    "cycles-docker",
    "cycles-podman",
];

pub fn test(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--list") {
        for stage in STAGES {
            println!("{}", stage.name);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = arguments.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
        eprintln!("there is no stage {unknown}; cargo xtask test --list names them");
        return ExitCode::from(2);
    }
    let wanted = |stage: &&Stage| arguments.is_empty() || arguments.iter().any(|name| name == stage.name);
    prepare::programs();
    let extent = if arguments.is_empty() { Extent::Part } else { Extent::Whole };
    let machine = Machine { user: prepare::test_user(), extent };
    let mut sum = Tally::default();
    let mut remarks = Vec::new();
    for stage in STAGES.iter().filter(wanted) {
        println!("==> {}", stage.name);
        let started = Instant::now();
        let outcome = if arguments.is_empty() && BY_NAME.contains(&stage.name) {
            Outcome::Skipped(format!("it takes long; cargo xtask test {} runs it", stage.name))
        } else {
            (stage.run)(&machine)
        };
        let tally = match outcome {
            Outcome::Ran(tally) => tally,
            Outcome::Skipped(why) => {
                remarks.push(format!("SKIPPED: {}: {why}", stage.name));
                println!("SKIPPED: {why}");
                Tally::SKIPPED
            }
        };
        if tally.failed > 0 {
            remarks.push(format!("FAILED: {}: {} failed", stage.name, tally.failed));
            remarks.extend(tally.failures.iter().map(|line| format!("    {line}")));
        }
        println!("==> {}: {tally} ({:.1} s)", stage.name, started.elapsed().as_secs_f64());
        sum.add(tally);
    }
    for remark in remarks {
        println!("{remark}");
    }
    println!("{sum}");
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The long runs of cycles and kills.
pub fn soak() -> ExitCode {
    let mut sum = Tally::default();
    for (test, count, value) in [("cycles", "SANDPEN_TEST_CYCLES", "10000"), ("crash", "SANDPEN_TEST_KILLS", "1000")] {
        println!("==> {test}");
        sum.add(run_removable(test, |command| _ = command.env(count, value), 180));
    }
    println!("==> daemons");
    sum.add(daemons::kills(200));
    println!("{sum}");
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The generated tables are written by the test that compares them, so that there is one generator.
pub fn docs(arguments: &[String]) -> ExitCode {
    let mut command = cargo(&["test", "--quiet", "--package", "sandpen", "--test", "documents", "--", "generated"]);
    match arguments {
        [] => _ = command.env("SANDPEN_TEST_BLESS", "1"),
        [flag] if flag == "--check" => {}
        _ => {
            eprintln!("usage: cargo xtask docs [--check]");
            return ExitCode::from(2);
        }
    }
    if command.status().is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub fn deny() -> ExitCode {
    match dependencies(&Machine { user: Err(String::new()), extent: Extent::Whole }) {
        Outcome::Ran(tally) if tally.failed == 0 => ExitCode::SUCCESS,
        Outcome::Ran(_) => ExitCode::FAILURE,
        Outcome::Skipped(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn format(_: &Machine) -> Outcome {
    if !is_component("fmt") {
        return Outcome::Skipped("rustfmt is not installed".to_owned());
    }
    let mut sum = run(&mut cargo(&["fmt", "--all", "--check"]), Counting::ExitCode, 5 * MINUTE);
    let mut fuzz = cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
    sum.add(run(&mut fuzz, Counting::ExitCode, 5 * MINUTE));
    Outcome::Ran(sum)
}

fn clippy(_: &Machine) -> Outcome {
    if !is_component("clippy") {
        return Outcome::Skipped("clippy is not installed".to_owned());
    }
    let mut sum = Tally::default();
    // The programs that take walls away are looked at by themselves, because their feature changes the engine's types and the
    // product does not compile with it; the conformance suite's fixtures, because nothing else has them. Of the same packages
    // each time: asked for fewer, Cargo would choose other features for the dependencies and look at all of them again.
    let of_workspace = || cargo(&["clippy", "--workspace"]);
    let (mut all, mut weakened, mut fixtures) = (of_workspace(), of_workspace(), of_workspace());
    for command in [
        all.arg("--all-targets"),
        programs::as_removable(&mut weakened),
        fixtures.args(["--features", "sandpen/conformance", "--bin", "sandpen-conformance"]),
    ] {
        sum.add(run(command.args(["--", "--deny", "warnings"]), Counting::ExitCode, 15 * MINUTE));
    }
    Outcome::Ran(sum)
}

fn tidy(_: &Machine) -> Outcome {
    let is_wanted =
        |program: &Program| program.package == TESTS && (program.kind == Kind::Unit || program.name == "tidy");
    Outcome::Ran(run_each(is_wanted, |_| {}, 10))
}

fn unit(_: &Machine) -> Outcome {
    Outcome::Ran(run_each(|program| program.kind == Kind::Unit && program.package != TESTS, |_| {}, 10))
}

fn integration_tests(package: &str, arguments: &[&str]) -> Tally {
    let is_wanted = |program: &Program| program.kind == Kind::Integration && program.package == package;
    run_each(is_wanted, |command| _ = command.args(arguments), 15)
}

/// Its tests wait far more than they work: for bridges that say nothing for a minute.
fn agent(_: &Machine) -> Outcome {
    Outcome::Ran(integration_tests("sandpen-agent", &["--test-threads", "8"]))
}

const PRODUCT: &[&str] = &["--bin", "sandpen"];
/// Under another name, so that nobody takes it for the product.
const WITH_FIXTURES: &[&str] = &["--bin", "sandpen-conformance", "--features", "sandpen/conformance"];

/// Real clients on the real program, and the conformance suite on one that has its fixtures.
fn mcp_clients(_: &Machine) -> Outcome {
    let mut sum = installed_clients();
    sum.add(on_programs(&[PRODUCT, WITH_FIXTURES], "clients"));
    Outcome::Ran(sum)
}

/// The dashboard in a real browser, and made anew from its source.
fn browser(_: &Machine) -> Outcome {
    in_browser(|| Outcome::Ran(on_programs(&[PRODUCT], "browser")))
}

/// The same page over sandboxes of a daemon.
fn browser_on(engine: Engine) -> Outcome {
    in_browser(|| daemons::on_product(engine, "browser"))
}

fn in_browser(work: impl FnOnce() -> Outcome) -> Outcome {
    if !is_installed("npm") {
        return Outcome::Skipped("there is no npm for what drives a browser".to_owned());
    }
    if std::env::var_os("SANDPEN_TEST_CHROMIUM").is_none() && !is_installed("chromium") {
        return Outcome::Skipped("there is no chromium; SANDPEN_TEST_CHROMIUM names one elsewhere".to_owned());
    }
    let mut sum = installed_parts(clients::install_browser());
    match work() {
        Outcome::Ran(tally) => sum.add(tally),
        skipped @ Outcome::Skipped(_) => return skipped,
    }
    Outcome::Ran(sum)
}

/// The same clients on sandboxes of a daemon. The suite is about the protocol alone.
fn mcp_clients_on(engine: Engine) -> Outcome {
    let mut sum = installed_clients();
    match daemons::on_product(engine, "clients") {
        Outcome::Ran(tally) => sum.add(tally),
        skipped @ Outcome::Skipped(_) => return skipped,
    }
    Outcome::Ran(sum)
}

fn installed_clients() -> Tally {
    installed_parts(clients::install())
}

fn installed_parts(troubles: Vec<Trouble>) -> Tally {
    let mut sum = Tally::default();
    for trouble in troubles {
        match trouble {
            Trouble::Missing(why) => println!("MISSING: {why}"),
            Trouble::Broken(why) => {
                println!("not installed: {why}");
                sum.add(Tally::FAILED);
            }
        }
    }
    sum
}

/// A test that starts programs of this workspace, which Cargo does not know that it needs.
fn on_programs(programs: &[&[&str]], test: &str) -> Tally {
    if !programs.iter().all(|program| is_built(program)) {
        return Tally::FAILED;
    }
    run_each(|program| program.package == TESTS && program.name == test, |_| {}, 25)
}

fn is_built(program: &[&str]) -> bool {
    let mut build = cargo(&["build", "--workspace"]);
    run(build.args(program), Counting::ExitCode, 15 * MINUTE) != Tally::FAILED
}

/// A check of walls, which needs a probe to be compiled.
fn weakened(test: &str) -> Outcome {
    if !is_installed("cc") {
        return Outcome::Skipped("there is no C compiler for the probe".to_owned());
    }
    Outcome::Ran(run_removable(test, |_| {}, 15))
}

fn engine_native_ordinary_user(machine: &Machine) -> Outcome {
    as_ordinary_user(machine, || {
        let is_wanted =
            |program: &Program| program.kind == Kind::Integration && program.package == "sandpen-engine-native";
        programs::built(Walls::Whole, is_wanted)
    })
}

fn escape_ordinary_user(machine: &Machine) -> Outcome {
    if !is_installed("cc") {
        return Outcome::Skipped("there is no C compiler for the probe".to_owned());
    }
    as_ordinary_user(machine, || programs::removable("escape").map(|program| vec![program]))
}

/// Build test programs here, copy them to where the user can read them, and run them there with nothing of ours.
fn as_ordinary_user(machine: &Machine, built: impl FnOnce() -> Option<Vec<&'static Program>>) -> Outcome {
    let user = match &machine.user {
        Ok(user) => user,
        Err(why) if is_root() => return Outcome::Skipped(why.clone()),
        Err(why) => return Outcome::Skipped(format!("{why}, the stage before has covered it")),
    };
    let Some(programs) = built() else { return Outcome::Ran(Tally::FAILED) };
    let groups = Delegated::to(user);
    let mut sum = Tally::default();
    for Program { path: program, .. } in programs {
        let place = match Place::new(user, &[program]) {
            Ok(place) => place,
            Err(error) => {
                println!("the test program cannot be copied: {error}");
                return Outcome::Ran(Tally::FAILED);
            }
        };
        // A shell joins the groups while it still may, gives its rights up, and becomes the program.
        let script = r#"uid=$1 gid=$2 program=$3; shift 3
            for group; do echo $$ >"$group/cgroup.procs" || exit 1; done
            exec setpriv --reuid "$uid" --regid "$gid" --clear-groups -- "$program""#;
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh", &user.uid.to_string(), &user.gid.to_string()])
            .arg(place.program(program))
            .args(&groups.directories)
            .current_dir(&place.directory)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
            .env("HOME", format!("/home/{}", user.name))
            .env("USER", user.name)
            .env("TMPDIR", &place.directory);
        for (name, value) in std::env::vars().filter(|(name, _)| name.starts_with("SANDPEN_TEST_")) {
            command.env(name, value);
        }
        if groups.directories.is_empty() {
            command.env("SANDPEN_TEST_ALLOW_MISSING", "memory-limit,process-limit,cpu-limit");
        }
        sum.add(run(&mut command, Counting::ResultLines, 15 * MINUTE));
    }
    Outcome::Ran(sum)
}

/// A directory of the ordinary user with test programs in it, removed when dropped.
struct Place {
    directory: PathBuf,
}

impl Place {
    fn new(user: &TestUser, programs: &[&Path]) -> std::io::Result<Self> {
        let directory = std::env::temp_dir().join(format!("sandpen-xtask-{}", std::process::id()));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir(&directory)?;
        let place = Self { directory };
        for program in programs {
            let copy = place.program(program);
            fs::copy(program, &copy)?;
            fs::set_permissions(copy, fs::Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(&place.directory, fs::Permissions::from_mode(0o755))?;
        std::os::unix::fs::chown(&place.directory, Some(user.uid), Some(user.gid))?;
        Ok(place)
    }

    /// Where the copy of a program is.
    fn program(&self, original: &Path) -> PathBuf {
        self.directory.join(original.file_name().expect("a test program has a name"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn fuzz(_: &Machine) -> Outcome {
    let mut command =
        cargo(&["run", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target", "--bin", "smoke"]);
    Outcome::Ran(run(&mut command, Counting::ResultLines, 10 * MINUTE))
}

fn dependencies(_: &Machine) -> Outcome {
    if !is_installed("cargo-deny") {
        return Outcome::Skipped("cargo-deny is not installed (cargo install --locked cargo-deny)".to_owned());
    }
    let check = |what: &[&str]| run(cargo(&["deny", "check"]).args(what), Counting::ExitCode, 5 * MINUTE);
    let mut sum = check(&["licenses", "bans", "sources"]);
    // The list of advisories is the only part that comes from the network, and not from a registry of packages.
    let fetched = cargo(&["deny", "fetch", "db"]).status().is_ok_and(|status| status.success());
    if fetched {
        sum.add(check(&["advisories"]));
    } else {
        println!("skipped: the advisories cannot be fetched from here");
        sum.add(Tally::SKIPPED);
    }
    Outcome::Ran(sum)
}

fn is_component(name: &str) -> bool {
    let answers = || {
        let mut command = cargo(&[name, "--version"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let package = if name == "fmt" { "rustfmt" } else { name };
    answers()
        || (Command::new("rustup").args(["component", "add", package]).status().is_ok_and(|status| status.success())
            && answers())
}

pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    // Cargo gave us these for our own package. Build scripts of dependencies look at them, so that with them it would build
    // again what a plain call of it has built, and the other way round.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}
