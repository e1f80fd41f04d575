//! `sandpen image export`: to a file that others read.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use images::export;
use sandbox::{Error, Result};
use serde::Serialize;

use super::{called, image_error, open_store, saved, work};
use crate::config::Config;
use crate::exit::Exit;
use crate::output;

/// Write an image to a file
///
/// The file is an OCI layout, which skopeo, podman and docker load read.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: String,

    /// Where to write it; - is standard output
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    file: PathBuf,

    /// Write a directory instead of an archive
    #[arg(long)]
    directory: bool,
}

#[derive(Serialize)]
struct Exported {
    image: String,
    digest: String,
    path: PathBuf,
}

pub fn run(arguments: Arguments, config: &Config) -> Result<Exit> {
    let to_stdout = arguments.file.as_os_str() == "-";
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(
            Error::invalid_input("an archive is nothing for a terminal").with_hint("name a file, or use a pipe")
        );
    }
    let store = open_store(config)?;
    let named = saved::look_up(&store, &arguments.image)?;
    let image = store.image(named.clone()).map_err(image_error)?;
    let path = arguments.file.clone();
    let exporting = work(config, move |work| {
        if to_stdout {
            let mut stdout = std::io::stdout().lock();
            export::to_archive(&store, &image, &mut stdout, work)?;
            return stdout.flush().map_err(images::Error::io("writing the archive"));
        }
        if arguments.directory {
            return export::to_directory(&store, &image, &arguments.file, work);
        }
        export::to_file(&store, &image, &arguments.file, work)
    })?;
    if let Err(exit) = exporting {
        return Ok(exit);
    }
    if to_stdout {
        return Ok(Exit::SUCCESS);
    }
    let exported = Exported { image: called(&named), digest: named.manifest.digest.qualified(), path };
    if config.json {
        output::object(&exported);
    } else {
        output::text(&format!("exported {} to {}\n", exported.image, exported.path.display()));
    }
    Ok(Exit::SUCCESS)
}
