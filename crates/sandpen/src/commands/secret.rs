//! `sandpen secret`: values that sandboxes use and never see.

use std::convert::Infallible;

use clap::{Args, Subcommand};
use egress::{HeaderTemplate, Secret, SecretsFile};
use sandbox::{Error, HostRule, Result, SecretName};
use serde::Serialize;

use crate::cli::examples;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, Audience, DIM, Teller};
use crate::table::{Align, Cell, Table};

pub(super) mod ask;

use ask::Asked;

/// Keep values that sandboxes use and never see
///
/// A sandbox that gets a secret has a placeholder in its environment, under the secret's name. What it sends over HTTPS to a
/// host of the secret has the value in place of the placeholder; what comes back has it the other way round.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen secret set API_KEY --host api.example.com", "type a value, unseen"),
    ("pass show api | sandpen secret set API_KEY --host api.example.com", "take it from another program"),
    ("sandpen secret set API_KEY", "a new value, for the same hosts"),
    ("sandpen secret ls", "names and hosts, never values"),
]))]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Set(SetArguments),
    Ls(LsArguments),
    Rm(RmArguments),
}

/// Keep a secret; the value is typed unseen, or read from a pipe
#[derive(Args, Debug)]
struct SetArguments {
    /// Its name, and that of the variable in the sandbox
    name: String,

    /// Caught, so that whoever tries learns why not. What was written is dropped here.
    #[arg(hide = true, value_parser = |_: &str| Ok::<_, Infallible>(Misplaced))]
    value: Option<Misplaced>,

    /// Send it to this host only: NAME (port 443), NAME:PORT or *.SUFFIX; may be given more than once
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,

    /// Set this header on every request to the hosts; {} is the place of the value
    #[arg(long, value_name = "HEADER")]
    header: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Misplaced;

/// List secrets, without their values
#[derive(Args, Debug)]
struct LsArguments {
    /// Print the names alone
    #[arg(long, short)]
    quiet: bool,
}

/// Forget secrets
#[derive(Args, Debug)]
struct RmArguments {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// All that is ever shown of a secret.
#[derive(Debug, Serialize)]
struct SecretObject {
    name: String,
    hosts: Vec<String>,
    header: Option<String>,
}

impl From<&Secret> for SecretObject {
    fn from(secret: &Secret) -> Self {
        Self {
            name: secret.name().to_string(),
            hosts: secret.hosts().iter().map(ToString::to_string).collect(),
            header: secret.header().map(ToString::to_string),
        }
    }
}

#[derive(Serialize)]
struct Secrets {
    secrets: Vec<SecretObject>,
}

#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let file = match &config.gateway.secrets_file {
        Some(path) => SecretsFile::new(path),
        None => SecretsFile::of_state_directory(config.state_dir()?),
    };
    let audience = Teller::new(&config).audience;
    match arguments.action {
        Action::Set(arguments) => set(arguments, &file, audience),
        Action::Ls(arguments) => ls(&arguments, &file, audience),
        Action::Rm(arguments) => rm(&arguments, &file, audience),
    }
}

fn set(arguments: SetArguments, file: &SecretsFile, audience: Audience) -> Result<Exit> {
    let SetArguments { name, value, host, header } = arguments;
    // Here and not while arguments are read: a hint would be lost there.
    let name: SecretName = match name.split_once('=') {
        Some((name, _)) => return Err(value_in_arguments(name)),
        None => name.parse()?,
    };
    let hosts = host.iter().map(|host| host.parse()).collect::<Result<Vec<HostRule>>>()?;
    let header = header.map(|header| header.parse::<HeaderTemplate>()).transpose()?;
    if value.is_some() {
        return Err(value_in_arguments(name.as_str()));
    }
    let without_host = || {
        Error::invalid_input(format!("no host is named for {name}"))
            .with_hint(format!("say who may get it: sandpen secret set {name} --host api.example.com"))
    };
    // Before anybody types a value in vain.
    if hosts.is_empty() && file.read_if_there()?.get(&name).is_none() {
        return Err(without_host());
    }
    let value = match ask::value(&name)? {
        Asked::Value(value) => value,
        Asked::Interrupted(signal) => return Ok(Exit::signal(signal)),
    };
    let object = file.change(|vault| {
        let (hosts, header) = match vault.get(&name) {
            Some(before) if hosts.is_empty() => {
                (before.hosts().to_vec(), header.clone().or_else(|| before.header().cloned()))
            }
            Some(_) | None => (hosts.clone(), header.clone()),
        };
        if hosts.is_empty() {
            return Err(without_host());
        }
        let secret = Secret::new(name.clone(), value, hosts, header)?;
        let object = SecretObject::from(&secret);
        vault.insert(secret);
        Ok(object)
    })?;
    match audience {
        Audience::Program => output::object(&object),
        Audience::Person => output::text(&format!("{}\n", object.name)),
    }
    Ok(Exit::SUCCESS)
}

fn value_in_arguments(name: &str) -> Error {
    Error::invalid_input("a value does not belong on the command line, where every process can read it")
        .with_hint(format!("leave it out and type it when asked, or: … | sandpen secret set {name} --host HOST"))
}

fn ls(arguments: &LsArguments, file: &SecretsFile, audience: Audience) -> Result<Exit> {
    let secrets: Vec<SecretObject> = file.read_if_there()?.iter().map(|secret| SecretObject::from(&**secret)).collect();
    if arguments.quiet {
        output::text(&secrets.iter().map(|secret| format!("{}\n", secret.name)).collect::<String>());
        return Ok(Exit::SUCCESS);
    }
    match audience {
        Audience::Program => output::object(&Secrets { secrets }),
        Audience::Person if secrets.is_empty() => {
            output::note("you keep no secrets", Some("keep one with sandpen secret set NAME --host HOST"));
        }
        Audience::Person => {
            let mut table = Table::new(&[("NAME", Align::Left), ("HOSTS", Align::Left), ("HEADER", Align::Left)]);
            for SecretObject { name, hosts, header } in secrets {
                let header = header.map_or_else(|| Cell::styled("–", DIM), Into::into);
                table.push([name.into(), hosts.join(", ").into(), header]);
            }
            output::text(&table.render());
        }
    }
    Ok(Exit::SUCCESS)
}

fn rm(arguments: &RmArguments, file: &SecretsFile, audience: Audience) -> Result<Exit> {
    let names = arguments.names.iter().map(|name| name.parse()).collect::<Result<Vec<SecretName>>>()?;
    let removed: Vec<String> = file.change(|vault| {
        let removed = names.iter().map(|name| match vault.remove(name) {
            Some(_) => Ok(name.to_string()),
            None => Err(Error::not_found(format!("there is no secret {name}"))
                .with_hint("sandpen secret ls shows those that there are")),
        });
        removed.collect()
    })?;
    match audience {
        Audience::Program => output::object(&Removed { removed }),
        Audience::Person => output::text(&removed.iter().map(|name| format!("{name}\n")).collect::<String>()),
    }
    Ok(Exit::SUCCESS)
}
