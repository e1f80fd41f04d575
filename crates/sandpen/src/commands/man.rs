//! `sandpen man`: the manual pages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use sandbox::{Error, Result};

use crate::cli::{Cli, examples};
use crate::exit::Exit;
use crate::output;

/// Print the manual page, or write the pages of all commands
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen man | man -l -", "read it"),
    ("sandpen man --directory /usr/local/share/man/man1", "install all pages"),
]))]
pub struct Arguments {
    /// Write one page per command into this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

pub fn run(arguments: Arguments) -> Result<Exit> {
    match arguments.directory {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(|cause| Error::internal("the manual page could not be made").with_cause(cause))?;
            output::text(&String::from_utf8_lossy(&page));
        }
        Some(directory) => {
            clap_mangen::generate_to(Cli::command(), &directory).map_err(|cause| {
                Error::invalid_input(format!(
                    "the manual pages cannot be written to {}: {}",
                    directory.display(),
                    output::reason(&cause)
                ))
            })?;
        }
    }
    Ok(Exit::SUCCESS)
}
