//! The command line as a whole: the program, its commands, its global options.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::builder::styling::Styles;
use clap::{Parser, Subcommand};
use sandbox::{Error, Result};

use crate::commands::{
    account, audit, bench, checkpoint, completions, cp, create, diff, doctor, exec, export, fork, image, install,
    links, logs, man, mcp, package, ps, restore, run, save, secret, serve, stop, token, tools,
};
use crate::config::flags::GlobalFlags;
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::output::{ADVICE, BAD, DIM, GOOD};

const STYLES: Styles = Styles::styled().header(GOOD).usage(GOOD).literal(ADVICE).placeholder(DIM).error(BAD);

/// Run code in sandboxes that start in milliseconds
///
/// Each sandbox is a private computer: its own files, processes and limits, no network unless you ask for one, and nothing
/// of this machine but its programs, read-only. No daemon, no image and no set-up is needed.
///
/// Settings such as --memory are also read from variables (SANDPEN_MEMORY=1G) and from a file (memory = "1G" in
/// ~/.config/sandpen/sandpen.toml or /etc/sandpen/sandpen.toml); a flag wins over a variable, and that over the file.
#[derive(Debug, Parser)]
#[command(
    name = "sandpen",
    version,
    styles = STYLES,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = examples(&[
        ("sandpen run python 'print(6 * 7)'", "run a line of code"),
        ("sandpen run script.py --input data.csv", "run a file, with another beside it"),
        ("id=$(sandpen create)", "make a sandbox that stays"),
        ("sandpen exec $id -- uname -a", "run a command in it"),
        ("sandpen doctor", "see what protects you on this machine"),
    ])
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten)]
    pub global: GlobalFlags,
}

impl Cli {
    /// A command line as a whole.
    ///
    /// To describe every option of every command takes as long as a tenth of the building of a sandbox. So `run` alone is
    /// tried first; whatever it does not understand, a question for help too, is for the whole to answer.
    pub fn understand(arguments: &[OsString]) -> std::result::Result<Self, clap::Error> {
        if arguments.iter().any(|word| word == "run")
            && let Ok(OnlyRun { command: RunCommand::Run(run), global }) = OnlyRun::try_parse_from(arguments)
        {
            return Ok(Self { command: Command::Run(run), global });
        }
        Self::try_parse_from(arguments)
    }

    /// Every setting on this command line, those of the command included.
    pub fn written(&self) -> Written {
        let mut written = self.global.written();
        match &self.command {
            Command::Run(arguments) => arguments.write_to(&mut written),
            Command::Create(arguments) => arguments.write_to(&mut written),
            Command::Exec(arguments) => arguments.write_to(&mut written),
            Command::Mcp(arguments) => arguments.write_to(&mut written),
            Command::Tools(arguments) => arguments.write_to(&mut written),
            Command::Serve(arguments) => arguments.write_to(&mut written),
            Command::Image(arguments) => arguments.write_to(&mut written),
            Command::Fork(arguments) => arguments.write_to(&mut written),
            Command::Cp(_)
            | Command::Ps(_)
            | Command::Logs(_)
            | Command::Stop(_)
            | Command::Save(_)
            | Command::Checkpoint(_)
            | Command::Diff(_)
            | Command::Restore(_)
            | Command::Export(_)
            | Command::Package(_)
            | Command::Secret(_)
            | Command::Token(_)
            | Command::Links(_)
            | Command::Account(_)
            | Command::Audit(_)
            | Command::Install(_)
            | Command::Doctor(_)
            | Command::Bench(_)
            | Command::Completions(_)
            | Command::Man(_) => {}
        }
        written
    }
}

#[derive(Debug, Parser)]
#[command(disable_help_flag = true, disable_help_subcommand = true)]
struct OnlyRun {
    #[command(subcommand)]
    command: RunCommand,

