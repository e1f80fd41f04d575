//! The edge: the command line, the settings, and the wiring of engine and service. No rules about sandboxes.

use std::ffi::OsString;

use clap::CommandFactory;

pub mod api;
pub mod audit;
pub mod auth;
#[cfg(target_os = "linux")]
pub mod build;
pub mod cli;
pub mod commands;
pub mod config;
pub mod dashboard;
#[cfg_attr(not(target_os = "linux"), path = "no_embedded.rs")]
pub mod embedded;
pub mod exit;
#[cfg(target_os = "linux")]
pub mod export;
pub mod files;
pub mod http;
pub mod install;
pub mod limits;
pub mod log;
pub mod mcp;
pub mod metrics;
pub mod outcome;
pub mod output;
pub mod packages;
pub mod previews;
pub mod profiles;
mod pulls;
pub mod random;
pub mod service_manager;
pub mod spinner;
pub mod suggest;
pub mod table;
pub mod time;

pub mod attach;
pub mod signals;
#[cfg_attr(not(target_os = "linux"), path = "streams/threads.rs")]
pub mod streams;
#[cfg_attr(windows, path = "terminal/windows.rs")]
pub mod terminal;
pub mod trace;
pub mod transfer;
pub mod wiring;

use crate::cli::Cli;
use crate::config::{Color, Config};
use crate::exit::Exit;
use crate::output::{Audience, Teller};

/// Everything from the words that were typed to the exit code.
pub fn main(arguments: &[OsString]) -> Exit {
    let early = Early::look_at(arguments);
    output::use_color(early.color);
    let cli = match Cli::understand(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&early, arguments, &error),
    };
    let failure = cli.command.failure();
    let mut teller = early.teller();
    let done = Config::load(cli.written(), cli.global.config.clone()).and_then(|config| {
        output::use_color(config.color);
        teller = Teller::new(&config);
        cli.command.run(config)
    });
    done.unwrap_or_else(|error| {
        teller.error(&error);
        failure
    })
}

/// What must be known before the command line is understood, because a misunderstood one must be reported too.
struct Early {
    color: Color,
    audience: Audience,
}

impl Early {
    fn look_at(arguments: &[OsString]) -> Self {
        let words: Vec<&str> =
            arguments.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--").collect();
        let color = words.iter().enumerate().find_map(|(index, word)| {
            let value = if *word == "--color" { words.get(index + 1).copied() } else { word.strip_prefix("--color=") };
            value.and_then(|value| value.parse().ok())
        });
        Self { color: color.unwrap_or(Color::Auto), audience: Audience::new(words.contains(&"--json")) }
    }

    fn teller(&self) -> Teller {
        Teller { audience: self.audience, verbose: false }
    }
}

/// Help and version are printed as asked; a command line that makes no sense is an error like any other.
fn usage(early: &Early, arguments: &[OsString], error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::SUCCESS;
    }
    match early.audience {
        Audience::Person => {
            let _ = error.print();
        }
        Audience::Program => early.teller().error(&cli::usage_error(error)),
    }
    let root = Cli::command();
    match arguments.iter().skip(1).find_map(|word| root.find_subcommand(word)).map(clap::Command::get_name) {
        Some("run" | "exec") => Exit::OURS,
        Some(_) | None => Exit::USAGE,
    }
}
