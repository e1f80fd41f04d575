//! Builds process 1 of every sandbox as a static program, so that the engine can carry it inside itself.
//!
//! A nested cargo with a target directory of its own, because cargo cannot yet depend on a binary that is built with
//! other flags. The lock file is the workspace's.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    // `syscall.rs` is shared with process 1, which has no runtime.
    println!("cargo::rustc-cfg=server_side");
    for path in ["init/Cargo.toml", "init/src", "src/syscall.rs", "src/wire.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let target = variable("TARGET");
    let directory = PathBuf::from(variable("OUT_DIR")).join("init");
    let mut command = Command::new(variable("CARGO"));
    command.args(["build", "--quiet"]);
    if env::var_os("CARGO_FEATURE_WEAKEN").is_some() {
        command.args(["--features", "weaken"]);
    }
    let status = command
        .args(["--package", "sandpen-init", "--profile", "init", "--target", &target])
        .arg("--manifest-path")
        .arg(PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("init/Cargo.toml"))
        .arg("--target-dir")
        .arg(&directory)
        // Linked at a fixed address: nothing to relocate means nothing to copy in each of a thousand sandboxes.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static\u{1f}-Crelocation-model=static")
        .env_remove("RUSTFLAGS")
        // Set by `cargo clippy` and coverage tools for the outer build only.
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .unwrap_or_else(|error| panic!("cargo does not start: {error}"));
    assert!(
        status.success(),
        "process 1 of the sandboxes does not build; it needs a static C library (Debian: libc6-dev, Fedora: glibc-static)"
    );
    println!("cargo::rustc-env=SANDPEN_INIT={}", directory.join(target).join("init/sandpen-init").display());
}
