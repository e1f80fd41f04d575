//! `sandpen install`: an entry for `sandpen mcp` in a client's own configuration.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use sandbox::{Error, Result, system};
use serde::Serialize;
use tools::ProfileName;

use crate::cli::examples;
use crate::config::{Config, Key};
use crate::exit::Exit;
use crate::install::arguments::{Given, takes_value};
use crate::install::client::Client;
use crate::install::entry::{Entry, Name};
use crate::install::file::{Configuration, Written};
use crate::install::older::Older;
use crate::install::place::{Machine, Place, System};
use crate::install::{self, Action, Edit, Wish, difference, program};
use crate::output::{self, Audience, Teller};

/// Set up an MCP client to use this program
///
/// Writes an entry for sandpen mcp into the client's own configuration, with the global options that are given here. Everything
/// else in the file stays as it is, but for a comma beside the entry; a copy of the file is kept beside it, and a file that is
/// broken is left alone.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen install claude-desktop", "set it up"),
    ("sandpen install cursor --dry-run", "see what would be changed"),
    ("sandpen install vscode --profile cloudflare", "with the tools of an older server"),
    ("sandpen install cursor --file .cursor/mcp.json", "for one project"),
    ("sandpen install codex --remove", "take it back"),
    ("sandpen install --print zed", "print the entry, to paste it elsewhere"),
]))]
pub struct Arguments {
    /// The client
    #[arg(value_enum)]
    client: Client,

    /// Have the tools of this older server, under their names
    #[arg(long, value_parser = PossibleValuesParser::new(ProfileName::NAMES))]
    profile: Option<String>,

    /// What the client calls the server [default: sandpen, or sandpen-PROFILE]
    #[arg(long)]
    name: Option<String>,

    /// Change this file instead of the one that the client has for you
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// Take the entry out
    #[arg(long)]
    remove: bool,

    /// Show what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the entry alone, ready to paste
    #[arg(long, conflicts_with_all = ["remove", "dry_run", "file"])]
    print: bool,

    #[arg(skip)]
    instead_of: Option<Older>,
}

impl Arguments {
    /// What an older server's own flag for it did: one client, and one name that there was for it, which it may still have.
    pub fn of_older(client: Client, profile: ProfileName, name: &str, older: Older) -> Self {
        let (profile, name) = (Some(profile.to_string()), Some(name.to_owned()));
        Self { client, profile, name, file: None, remove: false, dry_run: false, print: false, instead_of: Some(older) }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    client: &'static str,
    name: &'a str,
    path: &'a str,
    action: &'static str,
    dry_run: bool,
    client_found: bool,
    backup: Option<String>,
    /// What to do before the client knows; absent when there is no change to know of.
    restart: Option<&'static str>,
    /// Of a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<String>,
}

#[derive(Serialize)]
struct Snippet<'a> {
    client: &'static str,
    name: &'a str,
    snippet: &'a str,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let audience = Teller::new(&config).audience;
    let profile = ProfileName::NAMES.iter().copied().find(|known| arguments.profile.as_deref() == Some(*known));
    let name = match &arguments.name {
        Some(name) => name.parse()?,
        None => Name::usual(profile),
    };
    if arguments.remove {
        // One that cannot be found any more can still be taken out.
        let program = program::path().unwrap_or_else(|_| program::USUAL_NAME.to_owned());
        return change(&arguments, Wish::Lack { name: &name, program: &program }, audience);
    }
    let entry = Entry {
        name,
        command: program::path()?,
        profile,
        options: options(&config)?,
        instead_of: arguments.instead_of,
    };
    if arguments.print {
        print(arguments.client, &entry, audience);
        return Ok(Exit::SUCCESS);
    }
    change(&arguments, Wish::Have(&entry), audience)
}

/// What was said of the server on this command line is to be said whenever it is started.
fn options(config: &Config) -> Result<Vec<Given>> {
    let file = config.named_file()?.map(|file| Given { name: "config".to_owned(), value: Some(file) });
    let flags = config.flags()?.into_iter().filter(|(key, _)| *key != Key::Profile);
    let options = flags.map(|(key, value)| {
        let name = key.flag().trim_start_matches('-').to_owned();
        let value = takes_value(&name).then_some(value);
        Given { name, value }
    });
    Ok(file.into_iter().chain(options).collect())
}

fn print(client: Client, entry: &Entry, audience: Audience) {
    let snippet = install::snippet(client, entry);
    match audience {
        Audience::Program => {
            output::object(&Snippet { client: client.word(), name: entry.name.as_str(), snippet: &snippet });
        }
        Audience::Person => output::text(&snippet),
    }
}

