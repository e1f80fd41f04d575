//! `sandpen token`: who may use `sandpen serve`.

use std::time::SystemTime;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use sandbox::{Owner, Result};
use serde::Serialize;

use crate::auth::scope::Scope;
use crate::auth::token::{Known, NewToken, TokenFile, TokenId};
use crate::cli::examples;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, Audience, BAD, DIM};
use crate::table::{Align, Cell, Table};
use crate::time;

/// Make and revoke tokens for callers of `sandpen serve`
///
/// Callers send one with every request: `Authorization: Bearer TOKEN`. Whose sandboxes they see, and what they may do, goes
/// with the token. Servers that run take changes at once.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen token create --name laptop", "a token of your own"),
    ("sandpen token create --owner alice --expires 30d", "for somebody with sandboxes of their own"),
    ("sandpen token create --owner alice --scope read", "only to look at them"),
    ("sandpen token ls", "which there are, without the tokens themselves"),
    ("sandpen token revoke 0a1b2c3d4e5f", "let nobody in by that one any more"),
]))]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(CreateArguments),
    Ls(LsArguments),
    Revoke(RevokeArguments),
}

/// Make a token; it is shown this once
#[derive(Args, Debug)]
struct CreateArguments {
    /// What you call it, such as the machine or program that it is for
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Whose sandboxes it is for [default: local, who you are at this machine]
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,

    /// What it is good for: read, run (which includes it), or admin (everything) [default: run]
    #[arg(long, value_name = "SCOPE", hide_possible_values = true, value_parser = PossibleValuesParser::new(Scope::ALL.iter().map(|scope| scope.as_str())))]
    scope: Option<String>,

    /// How long it is good: 12h, 30d [default: until it is revoked]
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
}

/// List tokens, without the tokens themselves
#[derive(Args, Debug)]
struct LsArguments {
    /// Print the ids alone
    #[arg(long, short)]
    quiet: bool,
}

/// Revoke tokens, from this moment on
#[derive(Args, Debug)]
struct RevokeArguments {
    /// Their ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// What is shown of a token.
#[derive(Serialize)]
struct TokenObject {
    id: String,
    /// Only when it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    name: Option<String>,
    owner: String,
    scope: Option<&'static str>,
    created_at: String,
    expires_at: Option<String>,
    expired: bool,
}

#[derive(Serialize)]
struct TokenObjects {
    tokens: Vec<TokenObject>,
}

#[derive(Serialize)]
struct Revoked {
    revoked: Vec<String>,
}

impl TokenObject {
    fn new(id: &TokenId, known: &Known, now: SystemTime) -> Self {
        Self {
            id: id.to_string(),
            token: None,
            name: known.name.as_ref().map(ToString::to_string),
            owner: known.owner.to_string(),
            scope: known.scopes.highest().map(Scope::as_str),
            created_at: time::rfc3339(known.created_at),
            expires_at: known.expires_at.map(time::rfc3339),
            expired: known.is_over(now),
        }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let file = TokenFile::of_state_directory(config.state_dir()?);
    let audience = Audience::new(config.json);
    match arguments.action {
        Action::Create(arguments) => create(arguments, &file, audience),
        Action::Ls(arguments) => ls(&arguments, &file, audience),
        Action::Revoke(arguments) => revoke(&arguments, &file, audience),
    }
}

fn create(arguments: CreateArguments, file: &TokenFile, audience: Audience) -> Result<Exit> {
    let CreateArguments { name, owner, scope, expires } = arguments;
    let new = NewToken {
        name: name.map(|name| name.parse()).transpose()?,
        owner: owner.map_or_else(|| Ok(Owner::local()), |owner| owner.parse())?,
        scope: scope.map_or(Ok(Scope::Run), |scope| scope.parse())?,
        lives: expires.map(|span| time::parse(&span)).transpose()?,
    };
    let now = SystemTime::now();
    let (token, id, known) = file.create(new, now)?;
    match audience {
        Audience::Program => {
            let token = Some(token.reveal().to_owned());
            output::object(&TokenObject { token, ..TokenObject::new(&id, &known, now) });
        }
        // Alone on standard output, for a pipe or a variable.
        Audience::Person => {
            output::text(&format!("{}\n", token.reveal()));
            output::note(&format!("this is shown once; its id is {id}"), None);
        }
    }
    Ok(Exit::SUCCESS)
}

fn ls(arguments: &LsArguments, file: &TokenFile, audience: Audience) -> Result<Exit> {
    let tokens = file.read()?;
    let now = SystemTime::now();
    if arguments.quiet {
        output::text(&tokens.keys().map(|id| format!("{id}\n")).collect::<String>());
        return Ok(Exit::SUCCESS);
    }
    match audience {
        Audience::Program => {
            let tokens = tokens.iter().map(|(id, known)| TokenObject::new(id, known, now)).collect();
            output::object(&TokenObjects { tokens });
        }
        Audience::Person if tokens.is_empty() => {
            output::note("there are no tokens", Some("make one with sandpen token create"));
        }
        Audience::Person => {
            let mut table = Table::new(&[
                ("ID", Align::Left),
                ("NAME", Align::Left),
                ("OWNER", Align::Left),
                ("SCOPE", Align::Left),
                ("AGE", Align::Right),
                ("EXPIRES IN", Align::Right),
            ]);
            for (id, known) in &tokens {
                table.push(row(id, known, now));
            }
            output::text(&table.render());
        }
    }
    Ok(Exit::SUCCESS)
}

fn row(id: &TokenId, known: &Known, now: SystemTime) -> [Cell; 6] {
    let nothing = || Cell::styled("–", DIM);
    let until = |end: SystemTime| end.duration_since(now).map(time::short);
    [
        id.to_string().into(),
        known.name.as_ref().map_or_else(nothing, |name| name.to_string().into()),
        known.owner.to_string().into(),
        known.scopes.highest().map_or_else(nothing, |scope| scope.as_str().into()),
        time::short(now.duration_since(known.created_at).unwrap_or_default()).into(),
        match known.expires_at.map(until) {
            None => nothing(),
            Some(Ok(left)) => left.into(),
            Some(Err(_)) => Cell::styled("expired", BAD),
        },
    ]
}

fn revoke(arguments: &RevokeArguments, file: &TokenFile, audience: Audience) -> Result<Exit> {
    let ids = arguments.ids.iter().map(|id| id.parse()).collect::<Result<Vec<TokenId>>>()?;
    file.revoke(&ids)?;
    let revoked: Vec<String> = ids.iter().map(ToString::to_string).collect();
    match audience {
        Audience::Program => output::object(&Revoked { revoked }),
        Audience::Person => output::text(&revoked.iter().map(|id| format!("{id}\n")).collect::<String>()),
    }
    Ok(Exit::SUCCESS)
}
