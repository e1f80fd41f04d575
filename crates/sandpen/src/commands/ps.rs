//! `sandpen ps`: the sandboxes that exist.

use std::time::{Duration, SystemTime};

use clap::Args;
use sandbox::{ByteSize, IsolationReport, Network, Owner, Persistence, Reach, Result, SandboxInfo};
use serde::Serialize;

use crate::config::Config;
use crate::exit::Exit;
use crate::outcome::IsolationObject;
use crate::output::{self, DIM};
use crate::table::{Align, Cell, Table};
use crate::{time, wiring};

/// List your sandboxes
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print the ids alone
    #[arg(long, short)]
    quiet: bool,
}

/// A sandbox as `create --json` and `ps --json` show it.
#[derive(Debug, Serialize)]
pub struct SandboxObject {
    sandbox_id: String,
    name: Option<String>,
    image: String,
    state: &'static str,
    persistent: bool,
    created_at: String,
    expires_at: Option<String>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: u64,
    cpus: f64,
    processes: u32,
    disk_limit_bytes: u64,
    network: String,
    /// `null` when it ended before it could be asked.
    isolation: Option<IsolationObject>,
    /// Commands of the daemon's own tools, for one that was just made.
    #[serde(skip_serializing_if = "Option::is_none")]
    reach: Option<ReachObject>,
}

#[derive(Debug, Serialize)]
struct ReachObject {
    enter: String,
    stop: Option<String>,
    start: Option<String>,
    remove: String,
}

impl SandboxObject {
    pub fn new(sandbox: &SandboxInfo, memory: Option<u64>, isolation: Option<&IsolationReport>) -> Self {
        Self {
            sandbox_id: sandbox.id.to_string(),
            name: sandbox.name.as_ref().map(ToString::to_string),
            image: sandbox.image.to_string(),
            state: sandbox.condition(),
            persistent: sandbox.persistence == Persistence::Persistent,
            created_at: time::rfc3339(sandbox.created_at),
            expires_at: sandbox.expires_at.map(time::rfc3339),
            memory_bytes: memory,
            memory_limit_bytes: sandbox.limits.memory.bytes(),
            cpus: f64::from(sandbox.limits.cpu_millis) / 1000.0,
            processes: sandbox.limits.processes,
            disk_limit_bytes: sandbox.limits.disk.bytes(),
            network: sandbox.network.to_string(),
            isolation: isolation.map(Into::into),
            reach: None,
        }
    }

    pub fn with_reach(self, reach: Option<&Reach>) -> Self {
        let reach =
            reach.cloned().map(|Reach { enter, stop, start, remove }| ReachObject { enter, stop, start, remove });
        Self { reach, ..self }
    }
}

#[derive(Serialize)]
struct Sandboxes {
    sandboxes: Vec<SandboxObject>,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let sandboxes = service.list(&owner).await?;
        if arguments.quiet {
            output::text(&sandboxes.iter().map(|sandbox| format!("{}\n", sandbox.id)).collect::<String>());
            return Ok(Exit::SUCCESS);
        }
        if sandboxes.is_empty() && !config.json {
            output::note("you have no sandboxes", Some("make one with sandpen create"));
            return Ok(Exit::SUCCESS);
        }
        let mut rows = Vec::new();
        let mut objects = Vec::new();
        for sandbox in sandboxes {
            // One that ends between the list and the question has no usage, and that is no error.
            let memory = service.usage(&owner, &sandbox.id).await.unwrap_or_default().memory;
            if config.json {
                let isolation = service.isolation(&owner, &sandbox.id).await.ok();
                objects.push(SandboxObject::new(&sandbox, memory, isolation.as_ref()));
            } else {
                rows.push((sandbox, memory));
            }
        }
        if config.json {
            output::object(&Sandboxes { sandboxes: objects });
        } else {
            output::text(&table(&rows, SystemTime::now()).render());
        }
        Ok(Exit::SUCCESS)
    })
}

fn table(rows: &[(SandboxInfo, Option<u64>)], now: SystemTime) -> Table {
    let mut table = Table::new(&[
        ("ID", Align::Left),
        ("NAME", Align::Left),
        ("IMAGE", Align::Left),
        ("AGE", Align::Right),
        ("EXPIRES IN", Align::Right),
        ("STATE", Align::Left),
        ("NETWORK", Align::Left),
        ("MEMORY", Align::Right),
    ]);
    let nothing = || Cell::styled("–", DIM);
    for (sandbox, memory) in rows {
        let age = now.duration_since(sandbox.created_at).unwrap_or(Duration::ZERO);
        let expires = sandbox.expires_at.map(|at| at.duration_since(now).unwrap_or(Duration::ZERO));
        table.push([
            sandbox.id.to_string().into(),
            sandbox.name.as_ref().map_or_else(nothing, |name| name.to_string().into()),
            sandbox.image.to_string().into(),
            time::short(whole_seconds(age)).into(),
            expires.map_or_else(nothing, |left| time::short(whole_seconds(left)).into()),
            sandbox.condition().into(),
            match &sandbox.network {
                Network::None => nothing(),
                Network::Internet => "internet".into(),
                Network::Hosts(rules) if rules.len() == 1 => "1 host".into(),
                Network::Hosts(rules) => format!("{} hosts", rules.len()).into(),
            },
            memory.map_or_else(nothing, |bytes| ByteSize::new(bytes).to_string().into()),
        ]);
    }
    table
}

fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

#[cfg(test)]
mod tests {
    use sandbox::{GuestPath, Image, ImageProgram, Lifetime, Limits, State};

    use super::*;

    #[test]
    fn a_row_is_short_and_human() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let sandbox = SandboxInfo {
            id: "sb-7k2m9x4bqhtw3ecd".parse().unwrap(),
            owner: Owner::local(),
            name: Some("lab".parse().unwrap()),
            image: Image::Host,
            persistence: Persistence::Persistent,
            state: State::Live,
            rest: None,
            created_at: now - Duration::from_millis(250_400),
            expires_at: Some(now + Duration::from_millis(599_900)),
            lifetime: Lifetime::default(),
            limits: Limits::default(),
            network: "pypi.org,files.pythonhosted.org".parse().unwrap(),
            work_directory: GuestPath::workspace(),
            program: ImageProgram::default(),
            running: 0,
        };
        let text = table(&[(sandbox.clone(), Some(3 << 20))], now).render();
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            plain,
            "ID                   NAME  IMAGE     AGE  EXPIRES IN  STATE  NETWORK  MEMORY\n\
             sb-7k2m9x4bqhtw3ecd  lab   host   4m 10s      9m 59s  live   2 hosts   3 MiB\n"
        );
        let object = serde_json::to_value(SandboxObject::new(&sandbox, None, None)).unwrap();
        assert_eq!(object["created_at"], "1970-01-12T13:42:29Z");
        assert_eq!(object["cpus"], 1.0);
    }
}
