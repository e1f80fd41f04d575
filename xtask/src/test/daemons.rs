//! The stages on somebody else's engine: a daemon of the test's own, the suite that all engines share, and the tests of the
//! command line and the server as they are.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::{Extent, Outcome, PRODUCT, is_built};
use crate::process::{is_installed, is_root, kill_tree};
use crate::programs::{self, Kind, Program, TESTS, Walls, run_each, run_removable};
use crate::stage::Tally;

/// Test programs of the product that are about sandboxes and not about how the embedded engine makes them.
const PROGRAMS: &[&str] = &[
    "run",
    "sandboxes",
    "terminal",
    "environments",
    "exports",
    "export_sources",
    "image_runs",
    "packages",
    "network",
    "secret",
    "usage",
    "machine",
    "mcp_stdio",
    "mcp_live",
    "mcp_contexts",
    "mcp_jobs",
    "mcp_life",
    "mcp_copy",
    "mcp_environments",
    "mcp_protocol",
    "http_mcp",
    "http_end",
    "http_sse",
    "http_access",
    "http_api",
    "http_files",
    "profile_cloudflare",
    "previews",
    "reload",
    "limits",
    "http_tenants",
    "code_runner",
    "http_auth",
    "http_oauth",
    "audit",
    "metrics",
    "traces",
    "canaries",
    "profile_automata",
    "profiles",
];

/// Of them, those that are left out when nobody asked for them: in the first four most of the time goes to package managers and
/// builds, and the others are more about the way to a server than about its sandboxes.
const LATER_PROGRAMS: &[&str] = &[
    "packages",
    "exports",
    "export_sources",
    "image_runs",
    "usage",
    "machine",
    "mcp_copy",
    "mcp_environments",
    "mcp_jobs",
    "mcp_protocol",
    "http_mcp",
    "http_end",
    "http_sse",
    "http_access",
    "http_api",
    "http_files",
    "previews",
    "reload",
    "limits",
    "http_tenants",
    "code_runner",
    "http_auth",
    "http_oauth",
    "audit",
    "metrics",
    "traces",
    "canaries",
    "profile_automata",
    "profiles",
];

/// Tests of the daemons that ask Podman what they ask Docker in the same words: about images, for older servers, and what
/// becomes of us when nobody answers.
const LIKE_ON_DOCKER: &[&str] = &[
    "podman: a daemon that hangs",
    "podman: a daemon that is killed",
    "podman: a container that somebody else removes",
    "podman: a fork",
    "podman: what is printed",
    "podman: a server in a container",
    "podman: an older server's",
    "podman: containers of others",
    "podman: the backend",
    "podman: what belongs",
    "podman: an export",
    "podman: an image",
    "podman: images are",
    "podman: registries",
    "podman: nothing is fetched",
    "podman: a tag",
    "podman: a call that waits",
    "podman: a pull",
    "podman: packages",
];

/// Those that fetch some hundred megabytes from other people's registries.
const FROM_REGISTRIES: &str = "comes with its packages";

/// How many servers are killed on each daemon, and how many when that was asked for by the stage's name.
const KILLS: &str = "SANDPEN_TEST_KILLS";
const MORE_KILLS: u32 = 30;

#[derive(Clone, Copy, Debug)]
pub enum Engine {
    Docker,
    Podman,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Docker => &["dockerd", "docker", "mmdebstrap", "cc"],
            Self::Podman => &["podman", "runc", "docker", "mmdebstrap", "cc"],
        }
    }
}

