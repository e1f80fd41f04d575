//! Whether the product still builds for systems that are not Linux. It is only checked, which needs no linker and none of
//! their libraries but the standard one; what is missing here to do that is skipped by name.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::process::is_installed;
use crate::root;
use crate::stage::{Counting, Tally, run};
use crate::test::{Extent, cargo};

mod from_source;

const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Names process 1 as a file; read by the build script of the agent.
const PREBUILT: &str = "SANDPEN_INIT_PROGRAM";

struct Target {
    name: &'static str,
    processor: &'static str,
    /// For the few parts of dependencies that are written in C.
    compiler: &'static str,
}

const TARGETS: &[Target] = &[
    Target { name: "aarch64-apple-darwin", processor: "aarch64", compiler: "aarch64-apple-darwin-clang" },
    Target { name: "x86_64-apple-darwin", processor: "x86_64", compiler: "x86_64-apple-darwin-clang" },
    Target { name: "x86_64-pc-windows-gnu", processor: "x86_64", compiler: "x86_64-w64-mingw32-gcc" },
];

/// What a target is checked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Installed,
    FromSource,
}

/// `cargo xtask check-targets [--build-std] [TARGET…]`
pub fn command(arguments: &[String]) -> ExitCode {
    let (library, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "--build-std" => (Library::FromSource, rest),
        Some(_) | None => (Library::Installed, arguments),
    };
    let known = |name: &&String| TARGETS.iter().any(|target| target.name == **name);
    if let Some(unknown) = arguments.iter().find(|name| !known(name)) {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("{unknown} is none of the targets: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let sum = check(library, |target| arguments.is_empty() || arguments.iter().any(|name| name == target));
    println!("{sum}");
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All of them. Whoever asks for nothing else has the time to build what is missing.
pub fn all(extent: Extent) -> Tally {
    let library = match extent {
        Extent::Part => Library::Installed,
        Extent::Whole => Library::FromSource,
    };
    check(library, |_| true)
}

fn check(library: Library, wanted: impl Fn(&str) -> bool) -> Tally {
    let mut sum = Tally::default();
    for target in TARGETS.iter().filter(|target| wanted(target.name)) {
        println!("--> {}", target.name);
        let prepared = match library {
            Library::Installed => target.prepare(),
            Library::FromSource => from_source::prepare(target.name, target.processor),
        };
        sum.add(match prepared {
            Ok(mut command) => run(&mut command, Counting::ExitCode, PATIENCE),
            Err(missing) => {
                println!("SKIPPED: {}: {missing}", target.name);
                Tally::SKIPPED
            }
        });
    }
    sum
}

impl Target {
    /// The check, or what is missing for it.
    fn prepare(&self) -> Result<Command, String> {
        let Self { name, processor, compiler } = self;
        if !has_library(name) {
            return Err(format!("it is not installed; rustup target add {name}"));
        }
        let variable = format!("CC_{}", name.replace('-', "_"));
        let is_own = cfg!(target_os = "macos") && name.ends_with("apple-darwin");
        if !is_own && std::env::var_os(&variable).is_none() && !is_installed(compiler) {
            return Err(format!("there is no C compiler for it; install {compiler}, or name one by {variable}"));
        }
        let mut command = cargo(&[]);
        command.args(["check", "--package", "sandpen", "--target", name]);
        // Some systems have an SDK that is asked for before anything is compiled, and not needed for this.
        command.env("SDKROOT", std::env::var_os("SDKROOT").unwrap_or_else(|| "/".into()));
        if std::env::var_os(PREBUILT).is_none() && !has_library(&format!("{processor}-unknown-linux-musl")) {
            command.env(PREBUILT, built_init(processor)?);
        }
        Ok(command)
    }
}

/// Process 1 of sandboxes is a Linux program for every one of them. One that was built for here serves the same processor.
fn built_init(processor: &str) -> Result<PathBuf, String> {
    let need = format!("process 1 does not build for it; rustup target add {processor}-unknown-linux-musl");
    if !cfg!(target_os = "linux") || std::env::consts::ARCH != processor {
        return Err(need);
    }
    let (host, directory) = (format!("{processor}-unknown-linux-gnu"), root().join("target/targets"));
    let mut command = cargo(&[]);
    command.args(["build", "--quiet", "--package", "sandpen-init", "--profile", "init", "--target", &host]);
    command.arg("--target-dir").arg(&directory).env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    match command.status() {
        Ok(status) if status.success() => Ok(directory.join(host).join("init/sandpen-init")),
        Ok(_) | Err(_) => Err(need),
    }
}

fn has_library(target: &str) -> bool {
    let Some(sysroot) = sysroot() else { return false };
    let library = sysroot.join("lib/rustlib").join(target).join("lib");
    let mut files = std::fs::read_dir(library).into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

/// Where the toolchain is.
fn sysroot() -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
