//! `sandpen package`: what was installed for sandboxes, and is kept.

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use sandbox::{
    ByteSize, Error, Image, Owner, PackageSet, PackageStep, Packages, Prepared, Result, SandboxService, TreeName,
};
use serde::Serialize;

use crate::cli::examples;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, DIM};
use crate::spinner::Spinner;
use crate::table::{Align, Cell, Table};
use crate::{time, wiring};

/// As many digits of a digest as tell a few sets apart.
const SHORT: usize = 12;

/// List and remove packages that were installed for sandboxes
///
/// What run --package and the tools of a server have installed is kept and used again, without any network.
#[derive(Args, Debug)]
#[command(disable_help_subcommand = true, after_help = examples(&[
    ("sandpen package ls", "see what is there, and how large it is"),
    ("sandpen package rm 3f7a90c2d1e4", "remove one set of packages"),
    ("sandpen package rm --unused 30d", "remove what was not used for a month"),
]))]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ListArguments),
    Rm(RemoveArguments),
}

/// List sets of packages
#[derive(Args, Debug)]
pub struct ListArguments {
    /// Print the digests alone
    #[arg(long, short)]
    quiet: bool,
}

/// Remove sets of packages
///
/// Sandboxes that use them stay as they are. Whoever asks for the packages again has them installed again.
#[derive(Args, Debug)]
pub struct RemoveArguments {
    /// The first digits of digests, as ls shows them
    #[arg(value_name = "DIGEST", required_unless_present_any = ["all", "unused"])]
    sets: Vec<String>,

    /// Remove all of them
    #[arg(long, conflicts_with_all = ["sets", "unused"])]
    all: bool,

    /// Remove those that were not used for this time: 30d, 12h
    #[arg(long, value_name = "TIME", conflicts_with = "sets")]
    unused: Option<String>,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let config = &config;
    wiring::with_service(config, |service| async move {
        match arguments.command {
            Command::Ls(arguments) => list(&service, &arguments, config).await,
            Command::Rm(arguments) => remove(&service, &arguments, config).await,
        }
    })
}

/// Have packages installed for a sandbox that is about to be made of an image.
pub async fn provide(
    service: &SandboxService,
    owner: &Owner,
    image: &Image,
    wanted: &[Packages],
    json: bool,
) -> Result<Vec<Prepared>> {
    let mut prepared = Vec::new();
    for packages in wanted {
        let spinner = Spinner::start(&format!("packages: {packages}"), json);
        let say = |step: &PackageStep| spinner.say(format!("packages: {step}"));
        prepared.push(service.prepare_packages(owner, image, packages, say).await?);
    }
    Ok(prepared)
}

#[derive(Serialize)]
struct SetObject {
    digest: String,
    language: &'static str,
    image: String,
    requests: Vec<Vec<String>>,
    packages: Vec<String>,
    bytes: Option<u64>,
    unused_s: u64,
}

#[derive(Serialize)]
struct Sets {
    sets: Vec<SetObject>,
}

impl SetObject {
    fn new(set: &PackageSet) -> Self {
        Self {
            digest: digest(&set.tree).to_owned(),
            language: set.language.as_str(),
            image: set.image.clone(),
            requests: set.requests.clone(),
            packages: set.resolved.iter().map(|one| set.language.pinned(&one.name, &one.version)).collect(),
            bytes: set.bytes,
            unused_s: unused(set).as_secs(),
        }
    }
}

async fn list(service: &SandboxService, arguments: &ListArguments, config: &Config) -> Result<Exit> {
    let sets = service.package_sets().await?;
    if config.json {
        output::object(&Sets { sets: sets.iter().map(SetObject::new).collect() });
        return Ok(Exit::SUCCESS);
    }
    if arguments.quiet {
        output::text(&sets.iter().map(|set| format!("{}\n", digest(&set.tree))).collect::<String>());
        return Ok(Exit::SUCCESS);
    }
    if sets.is_empty() {
        output::note("no packages are kept", Some("install some with sandpen run --package"));
        return Ok(Exit::SUCCESS);
    }
    let columns = [
        ("DIGEST", Align::Left),
        ("LANGUAGE", Align::Left),
        ("IMAGE", Align::Left),
        ("ASKED FOR", Align::Left),
        ("PACKAGES", Align::Right),
        ("SIZE", Align::Right),
        ("USED", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for set in &sets {
        let asked = set.requests.first().map(|request| request.join(", ")).unwrap_or_default();
        let size = set.bytes.map_or_else(|| "gone".to_owned(), |bytes| ByteSize::new(bytes).to_string());
        table.push([
            Cell::styled(digest(&set.tree)[..SHORT].to_owned(), DIM),
            set.language.as_str().into(),
            set.image.clone().into(),
            asked.into(),
            set.resolved.len().to_string().into(),
            size.into(),
            format!("{} ago", time::short(Duration::from_secs(unused(set).as_secs()))).into(),
        ]);
    }
    output::text(&table.render());
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

async fn remove(service: &SandboxService, arguments: &RemoveArguments, config: &Config) -> Result<Exit> {
    let sets = service.package_sets().await?;
    let chosen: Vec<&PackageSet> = match &arguments.unused {
        Some(age) => {
            let age = time::parse(age)?;
            sets.iter().filter(|set| unused(set) >= age).collect()
        }
        None if arguments.all => sets.iter().collect(),
        None => arguments.sets.iter().map(|digits| find(&sets, digits)).collect::<Result<_>>()?,
    };
    let mut removed = Vec::new();
    for set in chosen {
        if service.remove_package_set(&set.tree).await? {
            removed.push(digest(&set.tree).to_owned());
        }
    }
    if config.json {
        output::object(&Removed { removed });
    } else {
        output::text(&removed.iter().map(|digest| format!("{}\n", &digest[..SHORT])).collect::<String>());
    }
    Ok(Exit::SUCCESS)
}

fn find<'a>(sets: &'a [PackageSet], digits: &str) -> Result<&'a PackageSet> {
    let fitting: Vec<&PackageSet> = sets.iter().filter(|set| digest(&set.tree).starts_with(digits)).collect();
    match fitting.as_slice() {
        [set] if digits.len() >= 4 => Ok(set),
        [] => Err(Error::not_found(format!("there are no packages {digits:?}"))
            .with_hint("sandpen package ls shows what is there")),
        _ => Err(Error::invalid_input(format!("{digits:?} could mean several sets")).with_hint("write more digits")),
    }
}

/// Without the language before it.
fn digest(tree: &TreeName) -> &str {
    tree.as_str().rsplit('/').next().unwrap_or_default()
}

fn unused(set: &PackageSet) -> Duration {
    SystemTime::now().duration_since(set.last_used).unwrap_or_default()
}
