//! `sandpen image`: the images on this machine, where they come from and where they go.

use std::fmt::Display;
use std::sync::Arc;

use clap::{Args, Subcommand};
use engine_docker::Flavour;
use images::registry::{Credentials, Proxies, Settings};
use images::{Named, Reference, Store, Work};
use sandbox::{ByteSize, Error, Image, Result};
use serde::Serialize;

pub use self::daemon::PullBars;
pub use self::error::image_error;
use self::progress::Bar;
pub use self::pull::{Pulled, pull_missing};
use crate::cli::examples;
use crate::config::flags::RegistryFlags;
use crate::config::{Config, EngineChoice, Written};
use crate::exit::Exit;
use crate::signals::Signals;
use crate::{output, time, wiring};

mod asked;
mod build;
mod daemon;
mod error;
mod export;
mod import;
mod list;
mod progress;
mod prune;
mod pull;
mod push;
mod remove;
pub mod saved;
mod tag;

/// Fetch, build, list and remove images
///
/// An image is a tree of files that sandboxes start from, together with how to run what is in it. It is named as Docker
/// names it: debian:12, ghcr.io/owner/tool@sha256:… No daemon is needed. Logins are those of `docker login`.
#[derive(Args, Debug)]
#[command(disable_help_subcommand = true, after_help = examples(&[
    ("sandpen image pull debian:12", "fetch an image from a registry"),
    ("sandpen image import saved.tar tool:1", "take one from a file of docker save, an OCI layout or a root tree"),
    ("sandpen image build -t tool:1 .", "build one from ./Dockerfile"),
    ("sandpen image ls", "see what is there, and how large it is"),
    ("sandpen image export tool:1 tool.tar", "write a file that docker load and skopeo read"),
]))]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    registries: RegistryFlags,
}

#[derive(Debug, Subcommand)]
enum Command {
    Pull(asked::Pull),
    Import(import::Arguments),
    Ls(asked::List),
    Rm(remove::Arguments),
    Tag(tag::Arguments),
    Export(export::Arguments),
    Push(push::Arguments),
    Build(Box<build::Arguments>),
    Prune(prune::Arguments),
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.registries.write_to(written);
        if let Command::Build(arguments) = &self.command {
            arguments.write_to(written);
        }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let flavour = match config.engine {
        EngineChoice::Docker => Some(Flavour::Docker),
        EngineChoice::Podman => Some(Flavour::Podman),
        EngineChoice::Native | EngineChoice::Kubernetes => None,
    };
    match (&arguments.command, flavour) {
        (Command::Pull(arguments), Some(flavour)) => return daemon::pull(arguments, &config, flavour),
        (Command::Ls(arguments), Some(flavour)) => return daemon::list(arguments, &config, flavour),
        _ => {}
    }
    match arguments.command {
        Command::Pull(arguments) => pull::run(&arguments, &config),
        Command::Import(arguments) => import::run(arguments, &config),
        Command::Ls(arguments) => list::run(&arguments, &config),
        Command::Rm(arguments) => remove::run(&arguments, &config),
        Command::Tag(arguments) => tag::run(&arguments, &config),
        Command::Export(arguments) => export::run(arguments, &config),
        Command::Push(arguments) => push::run(arguments, &config),
        Command::Build(arguments) => build::run(&arguments, &config),
        Command::Prune(arguments) => prune::run(&arguments, &config),
    }
}

/// An image as all of these commands show it.
#[derive(Debug, Serialize)]
struct ImageObject {
    image: String,
    digest: String,
    platform: String,
    added_at: String,
    layers: usize,
    /// As registries count it: layers as they are transferred.
    transfer_bytes: u64,
    /// Files of all layers; those that images share are counted with each.
    unpacked_bytes: u64,
}

impl ImageObject {
    fn new(store: &Store, named: &Named) -> Result<Self> {
        let (manifest, configuration) = store.describe(&named.manifest).map_err(image_error)?;
        let sizes = configuration.rootfs.diff_ids.iter().map(|layer| store.layer_size(*layer));
        let unpacked = sizes.sum::<images::Result<u64>>().map_err(image_error)?;
        Ok(Self {
            image: called(named),
            digest: named.manifest.digest.qualified(),
            platform: named.platform.to_string(),
            added_at: time::rfc3339(std::time::UNIX_EPOCH + std::time::Duration::from_secs(named.added)),
            layers: manifest.layers.len(),
            transfer_bytes: manifest.bytes(),
            unpacked_bytes: unpacked,
        })
    }

