//! The program with the fixtures of the conformance suite, under a name of its own: the product is never built over.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandpen::embedded::launcher_main_if_asked();
    sandpen::main(&std::env::args_os().collect::<Vec<_>>()).into()
}
