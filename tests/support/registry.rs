//! A registry on the loopback.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::{NamedTempFile, TempDir};

use crate::Result;
use crate::program::Program;

pub struct Registry {
    pub host: String,
    _process: Program,
    _directory: TempDir,
    _users: Option<NamedTempFile>,
}

/// By bcrypt, as cheap as it can be.
const HASHED_PASSWORD: &str = "$2y$04$CdU41NspA5DDS12UwqAiSOmlGS.DNzegaJYP4raZNgZJ/eGT2FDEW";

impl Registry {
    pub fn start() -> Result<Self> {
        Self::set_up("")
    }

    /// One that lets in nobody but [`Registry::USER`] with [`Registry::PASSWORD`].
    pub fn start_closed() -> Result<Self> {
        let users = tempfile::NamedTempFile::new()?;
        fs::write(users.path(), format!("{}:{HASHED_PASSWORD}\n", Self::USER))?;
        let closed = format!("auth: {{htpasswd: {{realm: closed, path: '{}'}}}}\n", users.path().display());
        // It is read when somebody asks for the first time.
        Ok(Self { _users: Some(users), ..Self::set_up(&closed)? })
    }

    pub const USER: &str = "ada";
    pub const PASSWORD: &str = "secret";
    /// Both, as Docker's client keeps them.
    pub const LOGIN: &str = "YWRhOnNlY3JldA==";

    fn set_up(more: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-registry-").tempdir()?;
        let host = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let settings = directory.path().join("settings.yml");
        let data = directory.path().join("data");
        let storage = format!("storage: {{filesystem: {{rootdirectory: {}}}}}", data.display());
        fs::write(
            &settings,
            format!("version: 0.1\nlog: {{level: error}}\n{storage}\nhttp: {{addr: '{host}'}}\n{more}"),
        )?;
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
        Ok(Self { host, _process: process, _directory: directory, _users: None })
    }
}
