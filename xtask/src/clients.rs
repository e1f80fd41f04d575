//! Other people's MCP clients and what a browser test needs, in pinned versions, below `target/clients` and nowhere else.
//!
//! Each part is installed once and again when its pins change. A machine without npm, without Python or without a
//! registry in reach has fewer clients: the tests skip those by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::process::is_installed;
use crate::root;

/// A part that cannot be had here, and a part that should be there and is not.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    Missing(String),
    Broken(String),
}

/// Where the clients are: `node`, `python-1.30` and `python-2.3` below this.
pub fn directory() -> PathBuf {
    root().join("target/clients")
}

/// Install what is missing or out of date, all parts at once.
pub fn install() -> Vec<Trouble> {
    install_parts(&[node, || python("1.30"), || python("2.3")])
}

/// What drives a browser, and what makes the dashboard.
pub fn install_browser() -> Vec<Trouble> {
    install_parts(&[node, || packages("dashboard", "crates/sandpen/dashboard")])
}

fn install_parts(parts: &[fn() -> Result<(), Trouble>]) -> Vec<Trouble> {
    std::thread::scope(|scope| {
        let running: Vec<_> = parts.iter().map(|part| scope.spawn(part)).collect();
        running.into_iter().filter_map(|part| part.join().expect("installing does not panic").err()).collect()
    })
}

fn node() -> Result<(), Trouble> {
    packages("node", "tests/clients/node")
}

/// What a `package.json` asks for.
fn packages(name: &str, source: &str) -> Result<(), Trouble> {
    let source = root().join(source);
    let part = Part::new(name, &[source.join("package.json"), source.join("package-lock.json")])?;
    if part.is_current() {
        return Ok(());
    }
    if !is_installed("npm") {
        return Err(Trouble::Missing(format!("{name}: there is no npm")));
    }
    part.begin()?;
    for pin in &part.pins {
        copy(pin, &part.directory)?;
    }
    // Not `npm ci`: it refuses a lock that leaves out what only other systems need.
    let mut command = Command::new("npm");
    command.args(["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    // Its own patience with a registry that is not there is some minutes.
    command.args(["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=3000"]);
    part.run(command.current_dir(&part.directory))?;
    part.finish()
}

fn python(version: &str) -> Result<(), Trouble> {
    let pins = root().join(format!("tests/clients/python/requirements-{version}.txt"));
    let part = Part::new(&format!("python-{version}"), &[pins])?;
    if part.is_current() {
        return Ok(());
    }
    if !is_installed("python3") {
        return Err(Trouble::Missing(format!("{}: there is no python3", part.name)));
    }
    part.begin()?;
    if part.run(Command::new("python3").args(["-m", "venv", "."]).current_dir(&part.directory)).is_err() {
        return Err(Trouble::Missing(format!("{}: python3 has no venv (package python3-venv)", part.name)));
    }
    let mut command = Command::new(part.directory.join("bin/pip"));
    command.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--retries=1", "--requirement"]);
    part.run(command.args(&part.pins))?;
    part.finish()
}

/// One directory below `target/clients`, with a copy of the pins that it was made from.
struct Part {
    name: String,
    directory: PathBuf,
    pins: Vec<PathBuf>,
    /// The text of all pins.
    wanted: String,
}

impl Part {
    fn new(name: &str, pins: &[PathBuf]) -> Result<Self, Trouble> {
        let mut wanted = String::new();
        for pin in pins {
            wanted += &fs::read_to_string(pin).map_err(|error| broken(name, pin, &error))?;
        }
        Ok(Self { name: name.to_owned(), directory: directory().join(name), pins: pins.to_vec(), wanted })
    }

    fn stamp(&self) -> PathBuf {
        self.directory.join("installed")
    }

    fn is_current(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|made_from| made_from == self.wanted)
    }

    /// From nothing, because what an interrupted run has left cannot be told from what belongs.
    fn begin(&self) -> Result<(), Trouble> {
        println!("installing: {}", self.name);
        let made = match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => fs::create_dir_all(&self.directory),
        };
        made.map_err(|error| broken(&self.name, &self.directory, &error))
    }

    fn run(&self, command: &mut Command) -> Result<(), Trouble> {
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| broken(&self.name, Path::new(command.get_program()), &error))?;
        if output.status.success() { Ok(()) } else { Err(trouble(&self.name, &output)) }
    }

    fn finish(&self) -> Result<(), Trouble> {
        fs::write(self.stamp(), &self.wanted).map_err(|error| broken(&self.name, &self.stamp(), &error))
    }
}

fn copy(file: &Path, directory: &Path) -> Result<(), Trouble> {
    let to = directory.join(file.file_name().expect("a pin is a file"));
    fs::copy(file, &to).map(drop).map_err(|error| broken("node", &to, &error))
}

fn broken(name: &str, path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::Broken(format!("{name}: {}: {error}", path.display()))
}

/// Without a network there are no clients, and nobody is to blame; a pin that does not exist is a mistake of ours.
fn trouble(name: &str, output: &Output) -> Trouble {
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let offline = ["ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH", "NewConnectionError"];
    if offline.iter().any(|sign| said.contains(sign)) {
        return Trouble::Missing(format!("{name}: no package registry can be reached"));
    }
    Trouble::Broken(format!("{name}: {}", said.trim()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn ended(stderr: &str) -> Output {
        Output { status: ExitStatus::from_raw(256), stdout: Vec::new(), stderr: stderr.into() }
    }

    #[test]
    fn a_machine_without_network_is_told_from_a_wrong_pin() {
        let offline = trouble("node", &ended("npm error code EAI_AGAIN"));
        assert_eq!(offline, Trouble::Missing("node: no package registry can be reached".to_owned()));
        let wrong = trouble("node", &ended("npm error notarget No matching version found for mcp-remote@99.0.0."));
        assert!(matches!(wrong, Trouble::Broken(text) if text.contains("mcp-remote@99")));
    }
}
