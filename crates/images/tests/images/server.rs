//! A real registry, on this machine, for one test.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::tools;

pub struct Registry {
    process: Child,
    pub port: u16,
    _directory: tempfile::TempDir,
}

/// User and password, for the registry that wants them.
pub const USER: &str = "ada";
pub const PASSWORD: &str = "correct horse";

impl Registry {
    pub fn start() -> Option<Self> {
        Self::start_with(|_| String::new())
    }

    /// One that lets in only one user.
    pub fn start_closed() -> Option<Self> {
        let htpasswd = tools::find("htpasswd", "a registry that wants a password is not tested")?;
        let line = tools::run(Command::new(htpasswd).args(["-Bbn", "-C", "4", USER, PASSWORD]));
        Self::start_with(|directory| {
            let file = directory.join("htpasswd");
            fs::write(&file, line.trim()).unwrap();
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", file.display())
        })
    }

    /// One that speaks TLS with this certificate and key.
    pub fn start_encrypted(certificate: &str, key: &str) -> Option<Self> {
        Self::start_with(|directory| {
            fs::write(directory.join("certificate.pem"), certificate).unwrap();
            fs::write(directory.join("key.pem"), key).unwrap();
            let path = directory.display();
            // Goes on in the section that the configuration ends with.
            format!("  tls:\n    certificate: {path}/certificate.pem\n    key: {path}/key.pem\n")
        })
    }

    fn start_with(more: impl FnOnce(&Path) -> String) -> Option<Self> {
        let program = tools::find("docker-registry", "pull and push are not tested with a real registry")?;
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = format!(
            "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\n\
             storage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n{}",
            directory.path().join("data").display(),
            more(directory.path()),
        );
        let file = directory.path().join("config.yml");
        fs::write(&file, config).unwrap();
        let registry = Self { process: serve(&program, &file), port, _directory: directory };
        registry.wait();
        Some(registry)
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn serve(program: &Path, config: &Path) -> Child {
    let mut command = Command::new(program);
    command.arg("serve").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
