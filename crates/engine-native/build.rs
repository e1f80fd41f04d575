//! Makes what the engine carries inside itself: process 1 of every sandbox as a static program, and the filter of system
//! calls, compiled from its policy.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/seccomp/compile.rs"]
#[allow(dead_code, reason = "the engine uses the rest of it")]
mod compile;
#[path = "src/seccomp/policy.rs"]
#[allow(dead_code, reason = "the engine uses the rest of it")]
mod policy;

fn main() {
    // `syscall.rs` is shared with process 1, which has no runtime.
    println!("cargo::rustc-cfg=server_side");
    for path in ["init/Cargo.toml", "init/src", "src/syscall.rs", "src/wire.rs", "src/seccomp", "seccomp"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let output = PathBuf::from(variable("OUT_DIR"));
    let filter = output.join("filter");
    fs::write(&filter, compiled_filter()).unwrap_or_else(|error| panic!("the filter cannot be written: {error}"));
    println!("cargo::rustc-env=SANDPEN_FILTER={}", filter.display());
    let init = built_init(&output.join("init"));
    println!("cargo::rustc-env=SANDPEN_INIT={}", init.display());
    println!("cargo::rustc-env=SANDPEN_INIT_HASH={:016x}", hash(&init));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// An array of `struct sock_filter`, for the machine that we build for.
fn compiled_filter() -> Vec<u8> {
    let architecture = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "x86_64" => policy::Architecture::X86_64,
        "aarch64" => policy::Architecture::Aarch64,
        other => panic!("there is no filter of system calls for {other}"),
    };
    let policy = policy::Policy::built_in(architecture).unwrap_or_else(|error| panic!("seccomp/default.json: {error}"));
    compile::compile(&policy).into_iter().flat_map(compile::Instruction::to_bytes).collect()
}

/// A nested cargo with a target directory of its own, because cargo cannot yet depend on a binary that is built with
/// other flags. The lock file is the workspace's.
fn built_init(directory: &Path) -> PathBuf {
    let target = variable("TARGET");
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
        .arg(directory)
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
    directory.join(target).join("init/sandpen-init")
}

/// Tells one build of process 1 from another, in a directory that only we can write to.
fn hash(program: &Path) -> u64 {
    let bytes = fs::read(program).unwrap_or_else(|error| panic!("{} cannot be read: {error}", program.display()));
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.finish()
}
