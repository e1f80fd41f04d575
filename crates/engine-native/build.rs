//! Makes what the engine carries inside itself: the filter of system calls, compiled from its policy.

use std::env;
use std::fs;
use std::path::PathBuf;

#[path = "src/seccomp/compile.rs"]
#[allow(dead_code, reason = "the engine uses the rest of it")]
mod compile;
#[path = "src/seccomp/policy.rs"]
#[allow(dead_code, reason = "the engine uses the rest of it")]
mod policy;

fn main() {
    // `syscall.rs` is shared with process 1, which has no runtime.
    println!("cargo::rustc-cfg=server_side");
    for path in ["src/seccomp", "seccomp"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let filter = PathBuf::from(variable("OUT_DIR")).join("filter");
    fs::write(&filter, compiled_filter()).unwrap_or_else(|error| panic!("the filter cannot be written: {error}"));
    println!("cargo::rustc-env=SANDPEN_FILTER={}", filter.display());
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
