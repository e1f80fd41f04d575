//! Commands for developers.
//!
//! No dependency on the product's crates: when those do not build, this still runs, says so, and counts it as a failure.

mod bench;
mod clients;
mod prepare;
mod process;
mod programs;
mod stage;
mod targets;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [STAGE…]      everything that must hold before a change is taken; STAGE picks some, --list names them
  soak               10,000 cycles, 1,000 kills, and 200 of servers on each daemon: some hours
  bench [--base REF] the speed table, beside that of another commit when one is named
  docs [--check]     write the generated tables, or only say which are stale
  check-targets      whether it builds for macOS and Windows, as far as their targets are installed;
                     --build-std needs none of them, but the sources of the standard library
  deny               licences and advisories of the dependencies, when cargo-deny is installed
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    match arguments.first().map(String::as_str) {
        Some("test") => test::test(rest),
        Some("soak") => test::soak(),
        Some("bench") => bench::bench(rest),
        Some("docs") => test::docs(rest),
        Some("check-targets") => targets::command(rest),
        Some("deny") => test::deny(),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Some(_) | None => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the repository").to_owned()
}
