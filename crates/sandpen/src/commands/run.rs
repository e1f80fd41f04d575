//! `sandpen run`: code in a fresh sandbox, its output and its exit code as if it ran here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sandbox::{
    AskedPath, Environment, Error, ErrorKind, ExecRequest, Execution, Files, Image, OutputCaps, Owner, PackageLanguage,
    Prepared, Result, RunCode, SandboxInfo, SandboxService, SandboxSpec,
};

use crate::attach::{self, CutShort, Input, Screen};
use crate::cli::examples;
use crate::commands::package;
use crate::config::flags::{EnvFlag, NetworkFlags, PackageFlags, PullFlags, SandboxFlags, TimeoutFlag};
use crate::config::{Config, EngineChoice, Written};
use crate::embedded::{Pulled, pull_missing};
use crate::exit::Exit;
use crate::outcome::{self, Remedy, ResultObject};
use crate::output::{self, Teller};
use crate::signals::Signals;
use crate::{terminal, transfer, wiring};

use self::source::Source;

mod source;

/// After this much time a sandbox that was asked for is being built, and it takes longer than that.
const UNDER_WAY: Duration = Duration::from_millis(1);

/// Run code in a fresh sandbox, or the program of an image
///
/// The exit code is the program's own. 124 means that its time ran out, 137 that its memory did, 125 that sandpen could
/// not do its part, 126 and 127 that the program could not be executed or found.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen run python 'print(6 * 7)'", "code as an argument"),
    ("sandpen run main.go", "a file; its name tells the language"),
    ("curl -s example.org/x.sh | sandpen run bash", "code from a pipe"),
    ("sandpen run python -f count.py < words.txt", "a file, with data on stdin"),
    ("sandpen run plot.py --input data.csv --output plot.png", "files in and out"),
    ("sandpen run app.js --memory 1G --timeout 5m", "more room, more time"),
    ("sandpen run fetch.py --network api.example.com", "one host of the network"),
    ("sandpen run app.py --image python:3.12", "an image, fetched when it is not here"),
    ("sandpen run --image hello-world", "the program that the image is made for"),
    ("sandpen run --image tool:1 --entrypoint -- --help", "the same with other arguments"),
    ("sandpen run plot.py --package pandas,matplotlib", "packages, installed at the first use"),
    ("sandpen run bash 'echo $1' -- hello", "arguments for the program"),
]))]
pub struct Arguments {
    /// The language, or a source file whose name tells it; left out, the image's own program runs
    language: Option<String>,

    /// The code, or a file of that language; left out or -, the code is read from stdin
    code: Option<String>,

    /// Arguments for the program
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,

    /// Read the code from a file, and leave stdin to the program
    #[arg(long, short, value_name = "FILE", conflicts_with = "code", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// Run the image's entry point; what stands behind -- takes the place of its own arguments
    #[arg(long, conflicts_with_all = ["language", "file"])]
    entrypoint: bool,

    /// Bring a file or directory in before the run
    #[arg(long, short, value_name = "HOST[:GUEST]", value_hint = clap::ValueHint::AnyPath)]
    input: Vec<OsString>,

    /// Bring a file or directory out after the run, also when the program failed
    #[arg(long, short, value_name = "GUEST[:HOST]")]
    output: Vec<OsString>,

    /// Give the program a terminal
    #[arg(long, short)]
    tty: bool,

    #[command(flatten)]
    timeout: TimeoutFlag,

    #[command(flatten)]
    env: EnvFlag,

    #[command(flatten)]
    sandbox: SandboxFlags,

    #[command(flatten)]
    package: PackageFlags,

    #[command(flatten)]
    pull: PullFlags,

