//! The machine of somebody's daemon, and the walls of a sandbox that was made there.

use std::time::{Duration, Instant};

use engine_docker::{Daemon, DaemonFacts, Flavour};
use sandbox::{
    ErrorKind, ExecRequest, IsolationReport, Language, LayerState, OutputCaps, Owner, Result, Role, SandboxService,
    SandboxSpec,
};
use serde::Serialize;

use super::Mark;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, ADVICE, BAD, BOLD, DIM, DOUBTFUL, GOOD};
use crate::table::{Align, Cell, Table};
use crate::wiring;

/// Everything that was found, in the shape of `--json`.
#[derive(Debug, Serialize)]
struct Findings {
    version: &'static str,
    engine: &'static str,
    daemon: DaemonFinding,
    trial: TrialFinding,
    /// As they stood around the sandbox of the trial; empty when there was none.
    layers: Vec<LayerFinding>,
    languages: Vec<LanguageFinding>,
    /// Images that say that they run a language and do not, each with the reason.
    refused_runners: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct DaemonFinding {
    place: String,
    version: String,
    kernel: String,
    cgroup_version: Option<u8>,
    storage: String,
    rootless: bool,
    runtimes: Vec<String>,
    default_runtime: Option<String>,
}

#[derive(Debug, Serialize)]
struct TrialFinding {
    works: bool,
    detail: String,
    hint: Option<String>,
}

#[derive(Debug, Serialize)]
struct LayerFinding {
    layer: &'static str,
    description: &'static str,
    state: &'static str,
    detail: String,
}

#[derive(Debug, Serialize)]
struct LanguageFinding {
    language: String,
    title: String,
    /// The image that it runs on when none is asked for.
    image: Option<String>,
}

/// What the daemon of an engine says of itself, or why there is none.
pub fn look(config: &Config, flavour: Flavour) -> Result<DaemonFinding> {
    wiring::block_on(async {
        let daemon = Daemon::connect(flavour, &wiring::wish(config)).await?;
        Ok(DaemonFinding::new(&daemon.facts()))
    })
}

pub fn run(config: &Config, flavour: Flavour) -> Result<Exit> {
    let daemon = look(config, flavour)?;
    let role = config.sandbox.role();
    let tried = wiring::with_service(config, |service| try_out(service, role));
    let (trial, report, languages, refused_runners) = match tried {
        Ok(Tried { took, report, languages, refused_runners }) => {
            let (tier, user, took) = (report.tier, report.user.id, took.as_millis());
            let by = report.runtime.as_ref().map(|runtime| format!(", made by {runtime}")).unwrap_or_default();
            let detail =
                format!("made a sandbox ({tier}{by}), ran a program in it as user {user} and removed it in {took} ms");
            (TrialFinding { works: true, detail, hint: None }, Some(report), languages, refused_runners)
        }
        Err(error) => {
            let hint = error.hint().map(str::to_owned);
            (TrialFinding { works: false, detail: error.message().to_owned(), hint }, None, Vec::new(), Vec::new())
        }
    };
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION"),
        engine: flavour.as_str(),
        daemon,
        trial,
        layers: report.map(layers).unwrap_or_default(),
        languages: languages.into_iter().map(LanguageFinding::from).collect(),
        refused_runners,
    };
    if config.json {
        output::object(&findings);
    } else {
        output::text(&render(&findings));
    }
    Ok(if findings.trial.works { Exit::SUCCESS } else { Exit::FAILURE })
}

/// What came of a sandbox.
struct Tried {
    took: Duration,
    report: IsolationReport,
    languages: Vec<Language>,
    refused_runners: Vec<String>,
}

