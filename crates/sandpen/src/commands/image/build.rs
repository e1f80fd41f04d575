//! `sandpen image build`: from a Dockerfile.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use images::dockerfile::{Dockerfile, Instruction};
use sandbox::{ByteSize, Error, Owner, Result};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{ImageObject, image_error, new_name, open_store, settings};
use crate::build::{self, Bases, BuildRequest, BuiltImage, Cache, Made, RunSettings, Sandboxes, Workshop};
use crate::cli::examples;
use crate::config::flags::NetworkFlags;
use crate::config::{Config, Pull, Written};
use crate::exit::Exit;
use crate::output::{self, reason};
use crate::signals::Signals;
use crate::{time, wiring};

use self::screen::BuildScreen;

mod screen;

/// A Dockerfile or list of what to ignore that is larger is a mistake.
const LARGEST_TEXT: u64 = 1 << 20;

/// Build an image from a Dockerfile
///
/// Commands run in sandboxes, which have no network unless --network gives them one. Each finished step is kept, and is not
/// done again while nothing that it was made from has changed. Files can be copied by everybody; RUN needs root.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen image build -t tool:1 .", "from ./Dockerfile, with the files around it"),
    ("sandpen image build -t tool:1 --network deb.debian.org .", "let RUN reach one host"),
    ("sandpen image build -t test --target test --build-arg LEVEL=2 src", "one stage, with an argument"),
    ("sandpen image build -t tool:1 -f - . < other.Dockerfile", "a Dockerfile from a pipe"),
]))]
pub struct Arguments {
    /// The directory that files are copied from
    #[arg(value_name = "CONTEXT", value_hint = clap::ValueHint::DirPath)]
    context: PathBuf,

    /// What the image is called; may be given several times
    #[arg(long, short, value_name = "NAME")]
    tag: Vec<String>,

    /// The Dockerfile; - is standard input [default: Dockerfile in the context]
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// A value for an ARG; without one, the variable of that name is taken
    #[arg(long, value_name = "NAME[=VALUE]")]
    build_arg: Vec<String>,

    /// The stage to build, by its name or number [default: the last one]
    #[arg(long, value_name = "STAGE")]
    target: Option<String>,

    /// Do every step again
    #[arg(long)]
    no_cache: bool,

    /// Fetch images that it starts from also when they are here
    #[arg(long)]
    pull: bool,

    /// The machine to build for, which is this one
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<String>,

    /// How long a RUN may take [default: 30m]
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,

    /// Memory of a RUN, which the files that it writes count to [default: 4G]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Room for the files that a RUN writes [default: 4G]
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,

    #[command(flatten)]
    network: NetworkFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.network.write_to(written);
    }
}

#[derive(Serialize)]
struct BuiltObject {
    images: Vec<ImageObject>,
    digest: String,
    platform: String,
    layers: usize,
    steps: Vec<StepObject>,
}

#[derive(Serialize)]
struct StepObject {
    line: usize,
    instruction: String,
    made: &'static str,
}

pub fn run(arguments: &Arguments, config: &Config) -> Result<Exit> {
    let request = request(arguments, config)?;
    let store = open_store(config)?;
    store.sweep().map_err(image_error)?;
    let registries = match config.registries.pull {
        Pull::Missing => Some(settings(config)?),
        Pull::Never => None,
    };
    let mut workshop = Workshop { store, sandboxes: None, registries };
    let runs_something = runs_something(&request.dockerfile)?;
    let built = if runs_something && engine_native::can_build() {
        wiring::with_service(config, async |service| {
            workshop.sandboxes = Sandboxes::new(&service, &Owner::local());
            go(&workshop, &request, config).await
        })
    } else {
        wiring::block_on(go(&workshop, &request, config))
    };
    let built = match built? {
        Ok(built) => built,
        Err(exit) => return Ok(exit),
    };
    // A name that meant another image before leaves it behind.
    workshop.store.collect().map_err(image_error)?;
    show(&workshop, &built, config)?;
    Ok(Exit::SUCCESS)
}

async fn go(
    workshop: &Workshop,
    request: &BuildRequest,
    config: &Config,
) -> Result<std::result::Result<BuiltImage, Exit>> {
    let mut signals = Signals::listen()?;
    let screen = BuildScreen::new(config.json);
    let cancel = CancellationToken::new();
    let built = signals.unless_ended(build::build(workshop, request, &screen, &cancel)).await;
    screen.end();
    match built {
        Ok(built) => built.map(Ok),
        Err(signal) => Ok(Err(Exit::signal(signal))),
    }
}