fn change(arguments: &Arguments, wish: Wish<'_>, audience: Audience) -> Result<Exit> {
    let client = arguments.client;
    let usual = usual_place(client);
    let client_found = usual.as_ref().is_ok_and(|usual| usual.trace.exists() || usual.file.exists());
    let path = match &arguments.file {
        None => usual?.file,
        Some(file) => {
            std::path::absolute(file).map_err(|cause| Error::invalid_input("--file names no file").with_cause(cause))?
        }
    };
    if audience == Audience::Person {
        warn_of_sudo(&path);
    }
    let done = apply(client, &path, wish, arguments.dry_run)?;
    let changes = done.edit.action.changes();
    // For reading: one that is not UTF-8 would have no place in an object.
    let shown = path.display().to_string();
    let report = Report {
        client: client.word(),
        name: wish.name().as_str(),
        path: &shown,
        action: past(done.edit.action),
        dry_run: arguments.dry_run,
        client_found,
        backup: done.backup.map(|backup| backup.display().to_string()),
        restart: changes.then(|| client.restart()),
        difference: arguments.dry_run.then(|| {
            let colourful = difference::unified(&shown, &done.before, &done.edit.text);
            match audience {
                Audience::Person => colourful,
                Audience::Program => anstream::adapter::strip_str(&colourful).to_string(),
            }
        }),
    };
    match audience {
        Audience::Program => output::object(&report),
        Audience::Person => tell(&report, client, done.edit.action, arguments.file.is_none()),
    }
    Ok(Exit::SUCCESS)
}

fn tell(report: &Report<'_>, client: Client, action: Action, is_usual: bool) {
    let (name, path) = (report.name, report.path);
    if let Some(difference) = &report.difference {
        output::text(difference);
    }
    let sentence = match action {
        Action::Add => format!("added {name} to {path}"),
        Action::Update => format!("updated {name} in {path}"),
        Action::Replace => format!("replaced the older server {name} in {path}"),
        Action::Remove => format!("removed {name} from {path}"),
        Action::Keep => format!("{name} is in {path} already; nothing was changed"),
        Action::Miss => format!("{name} is not in {path}; nothing was changed"),
    };
    if !action.changes() {
        return output::note(&sentence, None);
    }
    if report.dry_run {
        return output::note("this was a dry run; nothing was changed", None);
    }
    output::text(&format!("{sentence}\n"));
    if let Some(backup) = &report.backup {
        output::note(&format!("the file as it was is kept in {backup}"), None);
    }
    if is_usual && !report.client_found {
        output::note(&format!("{} does not seem to be installed here", client.title()), None);
    }
    output::note(client.restart(), None);
}

struct Applied {
    before: String,
    edit: Edit,
    backup: Option<PathBuf>,
}

/// Clients write these files as well. Whoever was faster is taken into account once.
fn apply(client: Client, path: &Path, wish: Wish<'_>, dry_run: bool) -> Result<Applied> {
    for _ in 0..2 {
        let configuration = Configuration::read(path)?;
        let edit = install::edit(client, path, configuration.text(), wish)?;
        let before = configuration.text().to_owned();
        if dry_run || !edit.action.changes() {
            return Ok(Applied { before, edit, backup: None });
        }
        match configuration.write(&edit.text)? {
            Written::Done { backup } => return Ok(Applied { before, edit, backup }),
            Written::Changed => {}
        }
    }
    Err(Error::unavailable(format!("{} is being changed by another program", path.display()))
        .with_hint(format!("nothing was changed; close {} and try again", client.title())))
}

fn usual_place(client: Client) -> Result<Place> {
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect::<Vec<OsString>>()
    };
    Machine { system: System::THIS, variable: |name: &str| std::env::var_os(name), names }.place(client)
}

/// The home is that of root then, or files in it are not for root to make.
fn warn_of_sudo(file: &Path) {
    let user = std::env::var("SUDO_USER").ok().filter(|user| user != "root");
    if let Some(user) = user.filter(|_| system::is_root()) {
        output::note(
            &format!("this runs as root through sudo, and is about {}", file.display()),
            Some(&format!("to set up the client of {user}, leave sudo out")),
        );
    }
}

fn past(action: Action) -> &'static str {
    match action {
        Action::Add => "added",
        Action::Update => "updated",
        Action::Replace => "replaced",
        Action::Remove => "removed",
        Action::Keep => "unchanged",
        Action::Miss => "absent",
    }
}