    #[command(flatten)]
    network: NetworkFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.timeout.write_to(written);
        self.env.write_to(written);
        self.sandbox.write_to(written);
        self.package.write_to(written);
        self.pull.write_to(written);
        self.network.write_to(written);
    }

    /// What of this can be known to be wrong before anything is done.
    fn check(&self, image: &Image) -> Result<()> {
        if self.language.is_some() {
            return Ok(());
        }
        if let Some(file) = &self.file {
            let file = file.display();
            return Err(Error::invalid_input(format!("the language of {file} is missing"))
                .with_hint(format!("name it, as in sandpen run python --file {file}")));
        }
        match image {
            Image::Named(_) | Image::Saved(_) => {}
            Image::Host | Image::Directory(_) | Image::Archive(_) => {
                return Err(Error::invalid_input("there is nothing to run")
                    .with_hint("name a language with code or a file, or an --image whose own program is to run"));
            }
        }
        if !self.arguments.is_empty() && !self.entrypoint {
            return Err(Error::invalid_input("it is not said what the arguments are for").with_hint(
                "name a language before them, or say --entrypoint to give them to the image's own program",
            ));
        }
        if !self.package.is_empty() {
            return Err(Error::invalid_input("the program of an image takes no packages")
                .with_hint("packages are for code: name its language"));
        }
        Ok(())
    }

    fn screen(&self) -> Screen {
        if self.tty { Screen::Terminal } else { Screen::Streams }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let inputs = arguments.input.iter().map(|text| transfer::parse_input(text)).collect::<Result<Vec<_>>>()?;
    let outputs = arguments.output.iter().map(|text| transfer::parse_output(text)).collect::<Result<Vec<_>>>()?;
    let environment = config.sandbox.environment()?;
    arguments.check(&config.sandbox.image)?;
    if let Pulled::GivenUp(exit) = pull_missing(&config)? {
        return Ok(exit);
    }
    wiring::with_passing_service(&config, |service| async {
        let mut signals = Signals::listen()?;
        let run = Run { arguments, config: &config, service, owner: Owner::local(), environment, inputs, outputs };
        run.go(&mut signals).await
    })
}

struct Run<'a> {
    arguments: Arguments,
    config: &'a Config,
    service: SandboxService,
    owner: Owner,
    environment: Environment,
    inputs: Vec<(PathBuf, AskedPath)>,
    outputs: Vec<(AskedPath, PathBuf)>,
}

