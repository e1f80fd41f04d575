//! The speed table of this tree, beside that of another commit when one is named.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::root;

pub fn bench(arguments: &[String]) -> ExitCode {
    let base = match arguments {
        [] => None,
        [flag, base] if flag == "--base" => Some(base),
        _ => {
            eprintln!("usage: cargo xtask bench [--base REF]");
            return ExitCode::from(2);
        }
    };
    if let Some(base) = base {
        let checkout = root().join("target/bench-base");
        if !check_out(base, &checkout) {
            eprintln!("{base} cannot be checked out");
            return ExitCode::FAILURE;
        }
        println!("==> {base}");
        let measured = measure(&checkout);
        let _ = Command::new("git").current_dir(root()).args(["worktree", "remove", "--force"]).arg(&checkout).status();
        if !measured {
            return ExitCode::FAILURE;
        }
    }
    println!("==> this tree");
    if measure(&root()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_out(commit: &str, into: &Path) -> bool {
    let git = |arguments: &[&str]| {
        Command::new("git").current_dir(root()).args(arguments).arg(into).status().is_ok_and(|status| status.success())
    };
    if into.exists() {
        git(&["worktree", "remove", "--force"]);
    }
    Command::new("git")
        .current_dir(root())
        .args(["worktree", "add", "--detach"])
        .arg(into)
        .arg(commit)
        .status()
        .is_ok_and(|status| status.success())
}

fn measure(tree: &Path) -> bool {
    Command::new("cargo")
        .current_dir(tree)
        .args(["run", "--quiet", "--release", "--package", "sandpen", "--", "bench"])
        .status()
        .is_ok_and(|status| status.success())
}