    /// The end of a command that brought it here.
    fn print(&self, done: &str, config: &Config) {
        if config.json {
            output::object(self);
        } else {
            output::text(&self.sentence(done));
        }
    }

    fn sentence(&self, done: &str) -> String {
        let size = ByteSize::new(self.unpacked_bytes);
        let layers = if self.layers == 1 { "layer" } else { "layers" };
        format!("{done} {} ({}, {} {layers}, {size})\n", self.image, self.digest, self.layers)
    }
}

/// As people know it.
fn called(named: &Named) -> String {
    saved::shown(&named.reference).unwrap_or_else(|| named.reference.familiar())
}

/// The images of the embedded engine, when that is the one in use: a daemon has its own.
pub fn open_store(config: &Config) -> Result<Arc<Store>> {
    match config.engine {
        EngineChoice::Native => {}
        engine @ (EngineChoice::Docker | EngineChoice::Podman) => {
            let name = engine.as_str();
            return Err(Error::unsupported(format!("the {name} engine has its images in its daemon"))
                .with_hint(format!("use {name} itself for this: {name} image --help")));
        }
        EngineChoice::Kubernetes => {
            return Err(Error::unsupported("the kubernetes engine has its images in its cluster")
                .with_hint("leave --engine out to see those of the native engine"));
        }
    }
    let store = Store::open(&config.state_dir()?.join("images")).map_err(image_error)?;
    Ok(Arc::new(store))
}

pub fn settings(config: &Config) -> Result<Settings> {
    Ok(Settings {
        insecure: config.registries.insecure.clone(),
        mirrors: config.registries.mirrors.clone(),
        credentials: Credentials::of_docker(),
        proxies: Proxies::of_environment().map_err(image_error)?,
        ..Settings::default()
    })
}

pub fn reference(text: &str) -> Result<Reference> {
    text.parse().map_err(image_error)
}

/// A name for an image. One that `--image` would take for something else could never be used.
pub fn new_name(text: &str) -> Result<Reference> {
    let name = reference(text)?;
    let is_word = matches!(text.parse(), Ok(Image::Host | Image::Saved(_) | Image::Directory(_) | Image::Archive(_)));
    let is_prefixed = ["saved:", "dir:", "tar:"].iter().any(|prefix| text.starts_with(prefix));
    if is_word || is_prefixed || name.is_local() {
        return Err(Error::invalid_input(format!("{text} is not a name that an image can be given"))
            .with_hint("saved:, dir:, tar: and host mean something else; sandpen save makes saved images"));
    }
    Ok(name)
}

/// Does something long on a thread of its own, with a bar for whoever watches. The first signal gives it up, and then the
/// store is as if it had never begun, except for layers that the next one can go on with.
fn work<T: Send + 'static>(
    config: &Config,
    task: impl FnOnce(&Work) -> images::Result<T> + Send + 'static,
) -> Result<std::result::Result<T, Exit>> {
    let bar = Bar::start(config.json);
    let work = Work { progress: bar.progress(), ..Work::default() };
    let cancel = work.cancel.clone();
    let done = wiring::block_on(async {
        let mut signals = Signals::listen()?;
        let mut working = tokio::task::spawn_blocking(move || task(&work));
        let (joined, heard) = match signals.unless_ended(&mut working).await {
            Ok(joined) => (joined, None),
            Err(signal) => {
                cancel.cancel();
                (working.await, Some(signal))
            }
        };
        let finished =
            joined.map_err(|cause| Error::internal("work on an image ended unexpectedly").with_cause(cause))?;
        match (finished, heard) {
            (Ok(value), _) => Ok(Ok(value)),
            (Err(_), Some(signal)) => Ok(Err(Exit::signal(signal))),
            (Err(error), None) => Err(image_error(error)),
        }
    });
    drop(bar);
    done
}

fn list_of(names: impl IntoIterator<Item = impl Display>) -> String {
    names.into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
}
