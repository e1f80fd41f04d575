//! `sandpen fork`: a sandbox with the files of another.

use clap::Args;
use sandbox::{ForkRequest, Lifetime, Owner, Persistence, Result, SandboxName};

use crate::cli::examples;
use crate::commands::ps::SandboxObject;
use crate::commands::{find, reach};
use crate::config::flags::LifetimeFlags;
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::signals::Signals;
use crate::{outcome, output, wiring};

/// Make a sandbox with the files of another, and print its id
///
/// It has the same limits, network and environment too. What one of them writes the other does not see. Running programs
/// stay where they are; files are shared, not copied, while none runs.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("id=$(sandpen fork lab)", "a branch of lab"),
    ("sandpen fork lab --name try-2 --idle 2h", "a name of its own, a longer life"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,

    /// A name to use in place of the new id; also its host name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    lifetime: LifetimeFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.lifetime.write_to(written);
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let name = arguments.name.as_deref().map(str::parse::<SandboxName>).transpose()?;
    let lifetime: Option<Lifetime> = arguments.lifetime.is_given().then_some(config.sandbox.lifetime);
    let request = ForkRequest { name, persistence: Persistence::Persistent, lifetime };
    let config = &config;
    wiring::with_service(config, |service| async move {
        let mut signals = Signals::listen()?;
        let owner = Owner::local();
        let source = find(&service, &owner, &arguments.sandbox).await?;
        let sandbox = match signals.unless_ended(service.fork(&owner, &source.id, request)).await {
            Ok(forked) => forked?,
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        let isolation = service.isolation(&owner, &sandbox.id).await?;
        let reach = service.reach(&owner, &sandbox.id).await?;
        if config.json {
            output::object(&SandboxObject::new(&sandbox, None, Some(&isolation)).with_reach(reach.as_ref()));
        } else {
            reach::tell(reach.as_ref());
            outcome::name_missing(&isolation.missing());
            output::text(&format!("{}\n", sandbox.id));
        }
        Ok(Exit::SUCCESS)
    })
}