    #[command(flatten)]
    global: GlobalFlags,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(run::Arguments),
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::Arguments),
    Create(create::Arguments),
    Exec(exec::Arguments),
    Cp(cp::Arguments),
    Ps(ps::Arguments),
    Logs(logs::Arguments),
    Stop(stop::Arguments),
    Save(save::Arguments),
    Fork(fork::Arguments),
    Checkpoint(checkpoint::Arguments),
    Diff(diff::Arguments),
    Restore(restore::Arguments),
    Export(export::Arguments),
    Image(image::Arguments),
    Package(package::Arguments),
    Secret(secret::Arguments),
    Token(token::Arguments),
    Links(links::Arguments),
    Account(account::Arguments),
    Audit(audit::Arguments),
    // These two have by far the most options.
    Mcp(Box<mcp::Arguments>),
    Serve(Box<serve::Arguments>),
    Tools(tools::Arguments),
    Install(install::Arguments),
    Doctor(doctor::Arguments),
    Bench(bench::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

impl Command {
    pub fn run(self, config: Config) -> Result<Exit> {
        match self {
            Self::Run(arguments) => run::run(arguments, config),
            Self::Create(arguments) => create::run(arguments, config),
            Self::Exec(arguments) => exec::run(arguments, config),
            Self::Cp(arguments) => cp::run(arguments, config),
            Self::Ps(arguments) => ps::run(arguments, config),
            Self::Logs(arguments) => logs::run(arguments, config),
            Self::Stop(arguments) => stop::run(arguments, config),
            Self::Save(arguments) => save::run(arguments, config),
            Self::Fork(arguments) => fork::run(arguments, config),
            Self::Checkpoint(arguments) => checkpoint::run(arguments, config),
            Self::Diff(arguments) => diff::run(arguments, config),
            Self::Restore(arguments) => restore::run(arguments, config),
            Self::Export(arguments) => export::run(arguments, config),
            Self::Image(arguments) => image::run(arguments, config),
            Self::Package(arguments) => package::run(arguments, config),
            Self::Secret(arguments) => secret::run(arguments, config),
            Self::Token(arguments) => token::run(arguments, config),
            Self::Links(arguments) => links::run(arguments, config),
            Self::Account(arguments) => account::run(arguments, config),
            Self::Audit(arguments) => audit::run(arguments, config),
            Self::Mcp(arguments) => mcp::run(*arguments, config),
            Self::Tools(arguments) => tools::run(arguments, config),
            Self::Serve(arguments) => serve::run(*arguments, config),
            Self::Install(arguments) => install::run(arguments, config),
            Self::Doctor(arguments) => doctor::run(arguments, config),
            Self::Bench(arguments) => bench::run(arguments, config),
            Self::Completions(arguments) => completions::run(arguments),
            Self::Man(arguments) => man::run(arguments),
        }
    }

    /// The exit code when the command could not do its part.
    pub fn failure(&self) -> Exit {
        match self {
            Self::Run(_) | Self::Exec(_) => Exit::OURS,
            Self::Create(_)
            | Self::Cp(_)
            | Self::Ps(_)
            | Self::Logs(_)
            | Self::Stop(_)
            | Self::Save(_)
            | Self::Fork(_)
            | Self::Checkpoint(_)
            | Self::Diff(_)
            | Self::Restore(_)
            | Self::Export(_)
            | Self::Image(_)
            | Self::Package(_)
            | Self::Secret(_)
            | Self::Token(_)
            | Self::Links(_)
            | Self::Account(_)
            | Self::Audit(_)
            | Self::Mcp(_)
            | Self::Tools(_)
            | Self::Serve(_)
            | Self::Install(_)
            | Self::Doctor(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Man(_) => Exit::FAILURE,
        }
    }
}

/// A closing section of `--help`: command lines to copy, each with what it does.
pub fn examples(lines: &[(&str, &str)]) -> StyledStr {
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
    let mut text = format!("{GOOD}Examples:{GOOD:#}\n");
    for (line, what) in lines {
        text += &format!("  {ADVICE}{line:width$}{ADVICE:#}  {DIM}{what}{DIM:#}\n");
    }
    StyledStr::from(text.trim_end().to_owned())
}

/// clap's own report in the shape of ours, for `--json`.
pub fn usage_error(error: &clap::Error) -> Error {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let message = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let hint = lines.find_map(|line| line.strip_prefix("tip: "));
    match hint {
        Some(hint) => Error::invalid_input(message).with_hint(hint),
        None => Error::invalid_input(message).with_hint("see --help"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::Key;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// The short way and the whole mean the same.
    #[test]
    fn run_is_understood_alike_both_ways() {
        let line =
            ["sandpen", "--json", "run", "python", "1", "-m", "1G", "--state-dir", "/x", "-e", "A=B", "--", "-h"];
        let arguments = line.map(OsString::from);
        assert!(OnlyRun::try_parse_from(&arguments).is_ok());
        let (short, whole) = (Cli::understand(&arguments).unwrap(), Cli::try_parse_from(&arguments).unwrap());
        assert_eq!(format!("{short:?}"), format!("{whole:?}"));
        for line in [&["sandpen", "run", "--help"][..], &["sandpen", "run", "-h"], &["sandpen", "--version"]] {
            let arguments: Vec<_> = line.iter().map(OsString::from).collect();
            assert!(!Cli::understand(&arguments).unwrap_err().use_stderr(), "{line:?} is not answered");
        }
    }

    #[test]
    fn every_setting_is_a_flag_with_a_help_text() {
        let root = Cli::command();
        for key in Key::ALL {
            let flag = key.flag();
            let commands = [&root].into_iter().chain(root.get_subcommands());
            let found = commands
                .flat_map(clap::Command::get_arguments)
                .find(|argument| argument.get_long() == flag.strip_prefix("--"));
            assert!(found.is_some_and(|argument| argument.get_help().is_some()), "{flag} is not a flag");
        }
    }

    #[test]
    fn a_misunderstood_command_line_keeps_its_tip() {
        let error = Cli::try_parse_from(["sandpen", "run", "python", "1", "--memry", "1G"]).unwrap_err();
        let error = usage_error(&error);
        assert!(error.message().contains("--memry"), "{error}");
        assert!(error.hint().unwrap().contains("--memory"), "{:?}", error.hint());
    }
}
