//! Makes what the engines carry inside themselves: process 1 of every sandbox, a static program.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the sources of process 1 are, seen from here.
const NATIVE: &str = "../engine-native";

/// Names process 1 as a file, for who cannot build a Linux program where the server is built.
const PREBUILT: &str = "SANDPEN_INIT_PROGRAM";

fn main() {
    for path in ["src/frame.rs", "src/messages.rs", "src/stream.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for path in [
        "init/Cargo.toml",
        "init/build.rs",
        "init/src",
        "seccomp",
        "src/rights.rs",
        "src/seccomp",
        "src/syscall.rs",
        "src/wire.rs",
    ] {
        println!("cargo::rerun-if-changed={NATIVE}/{path}");
    }
    println!("cargo::rerun-if-env-changed={PREBUILT}");
    let init = match env::var_os(PREBUILT) {
        Some(path) => prebuilt(Path::new(&path)),
        None => built_init(&PathBuf::from(variable("OUT_DIR")).join("init")),
    };
    println!("cargo::rustc-env=SANDPEN_INIT={}", init.display());
    println!("cargo::rustc-env=SANDPEN_INIT_HASH={:016x}", hash(&init));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Sandboxes run Linux, wherever the server runs: elsewhere it is built for the same kind of processor.
fn target() -> (String, String) {
    let need = "it needs a static C library (Debian: libc6-dev, Fedora: glibc-static)";
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        return (variable("TARGET"), need.to_owned());
    }
    let target = format!("{}-unknown-linux-musl", variable("CARGO_CFG_TARGET_ARCH"));
    let need = format!(
        "it is a Linux program, wherever the server runs: `rustup target add {target}`, or build the package \
         sandpen-init on a Linux of the same kind of processor and name it by {PREBUILT}"
    );
    (target, need)
}

/// A wrong one would be found out by the first sandbox, far from here.
fn prebuilt(path: &Path) -> PathBuf {
    println!("cargo::rerun-if-changed={}", path.display());
    let path = path.canonicalize().unwrap_or_else(|error| panic!("{PREBUILT} names {}: {error}", path.display()));
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{PREBUILT} names {}: {error}", path.display()));
    let processor = variable("CARGO_CFG_TARGET_ARCH");
    // What `e_machine` of an ELF header says, in the byte order of both.
    let machine: u16 = match processor.as_str() {
        "x86_64" => 62,
        "aarch64" => 183,
        other => panic!("sandboxes run on x86_64 and aarch64, and this is a build for {other}"),
    };
    let is_ours = bytes.starts_with(b"\x7fELF") && bytes.get(18..20) == Some(machine.to_le_bytes().as_slice());
    assert!(is_ours, "{PREBUILT} names {}, which is no Linux program for {processor}", path.display());
    path
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
