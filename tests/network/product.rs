//! The real program, started as the host of the world.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandpen_tests::daemon::Given;
use sandpen_tests::program::{Ran, built, run};
use sandpen_tests::{Result, Trouble};
use tempfile::TempDir;

use crate::backend::{self, IMAGE};

/// On a busy machine, with a cold state directory.
const PATIENCE: Duration = Duration::from_secs(90);

/// A state directory of its own, and the program that uses it.
pub struct Product {
    program: PathBuf,
    pub place: TempDir,
    daemon: Option<Given>,
}

impl Product {
    pub fn new() -> Result<Self> {
        let program = match std::env::var_os("SANDPEN_TEST_PRODUCT") {
            Some(path) => PathBuf::from(path),
            None => built("sandpen")?,
        };
        let place = tempfile::Builder::new().prefix("sandpen-product-").tempdir()?;
        Ok(Self { program, place, daemon: backend::daemon()? })
    }

    pub fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// With nothing of our own environment but where programs are found.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin");
        command.env("HOME", self.place.path()).arg("--state-dir").arg(self.state());
        if let Ok(missing) = std::env::var("SANDPEN_TEST_ALLOW_MISSING") {
            command.env("SANDPEN_ALLOW_MISSING", missing);
        }
        if let Some(daemon) = &self.daemon {
            command.envs(daemon.variables());
        }
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Result<Ran> {
        run(self.command().args(arguments), self.place.path(), PATIENCE)
    }

    /// A script in a fresh sandbox with this network.
    pub fn script(&self, network: &str, more: &[&str], script: &str) -> Result<Ran> {
        let arguments: Vec<&str> = ["run", "bash", script, "--network", network, "--timeout", "60s"]
            .into_iter()
            .chain(more.iter().copied())
            // A daemon would look for the image that is published for the language.
            .chain(self.daemon.iter().flat_map(|_| ["--image", IMAGE]))
            .collect();
        self.run(&arguments)
    }

    /// Keep a secret, as an operator would: its value comes by a pipe.
    pub fn keep_secret(&self, arguments: &[&str], value: &str) -> Result<()> {
        let log = self.place.path().join("secret.log");
        let mut command = self.command();
        command.args(["secret", "set"]).args(arguments).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        child.stdin.take().ok_or("no input")?.write_all(value.as_bytes())?;
        if child.wait()?.success() {
            return Ok(());
        }
        Err(Trouble(format!("the secret is not kept: {}", std::fs::read_to_string(log)?)))
    }
}
