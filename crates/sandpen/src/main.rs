//! The binary: the launcher's door first, because a launcher must never become anything else, then the command.

use std::process::ExitCode;

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    let arguments: Vec<_> = std::env::args_os().collect();
    sandpen::main(&arguments).into()
}
