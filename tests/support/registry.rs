//! A registry on the loopback.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Result;
use crate::program::Program;

pub struct Registry {
    pub host: String,
    _process: Program,
    _directory: TempDir,
}

impl Registry {
    pub fn start() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-registry-").tempdir()?;
        let host = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let settings = directory.path().join("settings.yml");
        let data = directory.path().join("data");
        let storage = format!("storage: {{filesystem: {{rootdirectory: {}}}}}", data.display());
        fs::write(&settings, format!("version: 0.1\nlog: {{level: error}}\n{storage}\nhttp: {{addr: '{host}'}}\n"))?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(settings).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Program::start(&mut command, &directory.path().join("log"))?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(&host).is_err() {
            if process.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(process.tell("the registry does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { host, _process: process, _directory: directory })
    }
}
