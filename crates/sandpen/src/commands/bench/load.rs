//! A server under load: many small calls, slow clients beside them, tenants that make sandboxes all at once, and whether the time
//! of a refusal tells anything of a token.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sandbox::{Error, Owner, Result};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use self::client::Client;
use crate::auth::account::{Account, AccountFile, PasswordDigest};
use crate::auth::keyring::Keyring;
use crate::auth::scope::Scope;
use crate::auth::server::grants::{Agreed, Grants};
use crate::auth::server::records::{RecordsFile, Who};
use crate::auth::token::{NewToken, Shown, Token, TokenFile};
use crate::exit::Exit;
use crate::{output, random, wiring};

mod client;
mod processor;

/// Connections of good clients, each with one call after the other.
const CLIENTS: usize = 16;
const SLOW: usize = 500;
const TENANTS: usize = 24;
const LASTS: Duration = Duration::from_secs(10);
/// Creates of one tenant that are asked for at any moment of a storm.
const STORM: usize = 64;
const CREATES: usize = 9;
const TIMINGS: usize = 100_000;
const GRANT_LIVES: Duration = Duration::from_secs(3600);

#[derive(Debug, Serialize)]
struct Report {
    calls: Calls,
    /// With what somebody has granted instead of a token that was made.
    calls_by_grant: Calls,
    calls_beside_slow_clients: Calls,
    storm: Storm,
    timing: Timing,
    load_before: Option<f64>,
}

/// Small calls: `list_sandboxes`, each with its token, over connections that are kept.
#[derive(Clone, Copy, Debug, Serialize)]
struct Calls {
    per_second: f64,
    median_ms: f64,
    p99_ms: f64,
}

/// Of each tenant the median of its own creates; the worst of all tenants is what counts.
#[derive(Clone, Copy, Debug, Serialize)]
struct Storm {
    idle_ms: f64,
    /// While one other tenant asks for as many as it likes.
    worst_beside_a_greedy_one: f64,
    /// While all of them make one after the other.
    worst_with_all: f64,
    /// Of the slowest of them.
    with_all_ms: f64,
    /// What one create and its stop cost the processors, all processes of the server together.
    processor_ms: Option<f64>,
    processors: usize,
}

impl Storm {
    /// How long each has to wait for its turn, whatever its turn is, when the processors do nothing else.
    fn floor_ms(&self) -> Option<f64> {
        Some(self.processor_ms? * TENANTS as f64 / self.processors as f64)
    }
}

/// Refusals of tokens that differ from a right one in the first or in the last character of their secret.
#[derive(Clone, Copy, Debug, Serialize)]
struct Timing {
    first_ns: f64,
    last_ns: f64,
    /// Of Welch; beyond 4.5 the two are told apart.
    t: f64,
}

pub fn run(as_json: bool) -> Result<Exit> {
    let load_before = std::fs::read_to_string("/proc/loadavg").ok();
    let load_before = load_before.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let place = Place::make()?;
    let report = wiring::block_on(async {
        let server = place.serve()?;
        let address = server.address;
        let tokens = &place.tokens;
        let calls = calls(address, &tokens[0]).await?;
        let by_grant = self::calls(address, &place.grant).await?;
        let slow = slow_clients(address, &tokens[1..]).await?;
        let beside = self::calls(address, &tokens[0]).await?;
        drop(slow);
        let storm = storm(&server, tokens).await?;
        let timing = place.timing()?;
        Ok(Report { calls, calls_by_grant: by_grant, calls_beside_slow_clients: beside, storm, timing, load_before })
    })?;
    if as_json {
        output::object(&report);
    } else {
        output::text(&report.table());
    }
    Ok(Exit::SUCCESS)
}

/// A state directory of its own, with a token for each tenant.
struct Place {
    directory: std::path::PathBuf,
    tokens: Vec<String>,
    grant: String,
}

