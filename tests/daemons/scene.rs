//! A daemon with images, and our program beside it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sandpen_tests::daemon::{Daemon, Flavour, Holdings};
use sandpen_tests::program::{Ran, built, run};
use sandpen_tests::registry::Registry;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, images};
use tempfile::TempDir;

use crate::certificates::Encrypted;
use crate::gate::Gate;

pub(crate) const LIMIT: Duration = Duration::from_secs(180);

pub(crate) struct Scene {
    pub daemon: Daemon,
    pub registry: Registry,
    /// The same registry, where it can be made to wait.
    pub gate: Gate,
    /// A registry that wants a login.
    pub closed: Registry,
    /// Where the daemon speaks TLS; Docker's alone does.
    pub encrypted: Option<Encrypted>,
    /// Why the test that runs could not be made here.
    pub skipped: Option<String>,
    program: PathBuf,
    directory: TempDir,
}

impl Scene {
    pub fn set(flavour: Flavour) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-daemons-").tempdir()?;
        fs::create_dir(directory.path().join("home"))?;
        let registry = Registry::start()?;
        let gate = Gate::before(&registry.host)?;
        let closed = Registry::start_closed()?;
        let encrypted = match flavour {
            Flavour::Docker => Some(Encrypted::prepare(directory.path())?),
            Flavour::Podman => None,
        };
        let more = encrypted.as_ref().map(Encrypted::command_line).unwrap_or_default();
        let daemon = Daemon::start_with(flavour, &[&registry.host, &gate.host, &closed.host], more)?;
        images::load(&daemon)?;
        Ok(Self { daemon, registry, gate, closed, encrypted, skipped: None, program: built("sandpen")?, directory })
    }

    pub fn end(self) -> Vec<String> {
        self.daemon.end()
    }

    /// For a test that cannot be made here: it counts as ignored, and says why.
    pub fn skip(&mut self, why: impl Into<String>) -> Result<()> {
        self.skipped = Some(why.into());
        Ok(())
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Our program on this daemon, with the state directory of this name.
    pub fn command(&self, state: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.path().join("home"))
            .env("SANDPEN_STATE_DIR", self.path().join(state))
            .env("SANDPEN_ENGINE", self.daemon.flavour().as_str())
            .env("SANDPEN_DAEMON_HOST", self.daemon.host())
            .env("SANDPEN_CONTAINER_IMAGE", images::DEBIAN)
            .current_dir(self.path())
            .args(arguments);
        command
    }

    pub fn ran(&self, arguments: &[&str]) -> Result<Ran> {
        self.ran_with(&[], arguments)
    }

    /// With these variables besides; one without a value is not set.
    pub fn ran_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Result<Ran> {
        let mut command = self.command("state", arguments);
        for (name, value) in variables {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        run(&mut command, self.path(), LIMIT)
    }

    /// What it prints when it succeeds.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let words = arguments.join(" ");
        let ran = self.ran(arguments)?.succeeded();
        ran.map(|ran| ran.stdout).map_err(|trouble| format!("sandpen {words}: {trouble}").into())
    }

    pub fn expect(&self, arguments: &[&str], output: &str) -> Result<()> {
        let said = self.run(arguments)?;
        if said == output { Ok(()) } else { Err(format!("{arguments:?} says {said:?} instead of {output:?}").into()) }
    }

    /// A server on its streams.
    pub fn server(&self, state: &str) -> Result<Wire> {
        let place = tempfile::tempdir_in(self.path())?;
        Wire::by(&mut self.command(state, &["mcp"]), place)
    }

    /// The same with these variables.
    pub fn server_with(&self, state: &str, variables: &[(&str, &str)]) -> Result<Wire> {
        let place = tempfile::tempdir_in(self.path())?;
        let mut command = self.command(state, &["mcp"]);
        Wire::by(command.envs(variables.iter().copied()), place)
    }

    /// The same in place of an older server, with these flags.
    pub fn older_server(&self, profile: &str, flags: &[&str]) -> Result<Wire> {
        let place = tempfile::tempdir_in(self.path())?;
        Wire::by(&mut self.command(profile, &[&["mcp", "--profile", profile], flags].concat()), place)
    }

    /// Everything that the daemon has, running or not.
    pub fn containers(&self) -> Result<BTreeSet<String>> {
        let listed = self.daemon.run(&["ps", "--all", "--quiet", "--no-trunc"])?;
        Ok(listed.lines().map(|line| line.trim().to_owned()).collect())
    }

    pub fn holdings(&self) -> Result<Holdings> {
        Holdings::of(|arguments| self.daemon.run(arguments))
    }

    /// Remove an image once nothing holds it: a command ends before the daemon has removed its container.
    pub fn remove_image(&self, name: &str) -> Result<()> {
        self.settles_to(&BTreeSet::new(), Duration::from_secs(60))?;
        self.daemon.run(&["rmi", name]).map(drop)
    }

    /// Waits until the daemon has these and no others.
    pub fn settles_to(&self, expected: &BTreeSet<String>, limit: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            let there = self.containers()?;
            if there == *expected {
                return Ok(());
            }
            if started.elapsed() > limit {
                let all = self.daemon.run(&["ps", "--all", "--no-trunc"])?;
                return Err(format!("after {} s there is\n{all}instead of {expected:?}", limit.as_secs()).into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
