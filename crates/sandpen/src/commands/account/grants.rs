//! What people have let clients do, one by one, and the end of one of them.

use std::time::SystemTime;

use clap::Args;
use sandbox::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::auth::scope::Scope;
use crate::auth::server::grants::scopes_of;
use crate::auth::server::records::{GrantRecord, Records, RecordsFile};
use crate::auth::token::moment;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, Audience};
use crate::table::{Align, Table};
use crate::time;

/// List what people have let clients do
#[derive(Args, Debug)]
pub struct GrantsArguments {
    /// Print the ids alone
    #[arg(long, short)]
    quiet: bool,
}

/// End single grants; the client must ask its person again
#[derive(Args, Debug)]
pub struct RevokeArguments {
    /// Their ids, as `sandpen account grants` shows them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

#[derive(Serialize)]
struct GrantObject {
    id: String,
    /// Who has agreed: the name of an account, or what an identity provider calls them.
    who: String,
    client: String,
    client_name: Option<String>,
    scope: Option<&'static str>,
    created_at: String,
    used_at: String,
}

#[derive(Serialize)]
struct GrantObjects {
    grants: Vec<GrantObject>,
}

#[derive(Serialize)]
struct Revoked {
    revoked: Vec<String>,
}

impl GrantObject {
    fn new(id: &str, grant: &GrantRecord, records: &Records) -> Self {
        Self {
            id: id.to_owned(),
            who: grant.who.shown().to_owned(),
            client: grant.client.clone(),
            client_name: records.clients.get(&grant.client).and_then(|client| client.name.clone()),
            scope: scopes_of(&grant.scope).highest().map(Scope::as_str),
            created_at: time::rfc3339(moment(grant.begun)),
            used_at: time::rfc3339(moment(grant.used)),
        }
    }
}

pub fn list(arguments: &GrantsArguments, config: &Config) -> Result<Exit> {
    let records = RecordsFile::of_state_directory(config.state_dir()?)?.current();
    if arguments.quiet {
        output::text(&records.grants.keys().map(|id| format!("{id}\n")).collect::<String>());
        return Ok(Exit::SUCCESS);
    }
    let grants: Vec<GrantObject> =
        records.grants.iter().map(|(id, grant)| GrantObject::new(id, grant, &records)).collect();
    match Audience::new(config.json) {
        Audience::Program => output::object(&GrantObjects { grants }),
        Audience::Person if grants.is_empty() => {
            output::note("nobody has let a client in", Some("clients ask at sandpen serve --oauth"));
        }
        Audience::Person => output::text(&table(grants, &records)),
    }
    Ok(Exit::SUCCESS)
}

fn table(grants: Vec<GrantObject>, records: &Records) -> String {
    let now = SystemTime::now();
    let mut table = Table::new(&[
        ("ID", Align::Left),
        ("WHO", Align::Left),
        ("CLIENT", Align::Left),
        ("SCOPE", Align::Left),
        ("AGE", Align::Right),
        ("USED", Align::Right),
    ]);
    for GrantObject { id, who, client, client_name, scope, .. } in grants {
        let Some(grant) = records.grants.get(&id) else { continue };
        let ago = |seconds: u64| time::short(now.duration_since(moment(seconds)).unwrap_or_default());
        let client = client_name.unwrap_or(client);
        table.push([
            id.into(),
            who.into(),
            client.into(),
            scope.unwrap_or("-").into(),
            ago(grant.begun).into(),
            ago(grant.used).into(),
        ]);
    }
    table.render()
}

/// All of them, or none.
pub fn revoke(arguments: &RevokeArguments, config: &Config) -> Result<Exit> {
    let file = RecordsFile::of_state_directory(config.state_dir()?)?;
    file.change(|records| {
        if let Some(unknown) = arguments.ids.iter().find(|id| !records.grants.contains_key(*id)) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no grant {unknown:?}"))
                .with_hint("sandpen account grants lists them"));
        }
        arguments.ids.iter().for_each(|id| drop(records.grants.remove(id)));
        Ok(())
    })?;
    match Audience::new(config.json) {
        Audience::Program => output::object(&Revoked { revoked: arguments.ids.clone() }),
        Audience::Person => output::text(&arguments.ids.iter().map(|id| format!("{id}\n")).collect::<String>()),
    }
    Ok(Exit::SUCCESS)
}
