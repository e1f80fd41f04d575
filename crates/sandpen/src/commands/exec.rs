//! `sandpen exec`: a command in a sandbox that exists.

use clap::Args;
use sandbox::{
    AskedPath, Checkpoint, Error, ErrorKind, ExecRequest, OnDisconnect, OutputCaps, OutputTarget, Owner, Result,
};

use crate::attach::{self, CutShort, Input, Screen};
use crate::cli::examples;
use crate::commands::find;
use crate::config::flags::{EnvFlag, GatewayFlags, TimeoutFlag};
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::outcome::{self, Remedy, ResultObject};
use crate::output::{self, Teller};
use crate::signals::Signals;
use crate::{terminal, wiring};

/// Run a command in a sandbox
///
/// Exit codes are those of `sandpen run`.
#[derive(Args, Debug)]
#[command(override_usage = "sandpen exec [OPTIONS] <ID> [--] <ARGV>...", after_help = examples(&[
    ("sandpen exec lab -- uname -a", "a command"),
    ("sandpen exec lab -- sh -c 'echo hello > note'", "a shell line"),
    ("sandpen exec -t lab -- bash", "a shell to work in"),
    ("sandpen exec --detach lab -- python3 train.py", "something that goes on"),
    ("sandpen exec --checkpoint lab -- make clean", "something to be undone, perhaps"),
    ("sandpen exec -i lab -- wc -l < words.txt", "a command that reads stdin"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,

    /// Pass stdin to the command
    #[arg(long, short)]
    interactive: bool,

    /// Give the command a terminal, with your keyboard
    #[arg(long, short)]
    tty: bool,

    /// Start it and come back at once; `sandpen logs` shows what it writes
    #[arg(long, short, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,

    /// Remember the files first, for sandpen diff and sandpen restore
    #[arg(long)]
    checkpoint: bool,

    /// The directory to start in [default: the sandbox's work directory]
    #[arg(long, short, value_name = "PATH")]
    workdir: Option<String>,

    #[command(flatten)]
    timeout: TimeoutFlag,

    #[command(flatten)]
    env: EnvFlag,

    #[command(flatten)]
    gateway: GatewayFlags,

    /// Caught, so that whoever tries learns why not.
    #[arg(long, hide = true)]
    network: Option<String>,

    /// The command and its arguments
    #[arg(value_name = "ARGV", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    argv: Vec<String>,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.timeout.write_to(written);
        self.env.write_to(written);
        self.gateway.write_to(written);
    }

    fn screen(&self) -> Screen {
        if self.tty { Screen::Terminal } else { Screen::Streams }
    }

    fn input(&self) -> Input {
        if self.interactive || self.tty { Input::Ours } else { Input::Nothing }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    if arguments.network.is_some() {
        return Err(Error::invalid_input("a sandbox keeps the network that it was made with")
            .with_hint("make one that has it: sandpen create --network HOSTS"));
    }
    let work_directory = arguments.workdir.as_deref().map(str::parse::<AskedPath>).transpose()?;
    let screen = arguments.screen();
    let mut request = ExecRequest::new(arguments.argv.clone(), config.sandbox.timeout(screen))?;
    request.environment = config.sandbox.environment()?;
    request.terminal = (screen == Screen::Terminal).then(terminal::size);
    if arguments.detach {
        request.timeout = config.sandbox.timeout(Screen::Terminal);
        request.on_disconnect = OnDisconnect::Continue;
        request.output = OutputTarget::Log;
    }
    let config = &config;
    wiring::with_service(config, |service| async move {
        let mut signals = Signals::listen()?;
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &arguments.sandbox).await?;
        request.work_directory = work_directory.map(|path| path.below(&sandbox.work_directory)).transpose()?;
        let checkpoint = match arguments.checkpoint {
            true => Some(service.checkpoint(&owner, &sandbox.id).await?),
            false => None,
        };
        if let (Some(Checkpoint(number)), false) = (checkpoint, config.json) {
            let hint = format!("go back with sandpen restore {} {number}", arguments.sandbox);
            output::note(&format!("checkpoint {number}"), Some(&hint));
        }
        let started = match signals.unless_ended(service.exec(&owner, &sandbox.id, request)).await {
            Ok(started) => started,
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        match (started, config.json) {
            (Ok(_), _) if arguments.detach => {
                if !sandbox.network.is_none() {
                    output::note(
                        "the network of this sandbox is up only while a sandpen process uses the sandbox",
                        Some("keep one running beside it: sandpen serve"),
                    );
                }
                outcome::name_passed_through(&config.sandbox);
                Ok(Exit::SUCCESS)
            }
            (Ok(execution), true) => {
                let ended = attach::capture(execution, arguments.input(), OutputCaps::default(), &mut signals).await?;
                let isolation = service.isolation(&owner, &sandbox.id).await?;
                let result = ResultObject::new(&sandbox, &ended.value, &isolation, &config.sandbox);
                output::object(&result.with_checkpoint(checkpoint));
                Ok(ended.cut_short.map_or_else(|| Exit::of(ended.value.outcome.status), CutShort::exit))
            }
            (Ok(execution), false) => {
                let ended = attach::stream(execution, arguments.input(), screen, &mut signals).await?;
                outcome::explain(&ended.value, config.sandbox.timeout(screen), &sandbox, Remedy::NewSandbox);
                outcome::name_passed_through(&config.sandbox);
                // Whoever made it may have allowed layers to be missing. One that was stopped meanwhile has none to name.
                if let Ok(isolation) = service.isolation(&owner, &sandbox.id).await {
                    outcome::name_missing(&isolation.missing());
                }
                Ok(ended.cut_short.map_or_else(|| Exit::of(ended.value.outcome.status), CutShort::exit))
            }
            (Err(error), _) => {
                let exit = match error.kind() {
                    ErrorKind::NotFound => Exit::NOT_FOUND,
                    ErrorKind::InvalidInput => Exit::CANNOT_EXECUTE,
                    ErrorKind::AlreadyExists
                    | ErrorKind::WrongState
                    | ErrorKind::LimitExceeded
                    | ErrorKind::Denied
                    | ErrorKind::Unsupported
                    | ErrorKind::TimedOut
                    | ErrorKind::Unavailable
                    | ErrorKind::Internal => Exit::OURS,
                };
                let mistyped = error.kind() == ErrorKind::NotFound && arguments.argv[0].starts_with('-');
                Teller::new(config).error(&match mistyped {
                    true => {
                        error.with_hint("was it meant as an option? sandpen exec --help shows those that there are")
                    }
                    false => error,
                });
                Ok(exit)
            }
        }
    })
}
