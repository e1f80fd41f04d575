//! Checks for targets that nothing is installed for: with a standard library that is built from its sources, and stand-ins
//! for all other things of those systems. Nothing is linked, so what their tools would make may be empty.

use std::fs::{self, Permissions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PREBUILT, sysroot};
use crate::root;

/// Names the sources of the standard library, where the toolchain has none: the directory `library` of the same version.
const SOURCES: &str = "SANDPEN_RUST_SOURCES";

/// Where rustup is not, or has no sources.
const DEBIAN_PACKAGES: &str = "Debian's rustc-web, cargo-web and rust-web-src";

/// How cargo itself is told of them. Its name says that nobody should, but the only other way is to change the toolchain.
const SOURCES_FOR_CARGO: &str = "__CARGO_TESTS_ONLY_SRC_ROOT";

/// As a C compiler it says of which family it is (one that takes `-?` would be Microsoft's), and makes empty objects; as
/// `dlltool` it makes empty libraries.
const TOOL: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    '-?') exit 1 ;;
    -E) echo '"gcc"' ;;
    -o) : > "$2" ;;
    -l) echo '!<arch>' > "$2" ;;
  esac
  shift
done
"#;

/// The check, or what is missing for it.
pub fn prepare(target: &str, processor: &str) -> Result<Command, String> {
    let Toolchain { cargo, compiler, library } = toolchain().ok_or(format!(
        "there are no sources; rustup component add rust-src, name them by {SOURCES}, or install {DEBIAN_PACKAGES}"
    ))?;
    let directory = root().join("target/targets");
    let (tool, init) =
        stand_ins(&directory, processor).map_err(|error| format!("no stand-ins can be made: {error}"))?;
    let variable = target.replace('-', "_");
    let mut command = Command::new(cargo);
    command.current_dir(root()).env("RUSTC", compiler);
    // Not in the usual directory: what is built with other variables would push out what others need.
    command.args(["check", "--package", "sandpen", "-Zbuild-std", "--target", target, "--target-dir"]).arg(directory);
    // A stable compiler builds the standard library only when it is told that this is what it is for.
    command.env("RUSTC_BOOTSTRAP", "1").env(SOURCES_FOR_CARGO, library).env(PREBUILT, init).env("SDKROOT", "/");
    command.env(format!("CC_{variable}"), &tool).env(format!("AR_{variable}"), "ar");
    if target.ends_with("windows-gnu") {
        let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", variable.to_uppercase());
        command.env(flags, format!("-Cdlltool={}", tool.display()));
    }
    Ok(command)
}

/// A compiler, and the sources of the standard library that it was made with.
struct Toolchain {
    cargo: PathBuf,
    compiler: PathBuf,
    library: PathBuf,
}

fn toolchain() -> Option<Toolchain> {
    let of_this_run = || {
        let own = || sysroot().map(|sysroot| sysroot.join("lib/rustlib/src/rust/library"));
        let library = std::env::var_os(SOURCES).map(PathBuf::from).or_else(own)?;
        let named = |variable, usual: &str| std::env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from);
        Some(Toolchain { cargo: named("CARGO", "cargo"), compiler: named("RUSTC", "rustc"), library })
    };
    let is_whole = |toolchain: &Toolchain| toolchain.library.join("std/Cargo.toml").is_file();
    of_this_run().filter(is_whole).or_else(|| of_debian().filter(is_whole))
}

/// Debian keeps a compiler that is new enough for browsers also in its older releases, with its sources.
fn of_debian() -> Option<Toolchain> {
    let (cargo, compiler) = (PathBuf::from("/usr/bin/cargo"), PathBuf::from("/usr/bin/rustc"));
    let output = Command::new(&compiler).arg("--version").output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let version = said.split(' ').nth(1)?;
    let library = PathBuf::from(format!("/usr/src/rustc-{version}/library"));
    cargo.is_file().then_some(Toolchain { cargo, compiler, library })
}

/// A tool, and a process 1: of that, the build looks only at what kind of program it is.
fn stand_ins(directory: &Path, processor: &str) -> io::Result<(PathBuf, PathBuf)> {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(directory)?;
    let (tool, init) = (directory.join("tool"), directory.join(format!("init-{processor}")));
    write_changed(&tool, TOOL.as_bytes())?;
    fs::set_permissions(&tool, Permissions::from_mode(0o755))?;
    let machine: u16 = if processor == "aarch64" { 183 } else { 62 };
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(18, 0);
    header.extend(machine.to_le_bytes());
    write_changed(&init, &header)?;
    Ok((tool, init))
}

/// A file that is newer would be a reason to build again.
fn write_changed(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == content) { Ok(()) } else { fs::write(path, content) }
}
