//! Programs that a test starts: they end with it, and say what they said when something went wrong.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{Result, Trouble, processes};
use rustix::process::{Pid, Signal, kill_process};

/// A program of this workspace, which lies beside the test programs wherever Cargo builds.
pub fn built(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let program = here.ancestors().nth(2).ok_or("this program lies nowhere")?.join(name);
    if program.is_file() { Ok(program) } else { Err(format!("{} is not built", program.display()).into()) }
}

/// Whether `program` is found in the search path.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// A child whose whole tree is killed when this is dropped.
pub struct Program {
    pub child: Child,
    log: PathBuf,
}

impl Program {
    /// Its stderr goes to `log`; the other streams as the command says.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let child = command.stderr(File::create(log)?).spawn();
        let child = child.map_err(|error| Trouble(format!("{} does not start: {error}", shown(command))))?;
        Ok(Self { child, log: log.to_owned() })
    }

    pub fn wait_within(&mut self, limit: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() > limit {
                return Err(self.tell(&format!("it has not ended after {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn terminate(&self) {
        signal(self.child.id(), Signal::TERM);
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What went wrong, with what it wrote to stderr.
    pub fn tell(&self, what: &str) -> Trouble {
        let log = self.log();
        Trouble(if log.trim().is_empty() { what.to_owned() } else { format!("{what}; its stderr:\n{log}") })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            for process in processes::descendants(self.child.id()) {
                signal(process.pid, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a program that ran to its end left.
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Anything but success is a failure that shows everything that was written.
    pub fn succeeded(self) -> Result<Self> {
        if self.status.success() { Ok(self) } else { Err(self.told(&self.status.to_string())) }
    }

    pub fn told(&self, what: &str) -> Trouble {
        Trouble(format!("{what}\n{}{}", self.stdout, self.stderr))
    }
}

pub fn run(command: &mut Command, directory: &Path, limit: Duration) -> Result<Ran> {
    let place = tempfile::tempdir_in(directory)?;
    let out = place.path().join("stdout");
    let mut process =
        Program::start(command.stdin(Stdio::null()).stdout(File::create(&out)?), &place.path().join("stderr"))?;
    let status = process.wait_within(limit);
    let stdout = fs::read_to_string(&out).unwrap_or_default();
    match status {
        Ok(status) => Ok(Ran { status, stdout, stderr: process.log() }),
        Err(trouble) => Err(format!("{}: {trouble}\n{stdout}", shown(command)).into()),
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
