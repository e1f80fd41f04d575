//! `sandpen account`: who can sign in to `sandpen serve --oauth` with a password.

use std::time::SystemTime;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use sandbox::{Owner, Result, Signal};
use serde::Serialize;

use self::grants::{GrantsArguments, RevokeArguments};
use super::secret::ask::{self, Asked};
use crate::auth::account::{Account, AccountFile, AccountName, PasswordDigest};
use crate::auth::scope::Scope;
use crate::cli::examples;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, Audience};
use crate::table::{Align, Table};
use crate::time;

mod grants;

/// Make and remove accounts for people who sign in to `sandpen serve --oauth`
///
/// They sign in on a page of the server, where a client sends them, and agree to what it asks for. Servers that run take changes
/// at once: a new password, or none any more, ends what was granted before.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen account create alice", "type a password, unseen; alice has sandboxes of her own"),
    ("pass show alice | sandpen account create alice", "take it from another program"),
    ("sandpen account create bob --owner local --scope read", "bob sees yours, and changes nothing"),
    ("sandpen account password alice", "a new password, which ends all that was granted"),
    ("sandpen account remove alice", "and alice is out"),
    ("sandpen account grants", "what people have let clients do, also those of an identity provider"),
    ("sandpen account revoke 0a1b2c3d4e5f", "end one of these"),
]))]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(CreateArguments),
    Ls(LsArguments),
    Password(PasswordArguments),
    Remove(RemoveArguments),
    Grants(GrantsArguments),
    Revoke(RevokeArguments),
}

/// Make an account; the password is typed unseen, or read from a pipe
#[derive(Args, Debug)]
struct CreateArguments {
    /// What the person signs in as
    name: String,

    /// Whose sandboxes it is for [default: one of the same name]
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,

    /// The most that it can let a client do: read, run (which includes it), or admin (everything) [default: run]
    #[arg(long, value_name = "SCOPE", hide_possible_values = true, value_parser = PossibleValuesParser::new(Scope::ALL.iter().map(|scope| scope.as_str())))]
    scope: Option<String>,
}

/// List accounts
#[derive(Args, Debug)]
struct LsArguments {
    /// Print the names alone
    #[arg(long, short)]
    quiet: bool,
}

/// Change a password; whoever was signed in by the old one is out
#[derive(Args, Debug)]
struct PasswordArguments {
    /// The account
    name: String,
}

/// Remove accounts, and end what they have granted
#[derive(Args, Debug)]
struct RemoveArguments {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Serialize)]
struct AccountObject {
    name: String,
    owner: String,
    scope: &'static str,
    created_at: String,
}

#[derive(Serialize)]
struct AccountObjects {
    accounts: Vec<AccountObject>,
}

#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

impl AccountObject {
    fn new(name: &AccountName, account: &Account) -> Self {
        Self {
            name: name.to_string(),
            owner: account.owner.to_string(),
            scope: account.scope.as_str(),
            created_at: time::rfc3339(account.created_at),
        }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let file = AccountFile::of_state_directory(config.state_dir()?)?;
    let audience = Audience::new(config.json);
    match arguments.action {
        Action::Create(arguments) => create(arguments, &file, audience),
        Action::Ls(arguments) => ls(&arguments, &file, audience),
        Action::Password(arguments) => password(&arguments, &file, audience),
        Action::Remove(arguments) => remove(&arguments, &file, audience),
        Action::Grants(arguments) => grants::list(&arguments, &config),
        Action::Revoke(arguments) => grants::revoke(&arguments, &config),
    }
}

/// What was typed or piped, digested; or the signal of a person who changed their mind.
fn ask_for_password(name: &AccountName) -> Result<std::result::Result<PasswordDigest, Signal>> {
    match ask::text(&format!("password of {name}"), 1024)? {
        Asked::Value(text) => PasswordDigest::new(&text).map(Ok),
        Asked::Interrupted(signal) => Ok(Err(signal)),
    }
}

fn create(arguments: CreateArguments, file: &AccountFile, audience: Audience) -> Result<Exit> {
    let name: AccountName = arguments.name.parse()?;
    let owner: Owner = arguments.owner.as_deref().unwrap_or(name.as_str()).parse()?;
    let scope = arguments.scope.map_or(Ok(Scope::Run), |scope| scope.parse())?;
    let password = match ask_for_password(&name)? {
        Ok(password) => password,
        Err(signal) => return Ok(Exit::signal(signal)),
    };
    let account = Account::new(owner, scope, password, SystemTime::now())?;
    let object = AccountObject::new(&name, &account);
    file.create(name, account)?;
    match audience {
        Audience::Program => output::object(&object),
        Audience::Person => output::text(&format!("{}\n", object.name)),
    }
    Ok(Exit::SUCCESS)
}

fn ls(arguments: &LsArguments, file: &AccountFile, audience: Audience) -> Result<Exit> {
    let accounts = file.current();
    if arguments.quiet {
        output::text(&accounts.keys().map(|name| format!("{name}\n")).collect::<String>());
        return Ok(Exit::SUCCESS);
    }
    match audience {
        Audience::Program => {
            let accounts = accounts.iter().map(|(name, account)| AccountObject::new(name, account)).collect();
            output::object(&AccountObjects { accounts });
        }
        Audience::Person if accounts.is_empty() => {
            output::note("there are no accounts", Some("make one with sandpen account create"));
        }
        Audience::Person => {
            let now = SystemTime::now();
            let mut table = Table::new(&[
                ("NAME", Align::Left),
                ("OWNER", Align::Left),
                ("SCOPE", Align::Left),
                ("AGE", Align::Right),
            ]);
            for (name, account) in accounts.iter() {
                let age = time::short(now.duration_since(account.created_at).unwrap_or_default());
                let scope = account.scope.as_str();
                table.push([name.to_string().into(), account.owner.to_string().into(), scope.into(), age.into()]);
            }
            output::text(&table.render());
        }
    }
    Ok(Exit::SUCCESS)
}

fn password(arguments: &PasswordArguments, file: &AccountFile, audience: Audience) -> Result<Exit> {
    let name: AccountName = arguments.name.parse()?;
    let password = match ask_for_password(&name)? {
        Ok(password) => password,
        Err(signal) => return Ok(Exit::signal(signal)),
    };
    file.set_password(&name, password)?;
    match audience {
        Audience::Program => {
            let accounts = file.current();
            if let Some(account) = accounts.get(&name) {
                output::object(&AccountObject::new(&name, account));
            }
        }
        Audience::Person => output::text(&format!("{name}\n")),
    }
    Ok(Exit::SUCCESS)
}

fn remove(arguments: &RemoveArguments, file: &AccountFile, audience: Audience) -> Result<Exit> {
    let names = arguments.names.iter().map(|name| name.parse()).collect::<Result<Vec<AccountName>>>()?;
    file.remove(&names)?;
    let removed: Vec<String> = names.iter().map(ToString::to_string).collect();
    match audience {
        Audience::Program => output::object(&Removed { removed }),
        Audience::Person => output::text(&removed.iter().map(|name| format!("{name}\n")).collect::<String>()),
    }
    Ok(Exit::SUCCESS)
}
