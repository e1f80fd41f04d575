//! The binary: the launcher's door first, because a launcher must never become anything else, then the command.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandpen::embedded::launcher_main_if_asked();
    let arguments: Vec<_> = std::env::args_os().collect();
    sandpen::embedded::start_ahead(&arguments);
    sandpen::main(&arguments).into()
}