impl Run<'_> {
    async fn go(&self, signals: &mut Signals) -> Result<Exit> {
        let Arguments { language, code, file, .. } = &self.arguments;
        // The code is found while the sandbox is being built, and not before its builder runs: a process that is woken
        // by a message gets our processor, and would wait for us.
        let source = async {
            tokio::time::sleep(UNDER_WAY).await;
            match language {
                Some(language) => {
                    source::resolve(self.service.runners(), language, code.as_deref(), file.as_deref()).map(Some)
                }
                None => Ok(None),
            }
        };
        let (source, sandbox, packages) = match signals.unless_ended(self.make(source)).await {
            Ok(made) => made?,
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        let input = source.as_ref().map_or(Input::Ours, |source| source.input);
        let execution = match signals.unless_ended(self.start(&sandbox, source, &packages)).await {
            Ok(Ok(execution)) => execution,
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) => {
                Teller::new(self.config).error(&error);
                return Ok(Exit::NOT_FOUND);
            }
            Ok(Err(error)) if self.arguments.language.is_none() && error.kind() == ErrorKind::InvalidInput => {
                Teller::new(self.config).error(&error);
                return Ok(Exit::CANNOT_EXECUTE);
            }
            Ok(Err(error)) => return Err(error),
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        let (exit, cut_short) = if self.config.json {
            let ended = attach::capture(execution, input, OutputCaps::default(), signals).await?;
            let isolation = self.service.isolation(&self.owner, &sandbox.id).await?;
            let result = ResultObject::new(&sandbox, &ended.value, &isolation, &self.config.sandbox);
            output::object(&result.with_packages(&packages));
            (Exit::of(ended.value.outcome.status), ended.cut_short)
        } else {
            let ended = attach::stream(execution, input, self.arguments.screen(), signals).await?;
            let timeout = self.config.sandbox.timeout(self.arguments.screen());
            outcome::explain(&ended.value, timeout, &sandbox, Remedy::SameCommand);
            outcome::name_passed_through(&self.config.sandbox);
            self.name_missing_layers(&sandbox).await?;
            (Exit::of(ended.value.outcome.status), ended.cut_short)
        };
        self.finish(&sandbox, exit, cut_short, signals).await
    }

    /// Where there are packages, the code comes first: its language says whose they are. So it does on a daemon, where a
    /// language may have an image of its own. Without code it is the image's own program.
    async fn make(
        &self,
        source: impl Future<Output = Result<Option<Source>>>,
    ) -> Result<(Option<Source>, SandboxInfo, Vec<Prepared>)> {
        let image = &self.config.sandbox.image;
        if self.config.engine == EngineChoice::Native && self.arguments.package.is_empty() {
            let (sandbox, source) = tokio::join!(biased; self.prepare(image.clone(), &[]), source);
            return Ok((source?, sandbox?, Vec::new()));
        }
        let source = source.await?;
        let image = match &source {
            Some(source) => self.service.image_for(&source.language, image.clone()).await?,
            None => image.clone(),
        };
        let packages = match &source {
            Some(source) if !self.arguments.package.is_empty() => self.packages(source, &image).await?,
            Some(_) | None => Vec::new(),
        };
        Ok((source, self.prepare(image, &packages).await?, packages))
    }

    async fn packages(&self, source: &Source, image: &Image) -> Result<Vec<Prepared>> {
        let usual = PackageLanguage::usual(&source.language, &self.arguments.package.texts())?;
        let wanted = self.arguments.package.packages(usual)?;
        package::provide(&self.service, &self.owner, image, &wanted, self.config.json).await
    }

    async fn prepare(&self, image: Image, packages: &[Prepared]) -> Result<SandboxInfo> {
        let mut spec = SandboxSpec { image, ..self.config.sandbox.spec(&self.owner) };
        packages.iter().try_for_each(|prepared| prepared.attach_to(&mut spec))?;
        let sandbox = self.service.create(&self.owner, spec).await?;
        if !self.inputs.is_empty() {
            let files = self.files(&sandbox)?;
            for (host, guest) in &self.inputs {
                transfer::copy_in(&*files, host, &guest.below(&sandbox.work_directory)?).await?;
            }
        }
        Ok(sandbox)
    }

    async fn start(&self, sandbox: &SandboxInfo, source: Option<Source>, packages: &[Prepared]) -> Result<Execution> {
        let screen = self.arguments.screen();
        let (timeout, terminal) =
            (self.config.sandbox.timeout(screen), (screen == Screen::Terminal).then(terminal::size));
        let mut environment = self.environment.clone();
        let Some(source) = source else {
            let arguments = (!self.arguments.arguments.is_empty()).then_some(&self.arguments.arguments[..]);
            let mut request = ExecRequest::new(sandbox.program.argv(arguments)?, timeout)?;
            (request.environment, request.terminal) = (environment, terminal);
            return self.service.exec(&self.owner, &sandbox.id, request).await;
        };
        packages.iter().try_for_each(|prepared| prepared.join(&mut environment))?;
        let run = RunCode {
            arguments: self.arguments.arguments.clone(),
            environment,
            terminal,
            ..RunCode::new(source.language, source.code, timeout)
        };
        self.service.run_code(&self.owner, &sandbox.id, run).await
    }

    /// Results are brought out of failed runs too, but a failed program is the news, not that it left no results.
    async fn finish(
        &self,
        sandbox: &SandboxInfo,
        exit: Exit,
        cut_short: Option<CutShort>,
        signals: &mut Signals,
    ) -> Result<Exit> {
        if !self.outputs.is_empty() {
            match signals.unless_ended(self.collect(sandbox)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if exit == Exit::SUCCESS && cut_short.is_none() => return Err(error),
                Ok(Err(error)) => output::note(error.message(), error.hint()),
                Err(signal) => return Ok(Exit::signal(signal)),
            }
        }
        Ok(cut_short.map_or(exit, CutShort::exit))
    }

    async fn collect(&self, sandbox: &SandboxInfo) -> Result<()> {
        let files = self.files(sandbox)?;
        for (guest, host) in &self.outputs {
            let guest = guest.below(&sandbox.work_directory)?;
            let copied = transfer::copy_out(&*files, &guest, host, sandbox.limits.into()).await?;
            if copied.skipped > 0 {
                output::note(&format!("{} special files in {guest} were not copied", copied.skipped), None);
            }
        }
        Ok(())
    }

    fn files(&self, sandbox: &SandboxInfo) -> Result<Box<dyn Files>> {
        self.service.files(&self.owner, &sandbox.id)
    }

    /// Nothing can be missing that the operator did not allow to be, so most runs need not ask.
    async fn name_missing_layers(&self, sandbox: &SandboxInfo) -> Result<()> {
        if self.config.allow_missing.is_empty() {
            return Ok(());
        }
        let missing = self.service.isolation(&self.owner, &sandbox.id).await?.missing();
        outcome::name_missing(&missing);
        Ok(())
    }
}
