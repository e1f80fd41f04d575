//! Sandboxes of a daemon, beside what its own client does with the same image.

use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use engine_docker::{Daemon, Flavour};
use futures_util::future::try_join_all;
use sandbox::{
    Error, ExecRequest, ExecStatus, Image, OutputCaps, Owner, Result, SandboxId, SandboxService, SandboxSpec,
};
use serde::Serialize;
use serde_json::json;

use super::program::{ask, time};
use super::sample::Sample;
use super::{Arguments, PAUSE, WARM_UPS};
use crate::config::Config;
use crate::exit::Exit;
use crate::mcp::customer::Customer;
use crate::output::{self, DIM};
use crate::table::{Align, Cell, Table};
use crate::{suggest, wiring};

const PYTHON: [&str; 3] = ["python3", "-c", "print(1)"];
const TRUE: [&str; 1] = ["/bin/true"];
/// As many as a server keeps.
const SPARES: usize = 2;
const AT_ONCE: usize = 20;

macro_rules! rows {
    ($($variant:ident, $name:literal, $beside:expr, $what:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Row {
            $($variant,)*
        }

        impl Row {
            const ALL: &'static [Row] = &[$(Row::$variant,)*];

            fn name(self) -> &'static str {
                match self { $(Row::$variant => $name,)* }
            }

            fn what(self) -> &'static str {
                match self { $(Row::$variant => $what,)* }
            }

            /// What a person would do instead.
            fn beside(self) -> Option<Row> {
                match self { $(Row::$variant => $beside,)* }
            }
        }
    };
}

rows! {
    ClientRun, "client-run", None, "the client's own run --rm, python3 -c 'print(1)'";
    SandboxPython, "sandbox-python", Some(Row::ClientRun), "fresh sandbox, cold Python, through the service";
    SparePython, "spare-python", Some(Row::ClientRun), "the same, sandbox made ahead, as a server does";
    GonePython, "gone-python", Some(Row::ClientRun), "the same, until the sandbox is removed, as run --rm waits for";
    McpPython, "mcp-python", Some(Row::ClientRun), "run_code over MCP stdio, as the client sees it";
    RunPython, "run-python", Some(Row::ClientRun), "sandpen run python, as a program";
    ClientExec, "client-exec", None, "the client's own exec, /bin/true";
    ExecTrue, "exec-true", Some(Row::ClientExec), "/bin/true in a running sandbox";
    ClientMany, "client-20", None, "twenty times run --rm of /bin/true at once, until all have ended";
    Many, "sandbox-20", Some(Row::ClientMany), "twenty sandboxes at once, /bin/true in each, until all are gone";
}

pub fn run(arguments: &Arguments, config: &Config, flavour: Flavour) -> Result<Exit> {
    for name in &arguments.only {
        let known = || Row::ALL.iter().map(|row| row.name());
        if known().all(|known| known != name) {
            let hint = match suggest::nearest(name, known()) {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => format!("the rows are {}", known().collect::<Vec<_>>().join(", ")),
            };
            return Err(Error::invalid_input(format!("there is no row {name:?} with this engine")).with_hint(hint));
        }
    }
    let report = wiring::with_service(config, |service| async { measure(arguments, config, flavour, service).await })?;
    if config.json {
        output::object(&report);
    } else if arguments.markdown {
        output::text(&report.markdown());
    } else {
        output::text(&report.render());
    }
    Ok(Exit::SUCCESS)
}

async fn measure(arguments: &Arguments, config: &Config, flavour: Flavour, service: SandboxService) -> Result<Report> {
    let setting = Setting::prepare(service, config, flavour).await?;
    let wanted = |row: &&Row| arguments.only.is_empty() || arguments.only.iter().any(|name| name == row.name());
    let mut rows: Vec<(Row, Vec<Duration>)> = Vec::new();
    let mut skipped = Vec::new();
    for &row in Row::ALL.iter().filter(wanted) {
        let mut warmed_up = Ok(Duration::ZERO);
        for _ in 0..WARM_UPS {
            warmed_up = warmed_up.and(setting.once(row).await);
        }
        match warmed_up {
            Ok(_) => rows.push((row, Vec::new())),
            Err(error) => skipped.push((row.name(), error.message().to_owned())),
        }
    }
    for round in 0..arguments.runs as usize {
        let count = rows.len();
        for place in 0..count {
            let (row, times) = &mut rows[(place + round) % count];
            times.push(setting.once(*row).await?);
            tokio::time::sleep(PAUSE).await;
        }
    }
    let daemon = setting.daemon.clone();
    setting.clear_away().await?;
    let samples: Vec<(Row, Sample)> = rows.into_iter().map(|(row, times)| (row, Sample::new(times))).collect();
    let median = |row: Row| samples.iter().find(|(known, _)| *known == row).map(|(_, sample)| sample.median);
    let object = |(row, sample): &(Row, Sample)| RowObject {
        name: row.name(),
        what: row.what(),
        median_ms: sample.median,
        p10_ms: sample.p10,
        p90_ms: sample.p90,
        times_client: row.beside().and_then(median).map(|other| sample.median / other),
    };
    let rows = samples.iter().map(object).collect();
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        engine: flavour.as_str(),
        daemon,
        runs: arguments.runs,
        rows,
        skipped,
    })
}