/// What of the suite is left out when nobody asked for an engine by its name.
fn left_out(engine: Engine) -> &'static [&'static str] {
    match engine {
        // Once they are taken, sandboxes that were made ahead are like all others.
        Engine::Docker => &[
            "spare::checkpoints::",
            "spare::execs::",
            "spare::files::",
            "spare::forks::",
            "spare::links::",
            "spare::saves::",
            "spare::tars::",
            "spare::terminals::",
            "spare::trees::",
        ],
        // For the first six process 1 alone answers, and it is the same program on both. The others are about images and trees,
        // which both daemons are asked for in the same words.
        Engine::Podman => &[
            "execs::",
            "files::",
            "links::",
            "spare::",
            "tars::",
            "terminals::",
            "builds::",
            "checkpoints::",
            "forks::",
            "images::",
            "large::",
            "odd::",
            "saves::",
            "trees::",
            "volumes::",
        ],
    }
}

fn is_of_the_engine(program: &Program) -> bool {
    program.kind == Kind::Integration && program.package == "sandpen-engine-docker"
}

/// The suite of engines.
pub fn suite(engine: Engine, extent: Extent) -> Outcome {
    let left_out = match extent {
        Extent::Whole => &[],
        Extent::Part => left_out(engine),
    };
    if !left_out.is_empty() {
        println!("without {}; cargo xtask test engine-{} runs these too", left_out.join(" "), engine.name());
    }
    on_daemon(engine, |daemon| {
        let prepare = |command: &mut Command| {
            daemon.named_to(command).args(left_out.iter().flat_map(|group| ["--skip", group]));
        };
        run_each(is_of_the_engine, prepare, 40)
    })
}

/// The same with gVisor's kernel under the sandboxes, and without those that are made ahead: what is done with them is the same.
pub fn gvisor() -> Outcome {
    if !is_installed("runsc") {
        return Outcome::Skipped("runsc is not installed".to_owned());
    }
    on_daemon(Engine::Docker, |daemon| {
        let prepare = |command: &mut Command| {
            daemon.named_to(command).args(["--skip", "spare::"]).env("SANDPEN_TEST_RUNTIME", "runsc");
        };
        run_each(is_of_the_engine, prepare, 40)
    })
}

/// What the product does with it: the same assertions as on the embedded engine.
pub fn behaviour(engine: Engine, extent: Extent) -> Outcome {
    if extent == Extent::Part {
        let left_out = LATER_PROGRAMS.join(" ");
        println!("without {left_out}; cargo xtask test command-line-{} runs these too", engine.name());
    }
    let is_of_the_product = |program: &Program| program.package == "sandpen" && program.kind == Kind::Integration;
    let is_of_others = |program: &Program| is_of_the_product(program) && !PROGRAMS.contains(&program.name.as_str());
    if let Some(others) = programs::built(Walls::Whole, is_of_others) {
        let names: Vec<_> = others.iter().map(|program| program.name.as_str()).collect();
        println!("nothing in {} depends on the engine, or is there on another one", names.join(" "));
    }
    on_daemon(engine, |daemon| {
        let is_wanted = |program: &Program| {
            let name = program.name.as_str();
            is_of_the_product(program)
                && PROGRAMS.contains(&name)
                && (extent == Extent::Whole || !LATER_PROGRAMS.contains(&name))
        };
        run_each(is_wanted, |command| _ = daemon.named_to(command), 15)
    })
}

/// A test that starts the product as it is, with the same assertions as on the embedded engine.
pub fn on_product(engine: Engine, test: &str) -> Outcome {
    on_daemon(engine, |daemon| {
        if !is_built(PRODUCT) {
            return Tally::FAILED;
        }
        run_each(|program| program.package == TESTS && program.name == test, |command| _ = daemon.named_to(command), 25)
    })
}

/// Sandboxes that come and go, and what the daemon and we then have.
pub fn cycles(engine: Engine) -> Outcome {
    on_daemon(engine, |daemon| run_removable("cycles", |command| _ = daemon.named_to(command), 25))
}

/// What says most about a daemon's walls for its time: what the host sees of a container, and the system calls.
const FIRST_WALLS: &[&str] = &["PN-01", "KS", "FS-04"];

