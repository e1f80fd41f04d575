//! Programs of others that ours must agree with.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Where a program is; says aloud what is not tested without it.
pub fn find(program: &str, loss: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file());
    if found.is_none() {
        _ = writeln!(std::io::stdout(), "SKIPPED: {program} is not installed: {loss}");
    }
    found
}

#[track_caller]
pub fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

/// `skopeo`, which must not look for signatures and settings of the machine.
pub fn skopeo() -> Option<Command> {
    let mut command = Command::new(find("skopeo", "images are not compared with its reading of them")?);
    command.arg("--insecure-policy").env("HOME", std::env::temp_dir());
    Some(command)
}