struct Setting {
    flavour: Flavour,
    service: SandboxService,
    keeping: SandboxService,
    owner: Owner,
    spec: SandboxSpec,
    image: String,
    /// For the daemon's own client.
    arguments: Vec<String>,
    daemon: String,
    standing: SandboxId,
    /// For the client's own exec; it may not be installed.
    client_own: Result<String>,
    ourselves: Vec<String>,
    /// Started when it is first needed.
    customer: OnceLock<Customer>,
}

impl Setting {
    async fn prepare(service: SandboxService, config: &Config, flavour: Flavour) -> Result<Self> {
        let connected = Daemon::connect(flavour, &wiring::wish(config)).await?;
        let facts = connected.facts();
        let owner = Owner::local();
        let spec = SandboxSpec { image: config.sandbox.image.clone(), ..SandboxSpec::new(owner.clone()) };
        let image = match &spec.image {
            Image::Named(name) => name.to_string(),
            Image::Host | Image::Directory(_) | Image::Archive(_) | Image::Saved(_) => config.daemon.image.to_string(),
        };
        let ourselves = std::env::current_exe()
            .map_err(|cause| Error::internal("this program does not know where it is").with_cause(cause))?;
        let keeping = wiring::service_with_spares(config, SPARES).await?;
        let standing = service.create(&owner, spec.clone()).await?.id;
        let address =
            if facts.place.starts_with('/') { format!("unix://{}", facts.place) } else { facts.place.clone() };
        let mut setting = Self {
            flavour,
            service,
            keeping,
            owner,
            spec,
            arguments: connected.client_arguments().to_vec(),
            daemon: format!("{} {}", flavour.as_str(), facts.version),
            standing,
            client_own: Err(Error::not_found("there is none")),
            ourselves: vec![
                ourselves.to_string_lossy().into_owned(),
                format!("--state-dir={}", config.state_dir()?.display()),
                format!("--engine={}", flavour.as_str()),
                format!("--daemon-host={address}"),
            ],
            customer: OnceLock::new(),
            image,
        };
        let words = ["run", "--detach", "--network", "none", &setting.image, "sleep", "86400"];
        let command = setting.client(&words);
        let arguments: Vec<_> = command.get_args().collect();
        setting.client_own = ask(flavour.as_str(), &arguments);
        Ok(setting)
    }

    async fn clear_away(self) -> Result<()> {
        if let Ok(own) = &self.client_own {
            time(&mut self.client(&["rm", "--force", own]), &format!("{own}\n"))?;
        }
        self.keeping.shutdown().await?;
        self.service.stop(&self.owner, &self.standing).await
    }