fn show(workshop: &Workshop, built: &BuiltImage, config: &Config) -> Result<()> {
    let images =
        built.named.iter().map(|named| ImageObject::new(&workshop.store, named)).collect::<Result<Vec<_>>>()?;
    let digest = built.manifest.digest.qualified();
    if config.json {
        let steps = built.steps.iter().map(|step| StepObject {
            line: step.line,
            instruction: step.text.clone(),
            made: made(step.made),
        });
        output::object(&BuiltObject {
            images,
            digest,
            platform: built.platform.to_string(),
            layers: built.layers.len(),
            steps: steps.collect(),
        });
        return Ok(());
    }
    for image in &images {
        output::text(&image.sentence("built"));
    }
    if images.is_empty() {
        output::text(&format!("built {digest}\n"));
        output::note("the image has no name, and is not kept", Some("name it with --tag NAME; its steps are kept"));
    }
    Ok(())
}

pub fn made(made: Made) -> &'static str {
    match made {
        Made::Layer => "layer",
        Made::FromCache => "cached",
        Made::NoChange => "no_change",
        Made::Metadata => "metadata",
    }
}

fn request(arguments: &Arguments, config: &Config) -> Result<BuildRequest> {
    let context = &arguments.context;
    if context.as_os_str() == "-" || context.to_str().is_some_and(|text| text.contains("://")) {
        return Err(Error::unsupported("the context is a directory of this machine, and nothing else"));
    }
    if !context.is_dir() {
        return Err(Error::not_found(format!("there is no directory {}", context.display())));
    }
    if let Some(platform) = &arguments.platform {
        build::check_platform(platform)?;
    }
    let file = arguments.file.clone().unwrap_or_else(|| context.join("Dockerfile"));
    let mut request = BuildRequest::new(dockerfile(&file)?, context);
    request.ignore = ignored(&file, context)?;
    request.target.clone_from(&arguments.target);
    request.arguments = arguments.build_arg.iter().map(|word| argument(word)).collect::<Result<BTreeMap<_, _>>>()?;
    request.names = arguments.tag.iter().map(|name| new_name(name)).collect::<Result<_>>()?;
    if let Some(name) = request.names.iter().find(|name| name.is_local()) {
        return Err(Error::invalid_input(format!("{} is on a host that cannot be", name.familiar()))
            .with_hint("give the image a name like tool:1"));
    }
    request.cache = if arguments.no_cache { Cache::Ignored } else { Cache::Used };
    request.bases = if arguments.pull { Bases::Always } else { Bases::Missing };
    request.source_date = source_date()?;
    request.run = run_settings(arguments, config)?;
    Ok(request)
}

fn run_settings(arguments: &Arguments, config: &Config) -> Result<RunSettings> {
    let mut run = RunSettings {
        network: config.sandbox.network.clone(),
        secrets: config.sandbox.secrets.iter().cloned().collect(),
        ..RunSettings::default()
    };
    let size = |text: &Option<String>, default: ByteSize| text.as_ref().map_or(Ok(default), |text| text.parse());
    run.limits.memory = size(&arguments.memory, run.limits.memory)?;
    run.limits.disk = size(&arguments.disk, run.limits.disk)?;
    run.limits = run.limits.check()?;
    if let Some(timeout) = &arguments.timeout {
        run.timeout = time::parse(timeout)?;
    }
    Ok(run)
}

fn dockerfile(file: &Path) -> Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        let read = std::io::stdin().lock().take(LARGEST_TEXT + 1).read_to_string(&mut text);
        read.map_err(|cause| Error::invalid_input(format!("standard input is no Dockerfile: {}", reason(&cause))))?;
        return Ok(text);
    }
    read_text(file).map_err(|cause| {
        Error::invalid_input(format!("the Dockerfile {} cannot be read: {}", file.display(), reason(&cause)))
            .with_hint("name it with --file")
    })
}

/// The one beside the Dockerfile and called like it, or the one of the context.
fn ignored(file: &Path, context: &Path) -> Result<String> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".dockerignore");
    for path in [PathBuf::from(beside), context.join(".dockerignore")] {
        match read_text(&path) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) => {
                return Err(Error::invalid_input(format!("{} cannot be read: {}", path.display(), reason(&cause))));
            }
        }
    }
    Ok(String::new())
}

fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(LARGEST_TEXT + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn argument(word: &str) -> Result<(String, String)> {
    if let Some((name, value)) = word.split_once('=') {
        return Ok((name.to_owned(), value.to_owned()));
    }
    let value = std::env::var(word).map_err(|_| {
        Error::invalid_input(format!("the build argument {word} has no value"))
            .with_hint(format!("write --build-arg {word}=VALUE, or set the variable {word}"))
    })?;
    Ok((word.to_owned(), value))
}

fn source_date() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH").filter(|text| !text.is_empty()) else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    seconds
        .map(Some)
        .ok_or_else(|| Error::invalid_input("SOURCE_DATE_EPOCH is not a number").with_hint("it is seconds since 1970"))
}

/// Whether there is a `RUN` at all: without one no engine is needed.
fn runs_something(text: &str) -> Result<bool> {
    let dockerfile = Dockerfile::parse(text).map_err(build::image_error)?;
    let mut steps = dockerfile.stages.iter().flat_map(|stage| &stage.steps);
    Ok(steps.any(|step| matches!(step.instruction, Instruction::Run(_))))
}