impl Place {
    fn make() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("sandpen-bench-{}", random::digits()?));
        let mut place = Self { directory, tokens: Vec::new(), grant: String::new() };
        let tokens = (0..TENANTS).map(|number| place.token(&format!("tenant-{number}")));
        place.tokens = tokens.map(|token| token.map(|token| token.reveal().to_owned())).collect::<Result<_>>()?;
        place.grant = place.granted()?;
        Ok(place)
    }

    /// What a client has whose person has signed in and agreed.
    fn granted(&self) -> Result<String> {
        let now = SystemTime::now();
        let accounts = AccountFile::of_state_directory(&self.directory)?;
        let account = Account::new("tenant-0".parse()?, Scope::Run, PasswordDigest::new(&random::digits()?)?, now)?;
        let who = Who::Account { name: "tenant".to_owned(), revision: account.revision.clone() };
        accounts.create("tenant".parse()?, account)?;
        let records = Arc::new(RecordsFile::of_state_directory(&self.directory)?);
        let grants = Grants::new(records, Arc::new(accounts), Arc::new(|_| None), GRANT_LIVES);
        let agreed = Agreed { client: "bench".to_owned(), who, scope: Scope::Run.claim().to_owned() };
        Ok(grants.begin(&agreed, now)?.1.access)
    }

    fn token(&self, owner: &str) -> Result<Token> {
        let owner: Owner = owner.parse()?;
        let new = NewToken { name: None, owner, scope: Scope::Run, lives: None };
        Ok(TokenFile::of_state_directory(&self.directory).create(new, SystemTime::now())?.0)
    }

    fn serve(&self) -> Result<Serving> {
        let failed = |cause: std::io::Error| Error::unavailable("the server does not start").with_cause(cause);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["--json", "serve", "--oauth", "--listen", "127.0.0.1:0", "--log", "off", "--state-dir"])
            .arg(&self.directory);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
        }
        let told: Value = serde_json::from_str(&line).unwrap_or_default();
        let url = told["url"].as_str().unwrap_or_default();
        let address =
            url.split("://").nth(1).and_then(|rest| rest.split('/').next()).and_then(|text| text.parse().ok());
        match address {
            Some(address) => Ok(Serving { child, address }),
            None => Err(Error::unavailable("the server does not say where it listens")),
        }
    }

    /// In this process, where nothing else is measured.
    fn timing(&self) -> Result<Timing> {
        let keyring = Keyring::open(TokenFile::of_state_directory(&self.directory))?;
        let right = &self.tokens[0];
        let secret = right.rfind('_').map_or(0, |at| at + 1);
        let wrong_at = |at: usize| {
            let mut bytes = right.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            String::from_utf8(bytes).unwrap_or_default()
        };
        let (first, last) = (wrong_at(secret), wrong_at(right.len() - 1));
        let now = SystemTime::now();
        let mut times = [Vec::with_capacity(TIMINGS), Vec::with_capacity(TIMINGS)];
        let mut order = [0u8; 1024];
        for number in 0..2 * TIMINGS {
            if number % order.len() == 0 {
                order = random::bytes()?;
            }
            let which = usize::from(order[number % order.len()] & 1);
            let token = if which == 0 { &first } else { &last };
            let started = Instant::now();
            let admitted = std::hint::black_box(keyring.admit(&Shown::new(token), now));
            let took = started.elapsed().as_nanos() as f64;
            if admitted.is_some() {
                return Err(Error::internal("a wrong token was let in"));
            }
            times[which].push(took);
        }
        // What the machine does meanwhile is in the slowest of both alike.
        let [first, last] = times.map(trimmed);
        let ((first_ns, first_variance), (last_ns, last_variance)) = (moments(&first), moments(&last));
        let error = (first_variance / first.len() as f64 + last_variance / last.len() as f64).sqrt();
        Ok(Timing { first_ns, last_ns, t: (first_ns - last_ns) / error })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn trimmed(mut times: Vec<f64>) -> Vec<f64> {
    times.sort_by(f64::total_cmp);
    times.truncate(times.len() * 99 / 100);
    times
}

fn moments(times: &[f64]) -> (f64, f64) {
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    (mean, times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0))
}

async fn calls(address: SocketAddr, token: &str) -> Result<Calls> {
    let end = Instant::now() + LASTS;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut client = Client::connect(address, token).await?;
        clients.spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < end {
                times.push(client.timed("list_sandboxes", &json!({})).await?.0);
            }
            Ok::<_, Error>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = clients.join_next().await {
        times.extend(done.map_err(|cause| Error::internal("a client broke").with_cause(cause))??);
    }
    times.sort();
    let at = |share: f64| milliseconds(times[((times.len() - 1) as f64 * share) as usize]);
    Ok(Calls { per_second: times.len() as f64 / LASTS.as_secs_f64(), median_ms: at(0.5), p99_ms: at(0.99) })
}

