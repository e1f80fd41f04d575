//! Makes what the engines carry inside themselves: process 1 of every sandbox, a static program.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the sources of process 1 are, seen from here.
const NATIVE: &str = "../engine-native";

fn main() {
    for path in ["src/frame.rs", "src/messages.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for path in ["init/Cargo.toml", "init/src", "src/syscall.rs", "src/wire.rs"] {
        println!("cargo::rerun-if-changed={NATIVE}/{path}");
    }
    let init = built_init(&PathBuf::from(variable("OUT_DIR")).join("init"));
    println!("cargo::rustc-env=SANDPEN_INIT={}", init.display());
    println!("cargo::rustc-env=SANDPEN_INIT_HASH={:016x}", hash(&init));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Sandboxes run Linux, wherever the server runs: elsewhere it is built for the same kind of processor.
fn target() -> (String, &'static str) {
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        return (variable("TARGET"), "it needs a static C library (Debian: libc6-dev, Fedora: glibc-static)");
    }
    let target = format!("{}-unknown-linux-musl", variable("CARGO_CFG_TARGET_ARCH"));
    (target, "it is a Linux program and needs that target (rustup target add x86_64-unknown-linux-musl, or aarch64)")
}

/// A nested cargo with a target directory of its own, because cargo cannot yet depend on a binary that is built with
/// other flags. The lock file is the workspace's.
fn built_init(directory: &Path) -> PathBuf {
    let (target, need) = target();
    let mut command = Command::new(variable("CARGO"));
    command.args(["build", "--quiet"]);
    if env::var_os("CARGO_FEATURE_WEAKEN").is_some() {
        command.args(["--features", "weaken"]);
    }
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        // The linker that comes with Rust: a foreign system has none for Linux.
        let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
        command.env(linker, "rust-lld");
    }
    let status = command
        .args(["--package", "sandpen-init", "--profile", "init", "--target", &target])
        .arg("--manifest-path")
        .arg(PathBuf::from(variable("CARGO_MANIFEST_DIR")).join(NATIVE).join("init/Cargo.toml"))
        .arg("--target-dir")
        .arg(directory)
        // Linked at a fixed address: nothing to relocate means nothing to copy in each of a thousand sandboxes.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static\u{1f}-Crelocation-model=static")
        .env_remove("RUSTFLAGS")
        // Set by `cargo clippy` and coverage tools for the outer build only.
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .unwrap_or_else(|error| panic!("cargo does not start: {error}"));
    assert!(status.success(), "process 1 of the sandboxes does not build for {target}; {need}");
    directory.join(target).join("init/sandpen-init")
}

/// Tells one build of process 1 from another, in a directory that only we can write to.
fn hash(program: &Path) -> u64 {
    let bytes = fs::read(program).unwrap_or_else(|error| panic!("{} cannot be read: {error}", program.display()));
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.finish()
}
