//! `sandpen serve` on a port of its own, as one of its operators starts it.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandpen_tests::program::{Program, run};
use sandpen_tests::{Result, Trouble};
use serde_json::Value;
use tempfile::TempDir;

use crate::Installed;

const START: Duration = Duration::from_secs(30);

pub struct Server {
    process: Program,
    /// Of the page.
    pub url: String,
    /// Empty where none is asked for.
    pub token: String,
    place: TempDir,
}

impl Server {
    /// For everybody on this machine.
    pub fn open(installed: &Installed) -> Result<Self> {
        Self::start(installed, place()?, &["--no-auth"], &[], String::new())
    }

    pub fn with_token(installed: &Installed, owner: &str, scope: &str) -> Result<Self> {
        let place = place()?;
        let token = token(installed, &place, owner, scope)?;
        Self::start(installed, place, &[], &[], token)
    }

    pub fn with_audit_trail(installed: &Installed, owner: &str, scope: &str) -> Result<Self> {
        let place = place()?;
        let token = token(installed, &place, owner, scope)?;
        let trail = place.path().join("trail").display().to_string();
        Self::start(installed, place, &["--audit-log", &trail], &[], token)
    }

    /// Where people sign in; what they are given is good for `lifetime`.
    pub fn with_account(installed: &Installed, name: &str, password: &str, lifetime: &str) -> Result<Self> {
        let place = place()?;
        let written = place.path().join("password");
        fs::write(&written, password)?;
        let mut command = sandpen(installed, &place);
        command.args(["account", "create", name]).stdin(fs::File::open(&written)?);
        let made = command.output()?;
        if !made.status.success() {
            return Err(Trouble(format!("no account: {}", String::from_utf8_lossy(&made.stderr))));
        }
        Self::start(installed, place, &["--oauth", "--oauth-access-lifetime", lifetime], &[], String::new())
    }

    /// One that speaks for `code-runner` alone.
    pub fn older(installed: &Installed) -> Result<Self> {
        let place = place()?;
        let root = place.path().join("files").display().to_string();
        let token = "the-token-of-the-older-server".to_owned();
        let variables = [
            ("MCP_API_TOKEN", token.as_str()),
            ("SANDBOX_ROOT", &root),
            ("FILE_SECRET", "0123456789abcdef0123456789abcdef"),
            ("PUBLIC_BASE_URL", "http://127.0.0.1:8080"),
        ];
        Self::start(installed, place, &["--profile", "code-runner"], &variables, token.clone())
    }

    fn start(
        installed: &Installed,
        place: TempDir,
        flags: &[&str],
        variables: &[(&str, &str)],
        token: String,
    ) -> Result<Self> {
        let mut command = sandpen(installed, &place);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(flags).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = Program::start(&mut command, &place.path().join("server.log"))?;
        let mut server = Self { process, url: String::new(), token, place };
        let started = Instant::now();
        while server.url.is_empty() {
            if let Some(address) = address(&server.process.log()) {
                server.url = address;
            } else if let Some(status) = server.process.child.try_wait()? {
                return Err(server.process.tell(&format!("the server ended: {status}")));
            } else if started.elapsed() > START {
                return Err(server.process.tell("the server never said where its page is"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// One more who may come.
    pub fn token_for(&self, installed: &Installed, owner: &str, scope: &str) -> Result<String> {
        token(installed, &self.place, owner, scope)
    }

    /// What went wrong, with what the server wrote.
    pub fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|trouble| self.process.tell(&trouble.to_string()))
    }
}

fn place() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("sandpen-browser-").tempdir()?)
}

/// The program, which sees nothing of whoever runs the tests.
fn sandpen(installed: &Installed, place: &TempDir) -> Command {
    let mut command = Command::new(&installed.product);
    command
        .env_clear()
        .env("HOME", place.path())
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .arg("--state-dir")
        .arg(place.path().join("state"))
        .current_dir(place.path());
    if let Some(daemon) = &installed.daemon {
        // For code too: each language would have an image of its own, which nobody can fetch here.
        command.envs(daemon.variables()).env("SANDPEN_IMAGE", &daemon.image);
    }
    command
}

fn token(installed: &Installed, place: &TempDir, owner: &str, scope: &str) -> Result<String> {
    let mut command = sandpen(installed, place);
    command.args(["--json", "token", "create", "--owner", owner, "--scope", scope]);
    let made = run(&mut command, place.path(), START)?.succeeded()?.stdout;
    let made: Value = serde_json::from_str(&made).map_err(|error| format!("{error} in {made}"))?;
    Ok(made["token"].as_str().ok_or("no token was made")?.to_owned())
}

/// As the server says it to a person.
fn address(log: &str) -> Option<String> {
    let line = log.lines().find_map(|line| line.split_once("the dashboard is at "))?.1;
    line.ends_with('/').then(|| line.to_owned())
}