/// Those that say nothing, that stop in the middle of a head or a body, and that read no answer. They come again when they are
/// given up. Of several owners: one alone does not get so many answers at once.
async fn slow_clients(address: SocketAddr, tokens: &[String]) -> Result<JoinSet<()>> {
    let mut slow = JoinSet::new();
    for (number, token) in (0..SLOW).zip(tokens.iter().cycle()) {
        let head = format!("POST /mcp HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n");
        let body = format!("{head}content-type: application/json\r\ncontent-length: 100000\r\n\r\n");
        let begin = [String::new(), head.clone(), body.clone(), format!("{body}{{")][number % 4].clone();
        slow.spawn(async move {
            loop {
                let Ok(stream) = TcpStream::connect(address).await else { return };
                let _ = client::trickle(stream, begin.as_bytes()).await;
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(slow)
}

async fn storm(server: &Serving, tokens: &[String]) -> Result<Storm> {
    let address = server.address;
    let mut idle = Vec::new();
    for token in tokens {
        idle.push(creates(address, token).await?);
    }
    let greedy: JoinSet<()> = (0..STORM)
        .map(|_| {
            let token = tokens[0].clone();
            async move {
                while let Ok(mut client) = Client::connect(address, &token).await {
                    while client.make_and_stop().await.is_ok() {}
                }
            }
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut beside: f64 = 0.0;
    for (token, idle) in tokens.iter().zip(&idle).skip(1) {
        beside = beside.max(creates(address, token).await? / idle);
    }
    drop(greedy);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = processor::time(server.child.id());
    let mut all: JoinSet<Result<(f64, f64)>> = JoinSet::new();
    for (token, idle) in tokens.iter().cloned().zip(idle.clone()) {
        all.spawn(async move { creates(address, &token).await.map(|took| (took, took / idle)) });
    }
    let (mut worst, mut slowest): (f64, f64) = (0.0, 0.0);
    while let Some(done) = all.join_next().await {
        let (took, times) = done.map_err(|cause| Error::internal("a tenant broke").with_cause(cause))??;
        (worst, slowest) = (worst.max(times), slowest.max(took));
    }
    let spent = processor::time(server.child.id()).zip(before).map(|(after, before)| after.saturating_sub(before));
    idle.sort_by(f64::total_cmp);
    Ok(Storm {
        idle_ms: idle[idle.len() / 2],
        worst_beside_a_greedy_one: beside,
        worst_with_all: worst,
        with_all_ms: slowest,
        processor_ms: spent.map(|spent| milliseconds(spent) / (TENANTS * CREATES) as f64),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

/// The median time of some, one after the other.
async fn creates(address: SocketAddr, token: &str) -> Result<f64> {
    // A connection that nobody uses for a while is closed.
    let mut client = Client::connect(address, token).await?;
    let mut times = Vec::new();
    for _ in 0..CREATES {
        times.push(client.make_and_stop().await?);
    }
    times.sort();
    Ok(milliseconds(times[times.len() / 2]))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

impl Report {
    fn table(&self) -> String {
        let Self { calls, calls_by_grant, calls_beside_slow_clients: beside, storm, timing, load_before } = self;
        let mut table = "| Load | Measured | Goal |\n| --- | ---: | ---: |\n".to_owned();
        let mut row = |what: String, measured: String, goal: &str| {
            let _ = writeln!(table, "| {what} | {measured} | {goal} |");
        };
        row(
            format!("small calls with a token, {CLIENTS} clients"),
            format!("{:.0} a second", calls.per_second),
            "≥ 1000",
        );
        row("their median".into(), format!("{:.1} ms", calls.median_ms), "");
        row("their 99th percentile".into(), format!("{:.1} ms", calls.p99_ms), "≤ 50 ms");
        row("the same with a token of OAuth".into(), format!("{:.0} a second", calls_by_grant.per_second), "≥ 1000");
        row("their 99th percentile".into(), format!("{:.1} ms", calls_by_grant.p99_ms), "≤ 50 ms");
        row(format!("the same beside {SLOW} slow clients"), format!("{:.0} a second", beside.per_second), "");
        row("their 99th percentile".into(), format!("{:.1} ms", beside.p99_ms), "≤ 500 ms");
        row(format!("create and stop of one of {TENANTS} tenants, idle"), format!("{:.1} ms", storm.idle_ms), "");
        let ratio = |times: f64| format!("× {times:.2}");
        row(
            "the slowest of 23, beside one that asks for 64 at once".into(),
            ratio(storm.worst_beside_a_greedy_one),
            "≤ × 2",
        );
        row("the slowest of 24 that all make one after the other".into(), ratio(storm.worst_with_all), "");
        row("its time".into(), format!("{:.0} ms", storm.with_all_ms), "");
        if let (Some(each), Some(floor)) = (storm.processor_ms, storm.floor_ms()) {
            row("processor time of one create and stop meanwhile".into(), format!("{each:.1} ms"), "");
            row(format!("{TENANTS} of these on {} processors", storm.processors), format!("{floor:.0} ms"), "");
        }
        let times = format!("{:.0} and {:.0} ns", timing.first_ns, timing.last_ns);
        row("refusal of a token that is wrong in its first and in its last character".into(), times, "");
        row(format!("whether they are told apart, t over {TIMINGS} each"), format!("{:.1}", timing.t), "within ± 4.5");
        if let Some(load) = load_before {
            let _ = writeln!(table, "\nLoad of the machine before: {load}.");
        }
        table
    }
}
