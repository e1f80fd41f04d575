//! `sandpen serve` on a port of its own.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandpen_tests::Result;
use sandpen_tests::program::Program;

use crate::scene::Scene;

const START: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(15);

pub struct Server {
    process: Program,
    /// Of Streamable HTTP.
    pub url: String,
}

impl Server {
    /// Waits until it has said where it listens.
    pub fn start(scene: &Scene<'_>, program: &Path) -> Result<Self> {
        Self::start_with(scene, program, &["--listen", "127.0.0.1:0"], &[])
    }

    /// With these variables, and flags that may say where it listens.
    pub fn start_with(scene: &Scene<'_>, program: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        Self::by(scene, program, &[&["--no-auth"], flags].concat(), variables)
    }

    /// One that asks who they are.
    pub fn guarded(scene: &Scene<'_>, program: &Path, flags: &[&str]) -> Result<Self> {
        Self::by(scene, program, flags, &[])
    }

    fn by(scene: &Scene<'_>, program: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = scene.command(program);
        command.arg("--state-dir").arg(scene.state()).arg("serve").args(flags).envs(variables.iter().copied());
        Self::of(scene, &mut command, "server.log")
    }

    /// Whatever says where it listens in the same words.
    pub fn of(scene: &Scene<'_>, command: &mut Command, log: &str) -> Result<Self> {
        let process = Program::start(command.stdin(Stdio::null()).stdout(Stdio::null()), &scene.path().join(log))?;
        let mut server = Self { process, url: String::new() };
        let started = Instant::now();
        loop {
            if let Some(url) = address(&server.process.log()) {
                server.url = url;
                return Ok(server);
            }
            if let Some(status) = server.process.child.try_wait()? {
                return Err(server.process.tell(&format!("the server ended: {status}")));
            }
            if started.elapsed() > START {
                return Err(server.process.tell("the server never said where it listens"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Of HTTP+SSE.
    pub fn sse_url(&self) -> String {
        self.url.replace("/mcp", "/sse")
    }

    /// As an operator stops it.
    pub fn stop(mut self) -> Result<()> {
        self.process.terminate();
        let status = self.process.wait_within(END)?;
        if status.success() { Ok(()) } else { Err(self.process.tell(&format!("the server ended with {status}"))) }
    }

    /// The trouble of a client, with what the server had to say.
    pub fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|trouble| self.process.tell(&trouble.to_string()))
    }
}

/// In a line that is complete.
fn address(log: &str) -> Option<String> {
    let (line, _) = log.split_once('\n')?;
    let (_, rest) = line.split_once("http://")?;
    let (host, _) = rest.split_once("/mcp")?;
    Some(format!("http://{host}/mcp"))
}
