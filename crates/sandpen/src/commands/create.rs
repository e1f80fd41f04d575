//! `sandpen create`: a sandbox that stays when this process is gone.

use clap::Args;
use sandbox::{Owner, PackageLanguage, Persistence, Result, SandboxName, SandboxSpec};

use crate::cli::examples;
use crate::commands::ps::SandboxObject;
use crate::commands::{package, reach};
use crate::config::flags::{
    EnvFlag, GrantFlags, LifetimeFlags, PackageFlags, PullFlags, SandboxFlags, SecretsFileFlag,
};
use crate::config::{Config, Written};
use crate::embedded::{Pulled, pull_missing};
use crate::exit::Exit;
use crate::signals::Signals;
use crate::{outcome, output, wiring};

/// Make a sandbox that stays, and print its id
///
/// It keeps its files and processes between commands and ends when it is stopped or was not used for a while.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("id=$(sandpen create)", "keep its id"),
    ("sandpen create --name lab --idle 2h", "a name of its own, a longer life"),
    ("sandpen create --image debian:12", "another system than this one"),
    ("sandpen create --network pypi.org,files.pythonhosted.org", "a piece of the network"),
]))]
pub struct Arguments {
    /// A name to use in place of the id; also its host name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    lifetime: LifetimeFlags,

    #[command(flatten)]
    env: EnvFlag,

    #[command(flatten)]
    sandbox: SandboxFlags,

    #[command(flatten)]
    package: PackageFlags,

    #[command(flatten)]
    pull: PullFlags,

    #[command(flatten)]
    grant: GrantFlags,

    #[command(flatten)]
    secrets_file: SecretsFileFlag,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.lifetime.write_to(written);
        self.env.write_to(written);
        self.sandbox.write_to(written);
        self.package.write_to(written);
        self.pull.write_to(written);
        self.grant.write_to(written);
        self.secrets_file.write_to(written);
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let name = arguments.name.as_deref().map(str::parse::<SandboxName>).transpose()?;
    let packages = arguments.package.packages(PackageLanguage::Python)?;
    let owner = Owner::local();
    let spec = SandboxSpec {
        lifetime: config.sandbox.lifetime,
        environment: config.sandbox.environment()?,
        persistence: Persistence::Persistent,
        name,
        ..config.sandbox.spec(&owner)
    };
    if let Pulled::GivenUp(exit) = pull_missing(&config)? {
        return Ok(exit);
    }
    let config = &config;
    wiring::with_service(config, |service| async move {
        let mut signals = Signals::listen()?;
        let made = async {
            let mut spec = spec;
            let packages = package::provide(&service, &owner, &spec.image, &packages, config.json).await?;
            packages.iter().try_for_each(|prepared| prepared.attach_to(&mut spec))?;
            service.create(&owner, spec).await
        };
        let sandbox = match signals.unless_ended(made).await {
            Ok(created) => created?,
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        let isolation = service.isolation(&owner, &sandbox.id).await?;
        let reach = service.reach(&owner, &sandbox.id).await?;
        if config.json {
            output::object(&SandboxObject::new(&sandbox, None, Some(&isolation)).with_reach(reach.as_ref()));
        } else {
            reach::tell(reach.as_ref());
            outcome::name_missing(&isolation.missing());
            outcome::name_passed_through(&config.sandbox);
            output::text(&format!("{}\n", sandbox.id));
        }
        Ok(Exit::SUCCESS)
    })
}
