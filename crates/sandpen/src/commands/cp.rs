//! `sandpen cp`: files between this machine and a sandbox.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use sandbox::{AskedPath, Error, Owner, Result};

use crate::cli::examples;
use crate::commands::find;
use crate::config::Config;
use crate::exit::Exit;
use crate::signals::Signals;
use crate::transfer::{Place, copy_in, copy_out};
use crate::{output, wiring};

/// Copy files and directories into or out of a sandbox
///
/// A path in a sandbox is written ID:PATH; one that does not start with / begins in its work directory.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen cp data.csv lab:", "a file into its work directory"),
    ("sandpen cp src lab:/tmp/app", "a directory under another name"),
    ("sandpen cp lab:plot.png .", "a file out"),
]))]
pub struct Arguments {
    /// What to copy
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::AnyPath)]
    from: OsString,

    /// Where to: a new name, or a directory that exists
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: OsString,
}

/// A copy that can be done: exactly one end is in a sandbox.
enum Route {
    In { host: PathBuf, guest: AskedPath },
    Out { guest: AskedPath, host: PathBuf },
}

/// The sandbox's id or name, and the way.
fn route(from: Place, to: Place) -> Result<(String, Route)> {
    match (from, to) {
        (Place::Host(host), Place::Sandbox { sandbox, path: guest }) => Ok((sandbox, Route::In { host, guest })),
        (Place::Sandbox { sandbox, path: guest }, Place::Host(host)) => Ok((sandbox, Route::Out { guest, host })),
        (Place::Host(_), Place::Host(_)) => {
            Err(Error::invalid_input("neither path is in a sandbox").with_hint("write one of them as ID:PATH"))
        }
        (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            Err(Error::unsupported("both paths are in sandboxes").with_hint("copy out first, then in"))
        }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let (sandbox, route) = route(Place::parse(&arguments.from)?, Place::parse(&arguments.to)?)?;
    wiring::with_service(&config, |service| async move {
        let mut signals = Signals::listen()?;
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &sandbox).await?;
        let files = service.files(&owner, &sandbox.id)?;
        let copying = async {
            match &route {
                Route::In { host, guest } => copy_in(&*files, host, &guest.below(&sandbox.work_directory)?).await,
                Route::Out { guest, host } => {
                    copy_out(&*files, &guest.below(&sandbox.work_directory)?, host, sandbox.limits.into()).await
                }
            }
        };
        let copied = match signals.unless_ended(copying).await {
            Ok(copied) => copied?,
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        if config.json {
            output::object(&copied);
        } else if copied.skipped > 0 {
            output::note(&format!("{} special files were not copied", copied.skipped), None);
        }
        Ok(Exit::SUCCESS)
    })
}
