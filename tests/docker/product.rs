//! Our own program, with a state of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sandpen_tests::Result;
use sandpen_tests::program::{built, run};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(180);

pub(crate) struct Product {
    program: PathBuf,
    directory: TempDir,
}

impl Product {
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-exchange-").tempdir()?;
        fs::create_dir(directory.path().join("home"))?;
        Ok(Self { program: built("sandpen")?, directory })
    }

    /// A place for files.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn file(&self, name: &str) -> String {
        self.path().join(name).to_string_lossy().into_owned()
    }

    /// What it prints.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.path().join("home"))
            .env("SANDPEN_STATE_DIR", self.path().join("state"))
            .current_dir(self.path())
            .args(arguments);
        let words = arguments.join(" ");
        let ran = run(&mut command, self.path(), LIMIT)?;
        ran.succeeded().map(|ran| ran.stdout).map_err(|trouble| format!("sandpen {words}: {trouble}").into())
    }

    /// Runs one program in a sandbox of its own, for images without a shell.
    pub fn run_in(&self, image: &str, words: &[&str]) -> Result<String> {
        let id = self.run(&["create", "--image", image, "--pull", "never"])?;
        let said = self.run(&[&["exec", id.trim(), "--"], words].concat());
        self.run(&["stop", id.trim()])?;
        said
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        let _ = self.run(&["stop", "--all"]);
    }
}