    /// The daemon's own client.
    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.flavour.as_str());
        command.args(&self.arguments).args(arguments);
        command
    }

    fn client_run(&self, argv: &[&str]) -> Command {
        self.client(&[&["run", "--rm", "--network", "none", &self.image], argv].concat())
    }

    async fn once(&self, row: Row) -> Result<Duration> {
        match row {
            Row::ClientRun => time(&mut self.client_run(&PYTHON), "1\n"),
            Row::SandboxPython => self.fresh(&self.service, &PYTHON, b"1\n").await,
            Row::SparePython => self.fresh(&self.keeping, &PYTHON, b"1\n").await,
            Row::GonePython => self.until_gone(&PYTHON, b"1\n").await,
            Row::McpPython => self.call(PYTHON[2], "1\n"),
            Row::RunPython => {
                let words = ["run", "python", PYTHON[2], &format!("--image={}", self.image)];
                time(Command::new(&self.ourselves[0]).args(&self.ourselves[1..]).args(words), "1\n")
            }
            Row::ClientExec => match &self.client_own {
                Ok(own) => time(&mut self.client(&["exec", own, TRUE[0]]), ""),
                Err(error) => Err(Error::new(error.kind(), error.message())),
            },
            Row::ExecTrue => {
                let started = Instant::now();
                self.exec(&self.service, &self.standing, &TRUE, b"").await?;
                Ok(started.elapsed())
            }
            Row::ClientMany => {
                let started = Instant::now();
                let threads: Vec<_> = (0..AT_ONCE)
                    .map(|_| {
                        let mut command = self.client_run(&TRUE);
                        std::thread::spawn(move || time(&mut command, ""))
                    })
                    .collect();
                for thread in threads {
                    thread.join().map_err(|_| Error::internal("a measurement broke off"))??;
                }
                Ok(started.elapsed())
            }
            Row::Many => {
                let started = Instant::now();
                let one = async || {
                    let id = self.service.create(&self.owner, self.spec.clone()).await?.id;
                    let done = self.exec(&self.service, &id, &TRUE, b"").await;
                    self.service.stop(&self.owner, &id).await?;
                    done
                };
                try_join_all((0..AT_ONCE).map(|_| one())).await?;
                Ok(started.elapsed())
            }
        }
    }

    /// From the request to the last byte and the exit code; the sandbox is removed after the clock was stopped.
    async fn fresh(&self, service: &SandboxService, argv: &[&str], expected: &[u8]) -> Result<Duration> {
        let started = Instant::now();
        let id = service.create(&self.owner, self.spec.clone()).await?.id;
        let done = self.exec(service, &id, argv, expected).await;
        let took = started.elapsed();
        service.stop(&self.owner, &id).await?;
        done.map(|()| took)
    }

    /// The same with the removal on the clock.
    async fn until_gone(&self, argv: &[&str], expected: &[u8]) -> Result<Duration> {
        let started = Instant::now();
        let id = self.keeping.create(&self.owner, self.spec.clone()).await?.id;
        let done = self.exec(&self.keeping, &id, argv, expected).await;
        self.keeping.stop(&self.owner, &id).await?;
        let took = started.elapsed();
        done.map(|()| took)
    }

    /// From the first byte of the request to the last of the answer, in a sandbox of its own each time.
    fn call(&self, code: &str, expected: &str) -> Result<Duration> {
        let customer = match self.customer.get() {
            Some(customer) => customer,
            None => {
                let mut server = Command::new(&self.ourselves[0]);
                server.args(&self.ourselves[1..]).args(["mcp", &format!("--image={}", self.image)]);
                let customer = Customer::begin(&mut server)?;
                self.customer.get_or_init(|| customer)
            }
        };
        let started = Instant::now();
        let result = customer.call("run_code", json!({ "language": "python", "code": code }))?;
        let took = started.elapsed();
        if result["stdout"].as_str() == Some(expected) {
            Ok(took)
        } else {
            Err(Error::unavailable(format!("it printed {}", result["stdout"])))
        }
    }

    async fn exec(&self, service: &SandboxService, id: &SandboxId, argv: &[&str], expected: &[u8]) -> Result<()> {
        let request = ExecRequest::new(argv.iter().copied(), Duration::from_secs(60))?;
        let captured = service.exec(&self.owner, id, request).await?.capture(OutputCaps::default()).await?;
        if captured.outcome.status == ExecStatus::Exited(0) && captured.stdout.bytes() == expected {
            return Ok(());
        }
        let said = captured.stderr.to_text();
        Err(Error::unavailable(format!("it ended as {}: {}", captured.outcome.status.as_str(), said.trim())))
    }
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    engine: &'static str,
    daemon: String,
    runs: u32,
    rows: Vec<RowObject>,
    skipped: Vec<(&'static str, String)>,
}

#[derive(Debug, Serialize)]
struct RowObject {
    name: &'static str,
    what: &'static str,
    median_ms: f64,
    p10_ms: f64,
    p90_ms: f64,
    times_client: Option<f64>,
}

impl Report {
    fn render(&self) -> String {
        let mut table = Table::new(&[
            ("ROW", Align::Left),
            ("MEDIAN ms", Align::Right),
            ("P10", Align::Right),
            ("P90", Align::Right),
            ("× CLIENT", Align::Right),
            ("WHAT", Align::Left),
        ]);
        let number = |value: f64| Cell::from(format!("{value:.2}"));
        for row in &self.rows {
            let ratio = row.times_client.map_or_else(|| Cell::styled("–", DIM), number);
            let what = Cell::styled(row.what, DIM);
            table.push([row.name.into(), number(row.median_ms), number(row.p10_ms), number(row.p90_ms), ratio, what]);
        }
        let mut text = table.render();
        for (name, reason) in &self.skipped {
            text += &format!("{DIM}{name} was skipped: {reason}{DIM:#}\n");
        }
        text + &format!("{DIM}{}{DIM:#}\n", self.conditions())
    }

    fn markdown(&self) -> String {
        let mut text = String::from(
            "| Row | What | Median ms | p10 | p90 | × client |\n| --- | --- | ---: | ---: | ---: | ---: |\n",
        );
        for RowObject { name, what, median_ms, p10_ms, p90_ms, times_client } in &self.rows {
            let ratio = times_client.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
            text += &format!("| `{name}` | {what} | {median_ms:.2} | {p10_ms:.2} | {p90_ms:.2} | {ratio} |\n");
        }
        for (name, reason) in &self.skipped {
            text += &format!("\n`{name}` was skipped: {reason}.\n");
        }
        text + &format!("\n{}\n", self.conditions())
    }

    fn conditions(&self) -> String {
        format!("sandpen {}, {}, {} interleaved runs per row", self.version, self.daemon, self.runs)
    }
}
