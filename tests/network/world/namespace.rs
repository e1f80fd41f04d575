//! Network namespaces without names: they live as long as somebody holds them, so nothing is left however a test ends.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandpen_tests::{Result, Trouble};

#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    pub fn new() -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "echo; read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Trouble(format!("unshare does not start: {error}")))?;
        let mut line = String::new();
        let stdout = holder.stdout.take().ok_or("no output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
        let file = File::open(format!("/proc/{}/ns/net", holder.id()));
        drop(holder.stdin.take());
        holder.wait()?;
        if line.is_empty() {
            return Err("no network namespace can be made".into());
        }
        Ok(Self(Arc::new(file?)))
    }

    /// Do something on a thread of its own that lives there. Sockets stay where they were made.
    pub fn enter<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let namespace = self.0.clone();
        let thread = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        });
        thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the work in a namespace panicked")))
    }

    /// How programs that this process starts can name it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }

    /// A list of `ip` commands, all of which must succeed.
    pub fn ip(&self, commands: &[String]) -> Result<()> {
        for command in commands {
            let output = Command::new("nsenter")
                .arg(format!("--net={}", self.path().display()))
                .args(["--", "ip"])
                .args(command.split(' '))
                .output()
                .map_err(|error| Trouble(format!("nsenter does not start: {error}")))?;
            if !output.status.success() {
                return Err(format!("ip {command}: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
            }
        }
        Ok(())
    }
}