async fn try_out(service: SandboxService, role: Role) -> Result<Tried> {
    let owner = Owner::local();
    let spec = SandboxSpec { role, ..SandboxSpec::new(owner.clone()) };
    let languages = service.languages(&owner, &spec.image).await?;
    let started = Instant::now();
    let sandbox = service.create(&owner, spec).await?;
    let report = service.isolation(&owner, &sandbox.id).await?;
    let request = ExecRequest::new(["/bin/sh", "-c", "exit 7"], Duration::from_secs(10))?;
    match service.exec(&owner, &sandbox.id, request).await {
        Ok(execution) => _ = execution.capture(OutputCaps::default()).await?,
        // An image may be without a shell; that it was looked for is as good a proof.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    service.stop(&owner, &sandbox.id).await?;
    let took = started.elapsed();
    Ok(Tried { took, report, languages, refused_runners: service.refused_runners().await? })
}

fn layers(report: IsolationReport) -> Vec<LayerFinding> {
    let finding = |layer: sandbox::LayerReport| LayerFinding {
        layer: layer.layer.as_str(),
        description: layer.layer.description(),
        state: layer.state.as_str(),
        detail: layer.detail,
    };
    report.layers.into_iter().map(finding).collect()
}

impl DaemonFinding {
    fn new(facts: &DaemonFacts) -> Self {
        Self {
            place: facts.place.clone(),
            version: facts.version.clone(),
            kernel: facts.kernel.clone(),
            cgroup_version: facts.cgroup_version,
            storage: facts.storage.clone(),
            rootless: facts.rootless,
            runtimes: facts.runtimes.iter().cloned().collect(),
            default_runtime: facts.default_runtime.clone(),
        }
    }

    /// In a few words.
    pub fn told(&self) -> String {
        format!("{} at {}", self.version, self.place)
    }
}

impl From<Language> for LanguageFinding {
    fn from(language: Language) -> Self {
        Self { language: language.name, title: language.title, image: language.version }
    }
}

fn render(findings: &Findings) -> String {
    let daemon = &findings.daemon;
    let mut machine = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let cgroups = daemon.cgroup_version.map_or("unknown".to_owned(), |version| format!("version {version}"));
    let usual = daemon.default_runtime.as_deref().unwrap_or("unknown");
    let runtimes = format!("{usual} (has {})", daemon.runtimes.join(", "));
    let privilege = if daemon.rootless { "rootless" } else { "root" };
    for (what, value) in [
        ("  sandpen", findings.version),
        ("  daemon", &format!("{} {}", findings.engine, daemon.told())),
        ("  kernel", &daemon.kernel),
        ("  cgroups", &cgroups),
        ("  privilege", privilege),
        ("  storage", &daemon.storage),
        ("  runtime", &runtimes),
    ] {
        machine.push([Cell::styled(what, DIM), value.into()]);
    }
    let mut text = format!("{BOLD}Machine{BOLD:#}\n{}\n", machine.render());
    if !findings.layers.is_empty() {
        text += &format!("{BOLD}Isolation{BOLD:#}\n{}\n", render_layers(&findings.layers));
    }
    if !findings.languages.is_empty() {
        text += &format!("{BOLD}Languages{BOLD:#}\n{}\n", render_languages(&findings.languages));
    }
    if !findings.refused_runners.is_empty() {
        let lines: String = findings.refused_runners.iter().map(|why| format!("  {} {why}\n", Mark::No)).collect();
        text += &format!("{BOLD}Left out{BOLD:#}\n{lines}\n");
    }
    let TrialFinding { works, detail, hint } = &findings.trial;
    let mark = if *works { Mark::Yes } else { Mark::No };
    text += &format!("{BOLD}Trial{BOLD:#}\n  {mark} {detail}\n");
    if let Some(hint) = hint {
        text += &format!("    {ADVICE}remedy:{ADVICE:#} {hint}\n");
    }
    let missing = findings.layers.iter().filter(|layer| layer.state != LayerState::On.as_str()).count();
    text += &match (works, missing) {
        (false, _) => format!("\n{BAD}No sandbox starts on this daemon.{BAD:#}\n"),
        (true, 0) => format!("\n{GOOD}All {} layers stand.{GOOD:#}\n", findings.layers.len()),
        (true, missing) => {
            format!("\n{DOUBTFUL}Sandboxes start with {missing} layers missing or unknown.{DOUBTFUL:#}\n")
        }
    };
    text
}

fn render_layers(layers: &[LayerFinding]) -> String {
    let width = layers.iter().map(|layer| layer.layer.len()).max().unwrap_or(0);
    let mut text = String::new();
    for LayerFinding { layer, description, state, detail } in layers {
        let mark = match *state {
            "on" => Mark::Yes,
            "off" => Mark::No,
            _ => Mark::Perhaps,
        };
        text += &format!("  {mark} {layer:width$}  {description}{DIM}; {detail}{DIM:#}\n");
    }
    text
}

fn render_languages(languages: &[LanguageFinding]) -> String {
    let width = languages.iter().map(|language| language.title.len()).max().unwrap_or(0);
    let line = |language: &LanguageFinding| {
        let (mark, image) = match &language.image {
            Some(image) => (Mark::Yes.to_string(), image.as_str()),
            None => (format!("{DIM}–{DIM:#}"), "ask for an image that has it"),
        };
        format!("  {mark} {:width$}  {DIM}{image}{DIM:#}\n", language.title)
    };
    languages.iter().map(line).collect()
}
