//! The binary: the launcher's door first, because a launcher must never become anything else, then the command.

use std::process::ExitCode;

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    let arguments: Vec<_> = std::env::args_os().collect();
    // Before the words are understood: a launcher that turns out not to be needed ends unnoticed, and for the commands
    // that make sandboxes it is ready sooner.
    let names_engine = |word: &std::ffi::OsString| word.as_encoded_bytes().starts_with(b"--engine");
    let is_usual_engine = std::env::var_os("SANDPEN_ENGINE").is_none() && !arguments.iter().any(names_engine);
    if is_usual_engine && arguments.iter().any(|word| word == "run" || word == "create") {
        engine_native::start_launcher_ahead();
    }
    sandpen::main(&arguments).into()
}
