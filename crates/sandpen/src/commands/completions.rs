//! `sandpen completions`: what a shell needs to complete our commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use sandbox::Result;

use crate::cli::{Cli, examples};
use crate::exit::Exit;
use crate::output;

/// Print completions for a shell
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen completions bash > ~/.local/share/bash-completion/completions/sandpen", "bash"),
    ("sandpen completions zsh > ~/.zfunc/_sandpen", "zsh, with ~/.zfunc in fpath"),
    ("sandpen completions fish > ~/.config/fish/completions/sandpen.fish", "fish"),
]))]
pub struct Arguments {
    shell: Shell,
}

pub fn run(arguments: Arguments) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "sandpen", &mut script);
    output::text(&String::from_utf8_lossy(&script));
    Ok(Exit::SUCCESS)
}
