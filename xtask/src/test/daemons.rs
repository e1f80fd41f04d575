//! The stages on somebody else's engine: a daemon of the test's own, the suite that all engines share, and the tests of the
//! command line and the server as they are.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::{MINUTE, Outcome, PRODUCT, cargo};
use crate::process::{is_installed, is_root, kill_tree};
use crate::stage::{Counting, Tally, run};

/// Test programs of the product that are about sandboxes and not about how the embedded engine makes them.
const PROGRAMS: &[&str] =
    &["run", "sandboxes", "terminal", "mcp_stdio", "mcp_live", "mcp_life", "mcp_copy", "http_mcp", "http_end"];

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

/// The suite of engines.
pub fn suite(engine: Engine) -> Outcome {
    on_daemon(engine, |daemon| {
        let mut command = cargo(&["test", "--no-fail-fast", "--package", "sandpen-engine-docker", "--test", "*"]);
        run(daemon.named_to(&mut command), Counting::ResultLines, 25 * MINUTE)
    })
}

/// What the product does with it: the same assertions as on the embedded engine.
pub fn behaviour(engine: Engine) -> Outcome {
    on_daemon(engine, |daemon| {
        let mut command = cargo(&["test", "--no-fail-fast", "--package", "sandpen"]);
        command.args(PROGRAMS.iter().flat_map(|name| ["--test", name]));
        run(daemon.named_to(&mut command), Counting::ResultLines, 25 * MINUTE)
    })
}

/// Servers that are killed, often.
pub fn kills(count: u32) -> Tally {
    let mut build = cargo(&["build", "--package", "sandpen"]);
    if run(build.args(PRODUCT), Counting::ExitCode, 15 * MINUTE) == Tally::FAILED {
        return Tally::FAILED;
    }
    let mut command = cargo(&["test", "--package", "sandpen-tests", "--test", "daemons", "--", "killed"]);
    run(command.env("SANDPEN_TEST_KILLS", count.to_string()), Counting::ResultLines, 60 * MINUTE)
}

fn on_daemon(engine: Engine, work: impl FnOnce(&Daemon) -> Tally) -> Outcome {
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
struct Daemon {
    engine: Engine,
    child: Child,
    address: String,
}

impl Daemon {
    fn start(engine: Engine) -> Result<Self, String> {
        let mut command = cargo(&["run", "--quiet", "--package", "sandpen-tests", "--example", "daemon", "--"]);
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

    fn named_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
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
