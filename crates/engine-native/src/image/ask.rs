//! Runs a program of the host for a moment to hear where it lives.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};

/// A shim of several shells on a busy host takes seconds. One that hangs costs this once for every process.
const PATIENCE: Duration = Duration::from_secs(15);
const LONGEST_ANSWER: u64 = 64 * 1024;

/// What decides which of several versions a shim starts. The program sees nothing else of our environment.
pub const VARIABLES: [&str; 16] = [
    "PATH",
    "HOME",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "RBENV_ROOT",
    "RBENV_VERSION",
    "NVM_DIR",
    "ASDF_DATA_DIR",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "CARGO_HOME",
    "GOROOT",
    "GOTOOLCHAIN",
    "JAVA_HOME",
];

/// A program that was not done in time; the next time it may be.
#[derive(Debug, PartialEq, Eq)]
pub struct NotInTime;

/// The absolute paths that the program names, one to a line.
pub fn ask(program: &Path, arguments: &[&str]) -> Result<Vec<PathBuf>, NotInTime> {
    match run(program, arguments, PATIENCE) {
        Ok(answer) => Ok(paths(&answer)),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(NotInTime),
        Err(error) => {
            tracing::debug!(%error, program = %program.display(), "does not say where it lives");
            Ok(Vec::new())
        }
    }
}

/// Java names its home among other settings, as `java.home = /…`.
fn paths(answer: &str) -> Vec<PathBuf> {
    let lines = answer.lines().map(str::trim);
    lines
        .map(|line| line.strip_prefix("java.home = ").unwrap_or(line))
        .filter(|line| line.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

fn run(program: &Path, arguments: &[&str], patience: Duration) -> std::io::Result<String> {
    let deadline = Instant::now() + patience;
    let (mut reader, writer) = std::io::pipe()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .env("LC_ALL", "C")
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command.spawn()?;
    // The command keeps our copies of the writing end, without whose closing there is no end of the answer.
    drop(command);

    let mut answer = Vec::new();
    let outcome = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut waiting = [PollFd::new(&reader, PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => break Err(std::io::ErrorKind::TimedOut.into()),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => break Err(error.into()),
            Ok(_) => {}
        }
        let mut buffer = [0; 4096];
        match reader.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) => break Err(error),
        }
        if answer.len() as u64 > LONGEST_ANSWER {
            break Err(std::io::Error::other("the answer has no end"));
        }
    };
    // The answer is complete or will never be: nobody has to finish properly, and nobody may stay behind.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    child.wait()?;
    outcome?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> std::io::Result<String> {
        run(Path::new("/bin/sh"), &["-c", script], patience)
    }

    #[test]
    fn both_outputs_are_heard_and_only_paths_count() {
        let answer = shell("echo /one; echo two; echo '    java.home = /three' >&2", PATIENCE).unwrap();
        assert_eq!(paths(&answer), [PathBuf::from("/one"), PathBuf::from("/three")]);
    }

    #[test]
    fn silence_and_chatter_both_end() {
        let start = Instant::now();
        let silent = shell("sleep 60 & sleep 60", Duration::from_millis(100)).unwrap_err();
        assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut);
        assert!(shell("yes", PATIENCE).is_err());
        assert!(shell("echo /here; exec >&- 2>&-; sleep 60", PATIENCE).is_ok());
        assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    }

    #[test]
    fn little_of_our_environment_is_seen() {
        let answer = shell("env", PATIENCE).unwrap();
        let names: Vec<&str> = answer.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        let expected =
            |name: &&str| VARIABLES.contains(name) || ["LC_ALL", "PWD", "OLDPWD", "SHLVL", "_"].contains(name);
        assert!(names.iter().all(expected), "{names:?}");
    }
}
