//! Makes the filter of system calls that process 1 adds in a sandbox that somebody else's daemon has built: the embedded
//! engine's policy, for programs of this processor.

use std::env;
use std::fs;
use std::path::PathBuf;

#[path = "../src/seccomp/compile.rs"]
#[allow(dead_code, reason = "the engine uses the rest of it")]
mod compile;
#[path = "../src/seccomp/policy.rs"]
#[allow(dead_code, reason = "the engine uses the rest of it")]
mod policy;

fn main() {
    for path in ["../src/seccomp", "../seccomp"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let architecture = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "x86_64" => policy::Architecture::X86_64,
        "aarch64" => policy::Architecture::Aarch64,
        other => panic!("there is no filter of system calls for {other}"),
    };
    let policy = policy::Policy::built_in(architecture).unwrap_or_else(|error| panic!("seccomp/default.json: {error}"));
    // Daemons run old programs of the same family too; `filter` knows what they may not ask for.
    let filter = compile::compile_with(&policy, policy::Answer::Allow);
    let bytes: Vec<u8> = filter.into_iter().flat_map(compile::Instruction::to_bytes).collect();
    let path = PathBuf::from(variable("OUT_DIR")).join("policy");
    fs::write(&path, bytes).unwrap_or_else(|error| panic!("the filter cannot be written: {error}"));
    println!("cargo::rustc-env=SANDPEN_POLICY={}", path.display());
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
