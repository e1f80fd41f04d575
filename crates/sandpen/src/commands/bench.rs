//! `sandpen bench`: how long things take here, beside what a person would use instead.
//!
//! Ratios are taken within one run, over rounds in which every row is measured once in turn, because two runs on one
//! machine differ by more than most rows do.

use std::time::Duration;

use clap::Args;
use engine_docker::Flavour;
use sandbox::{Error, Result, SandboxService};

use self::report::{Report, Skipped};
use self::row::{Row, Setting};
use self::sample::Sample;
use crate::cli::examples;
use crate::config::{Config, EngineChoice};
use crate::exit::Exit;
use crate::wiring::Outlet;
use crate::{output, suggest, wiring};

mod bundle;
mod daemon;
mod load;
mod network;
mod preview;
mod program;
mod report;
mod row;
mod sample;
mod scale;
mod stock;
mod trees;

/// Between two measurements, so that the end of one (namespaces die in the background) is not the start of the next.
const PAUSE: Duration = Duration::from_millis(12);
const WARM_UPS: usize = 2;

/// Measure sandboxes on this machine, beside bubblewrap, crun and runc
///
/// With --engine docker or podman, beside what the daemon's own client does with the same image.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen bench", "everything"),
    ("sandpen bench --only bare-python --only sandbox-python", "two rows"),
    ("sandpen bench --http", "a server under load"),
    ("sandpen bench --markdown > performance.md", "for a document"),
]))]
pub struct Arguments {
    /// How often each row is measured
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Measure only this row; may be repeated
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,

    /// How many sandboxes are alive at once for the rows about many of them
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    alive: usize,

    /// Measure a server over HTTP under load, and nothing else
    #[arg(long, conflicts_with_all = ["only", "runs", "alive"])]
    http: bool,

    /// Print a Markdown table
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

pub fn run(arguments: Arguments, mut config: Config) -> Result<Exit> {
    if arguments.http {
        return load::run(config.json);
    }
    match config.engine {
        EngineChoice::Native => {}
        EngineChoice::Docker => return daemon::run(&arguments, &config, Flavour::Docker),
        EngineChoice::Podman => return daemon::run(&arguments, &config, Flavour::Podman),
        EngineChoice::Kubernetes => return Err(wiring::not_driven(config.engine)),
    }
    let wanted = Wanted::new(&arguments.only)?;
    config.quota.sandboxes = config.quota.sandboxes.max(scale::sandboxes_needed(arguments.alive));
    let source = network::Source::open(&mut config);
    let report = wiring::with_service(&config, |service| async {
        measure(&arguments, &wanted, &config, service, source).await
    })?;
    if config.json {
        output::object(&report);
    } else if arguments.markdown {
        output::text(&report.markdown());
    } else {
        output::text(&report.render());
    }
    Ok(Exit::SUCCESS)
}

/// The rows that were asked for; all of them when none was.
struct Wanted(Vec<String>);

impl Wanted {
    fn new(names: &[String]) -> Result<Self> {
        let known = || {
            let others = scale::NAMES.into_iter().chain(network::NAMES).chain(preview::NAMES).chain(trees::NAMES);
            Row::ALL.iter().map(|row| row.name()).chain(others)
        };
        for name in names {
            if known().all(|known| known != name) {
                let hint = match suggest::nearest(name, known()) {
                    Some(nearest) => format!("did you mean {nearest}?"),
                    None => format!("the rows are {}", known().collect::<Vec<_>>().join(", ")),
                };
                return Err(Error::invalid_input(format!("there is no row {name:?}")).with_hint(hint));
            }
        }
        Ok(Self(names.to_vec()))
    }

    fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|wanted| wanted == name)
    }
}

async fn measure(
    arguments: &Arguments,
    wanted: &Wanted,
    config: &Config,
    service: SandboxService,
    source: Result<network::Source>,
) -> Result<Report> {
    let setting = Setting::prepare(service.clone(), config).await?;
    let mut report = Report::new(arguments.runs);
    let mut rows: Vec<(Row, Vec<Duration>)> = Vec::new();
    for &row in Row::ALL.iter().filter(|row| wanted.has(row.name())) {
        match warm_up(&setting, row).await {
            Ok(()) => rows.push((row, Vec::new())),
            Err(error) => report.skipped.push(Skipped::new(row.name(), &error)),
        }
    }
    for round in 0..arguments.runs as usize {
        let count = rows.len();
        for place in 0..count {
            let (row, times) = &mut rows[(place + round) % count];
            times.push(setting.once(*row).await?);
            tokio::time::sleep(row.rest()).await;
        }
    }
    report.rows = rows.into_iter().map(|(row, times)| (row, Sample::new(times))).collect();
    setting.clear_away().await?;
    report.scale = scale::measure(&service, arguments.alive, |name| wanted.has(name)).await?;
    let (figures, skipped) = network::measure(&service, source, |name| wanted.has(name)).await?;
    report.network = figures;
    report.skipped.extend(skipped);
    let (figures, skipped) = preview::measure(&service, &Outlet::new(config)?, |name| wanted.has(name)).await?;
    report.preview = figures;
    report.skipped.extend(skipped);
    let (trees, skipped) = trees::measure(&service, config, arguments.runs, |name| wanted.has(name)).await?;
    report.trees = trees;
    report.skipped.extend(skipped);
    Ok(report)
}

/// The first runs fill caches, and tell whether the row can be measured here at all.
async fn warm_up(setting: &Setting, row: Row) -> Result<()> {
    for _ in 0..WARM_UPS {
        setting.once(row).await?;
        tokio::time::sleep(row.rest()).await;
    }
    Ok(())
}
