//! A place of its own for one trial: a home, a state directory, the scripts beside their packages, and a log.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandpen_tests::{Result, processes};
use tempfile::TempDir;

use crate::installed::{Installed, source};

pub(crate) struct Scene<'a> {
    pub installed: &'a Installed,
    directory: TempDir,
}

impl<'a> Scene<'a> {
    pub fn new(installed: &'a Installed) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-clients-").tempdir()?;
        for name in ["home", "state"] {
            fs::create_dir(directory.path().join(name))?;
        }
        Ok(Self { installed, directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// A program that sees nothing of whoever runs the tests.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let node = self.installed.packages().join(".bin");
        command
            .env_clear()
            .env("HOME", self.home())
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", node.display()))
            .current_dir(self.home());
        if let Some(daemon) = &self.installed.daemon {
            command.envs(daemon.variables());
        }
        command
    }

    pub fn python(&self, version: &str, script: &str) -> Command {
        let mut command = self.command(self.installed.python(version));
        // Without leaving compiled files in the source tree.
        command.arg("-B").arg(source("python").join(script));
        command
    }

    /// A script of ours. Node looks for packages from where a script lies, so it is taken to them.
    pub fn node_script(&self, script: &str) -> Result<Command> {
        let place = self.path().join("node");
        if !place.exists() {
            fs::create_dir(&place)?;
            std::os::unix::fs::symlink(self.installed.packages(), place.join("node_modules"))?;
        }
        for name in [script, "hands.mjs"] {
            fs::copy(source("node").join(name), place.join(name))?;
        }
        let mut command = self.command(self.installed.node());
        command.arg(place.join(script));
        Ok(command)
    }

    /// A program from the packages, by its path below `node_modules`.
    pub fn node_package(&self, program: &str) -> Command {
        let mut command = self.command(self.installed.node());
        command.arg(self.installed.packages().join(program));
        command
    }

    /// What a client is told to start for a server over stdio.
    pub fn stdio_server(&self) -> Vec<String> {
        let state = self.state();
        let server = [&self.installed.product, Path::new("--state-dir"), &state, Path::new("mcp")]
            .map(|word| word.to_string_lossy().into_owned());
        // Most clients give a server little of their own environment.
        let around = self.installed.daemon.iter().flat_map(|daemon| {
            let variables = daemon.variables().map(|(name, value)| format!("{name}={value}"));
            std::iter::once("/usr/bin/env".to_owned()).chain(variables)
        });
        around.chain(server).collect()
    }

    /// Everything that still runs and was started for this trial: its directory is part of every server's command line.
    pub fn running(&self) -> Vec<processes::Process> {
        processes::marked(&self.state().to_string_lossy()).into_iter().filter(|found| !found.is_zombie()).collect()
    }

    /// Sandboxes of this trial that a daemon has.
    pub fn containers(&self) -> Result<Vec<String>> {
        self.installed.daemon.as_ref().map_or(Ok(Vec::new()), |daemon| daemon.containers_of(&self.state()))
    }
}