/// The escape table on sandboxes of a daemon.
pub fn escape(engine: Engine, extent: Extent) -> Outcome {
    let only = match extent {
        Extent::Whole => &[],
        Extent::Part => FIRST_WALLS,
    };
    if !only.is_empty() {
        println!("only {}; cargo xtask test escape-{} runs all", only.join(" "), engine.name());
    }
    on_daemon(engine, |daemon| run_removable("escape", |command| _ = daemon.named_to(command).args(only), 25))
}

/// What there is only on daemons, and what happens when one goes away.
pub fn daemons(extent: Extent) -> Outcome {
    if !is_built(PRODUCT) {
        return Outcome::Ran(Tally::FAILED);
    }
    let left_out = match extent {
        Extent::Whole => Vec::new(),
        Extent::Part => [LIKE_ON_DOCKER, &[FROM_REGISTRIES]].concat(),
    };
    if !left_out.is_empty() {
        println!("without {}; cargo xtask test daemons runs these too", left_out.join(", "));
    }
    let prepare = |command: &mut Command| {
        command.args(left_out.iter().flat_map(|name| ["--skip", name]));
        if extent == Extent::Whole && std::env::var_os(KILLS).is_none() {
            command.env(KILLS, MORE_KILLS.to_string());
        }
    };
    Outcome::Ran(run_each(|program| program.package == TESTS && program.name == "daemons", prepare, 35))
}

/// Servers that are killed, often.
pub fn kills(count: u32) -> Tally {
    if !is_built(PRODUCT) {
        return Tally::FAILED;
    }
    let prepare = |command: &mut Command| {
        command.arg("killed").env(KILLS, count.to_string());
    };
    run_each(|program| program.package == TESTS && program.name == "daemons", prepare, 150)
}

/// Work with a daemon that is there only for it.
pub fn on_daemon(engine: Engine, work: impl FnOnce(&Daemon) -> Tally) -> Outcome {
    if !is_root() {
        return Outcome::Skipped(format!("a daemon of {} in surroundings of its own needs root", engine.name()));
    }
    if let Some(missing) = engine.programs().iter().find(|name| !is_installed(name)) {
        return Outcome::Skipped(format!("{missing} is not installed"));
    }
    match Daemon::start(engine) {
        Ok(daemon) => {
            let mut tally = work(&daemon);
            tally.add(daemon.end());
            Outcome::Ran(tally)
        }
        Err(why) => {
            println!("the daemon does not start: {why}");
            Outcome::Ran(Tally::FAILED)
        }
    }
}

/// Held by a program that ends it when our end of its input closes, also when we are killed.
pub struct Daemon {
    engine: Engine,
    child: Child,
    address: String,
}

impl Daemon {
    fn start(engine: Engine) -> Result<Self, String> {
        let is_wanted = |program: &Program| program.kind == Kind::Example && program.name == "daemon";
        let program = programs::built(Walls::Whole, is_wanted)
            .and_then(|found| found.into_iter().next())
            .ok_or("it is not built")?;
        let mut command = program.command();
        command.args([engine.name(), "--with-images"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        // Lines before it tell how the images were made.
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            println!("{line}");
            line.strip_prefix("export ")?.split_once('=').map(|(_, address)| address.to_owned())
        });
        match address {
            Some(address) => Ok(Self { engine, child, address }),
            None => {
                let _ = child.wait();
                Err("it has ended".to_owned())
            }
        }
    }

    /// Say to a test program where it is.
    pub fn named_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("SANDPEN_TEST_ENGINE", self.engine.name())
            .env("SANDPEN_TEST_DAEMON", &self.address)
            .env("SANDPEN_TEST_IMAGE", "debian:test")
    }

    /// A daemon that leaves something of itself has failed.
    fn end(mut self) -> Tally {
        drop(self.child.stdin.take());
        match self.child.wait() {
            Ok(status) if status.success() => Tally::PASSED,
            Ok(_) | Err(_) => {
                println!("the daemon did not end as it should");
                Tally::FAILED
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            kill_tree(self.child.id());
            let _ = self.child.wait();
        }
    }
}
