//! Which engines there are. The native one is tried out, because no table of features proves as much as a sandbox; daemons
//! are asked whether they are there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine_docker::Flavour;
use sandbox::{Error, ExecRequest, ExecStatus, OutputCaps, Owner, Result, SandboxSpec};
use serde::Serialize;

use super::super::daemon;
use super::Mark;
use crate::config::{Config, EngineChoice};
use crate::output::{ADVICE, DIM};
use crate::wiring;

#[derive(Debug, Serialize)]
pub struct EngineFinding {
    engine: &'static str,
    state: EngineState,
    detail: String,
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum EngineState {
    Works,
    Broken,
    /// It answers, for whoever asks for it.
    Found,
    /// It is here, and this version cannot drive it.
    NotDriven,
    Absent,
}

impl EngineFinding {
    /// Only an engine that this version should be able to use can be found broken.
    pub fn is_sound(&self) -> bool {
        self.state != EngineState::Broken
    }
}

/// `try_native` is whether its walls can be built at all; without them the attempt would only repeat that.
pub fn look(config: &Config, try_native: bool) -> Vec<EngineFinding> {
    let native = if try_native {
        match try_out(config) {
            Ok((took, user)) => finding(
                EngineChoice::Native,
                EngineState::Works,
                format!(
                    "made a sandbox, ran a program in it as user {user} and removed it in {:.0} ms",
                    took.as_secs_f64() * 1000.0
                ),
            ),
            Err(error) => EngineFinding {
                hint: error.hint().map(str::to_owned),
                ..finding(EngineChoice::Native, EngineState::Broken, error.message().to_owned())
            },
        }
    } else {
        finding(EngineChoice::Native, EngineState::Broken, "not tried, because walls are missing".to_owned())
    };
    vec![
        native,
        of_daemon(config, EngineChoice::Docker, Flavour::Docker),
        of_daemon(config, EngineChoice::Podman, Flavour::Podman),
        foreign(EngineChoice::Kubernetes, &cluster_configs()),
    ]
}

/// How long it took, and whom programs are.
fn try_out(config: &Config) -> Result<(Duration, u32)> {
    let mut config = config.clone();
    config.engine = EngineChoice::Native;
    let started = Instant::now();
    let role = config.sandbox.role();
    let user = wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let sandbox = service.create(&owner, SandboxSpec { role, ..SandboxSpec::new(owner.clone()) }).await?;
        let user = service.isolation(&owner, &sandbox.id).await?.user.id;
        let request = ExecRequest::new(["/bin/sh", "-c", "exit 7"], Duration::from_secs(10))?;
        let captured = service.exec(&owner, &sandbox.id, request).await?.capture(OutputCaps::default()).await?;
        service.stop(&owner, &sandbox.id).await?;
        match captured.outcome.status {
            ExecStatus::Exited(7) => Ok(user),
            status => Err(Error::internal(format!("a trial program ended as {status:?} instead of with code 7"))),
        }
    })?;
    Ok((started.elapsed(), user))
}

/// A daemon is nobody's fault when it is not there: it is not needed.
fn of_daemon(config: &Config, engine: EngineChoice, flavour: Flavour) -> EngineFinding {
    match daemon::look(config, flavour) {
        Ok(daemon) => {
            let detail = format!("answers: {}; --engine {} takes it", daemon.told(), engine.as_str());
            finding(engine, EngineState::Found, detail)
        }
        Err(_) => finding(engine, EngineState::Absent, "does not answer; not needed".to_owned()),
    }
}

fn foreign(engine: EngineChoice, places: &[PathBuf]) -> EngineFinding {
    match places.iter().find(|place| place.exists()) {
        Some(place) => finding(
            engine,
            EngineState::NotDriven,
            format!("found at {}, but this version does not drive it yet", place.display()),
        ),
        None => finding(engine, EngineState::Absent, "not found; not needed".to_owned()),
    }
}

fn finding(engine: EngineChoice, state: EngineState, detail: String) -> EngineFinding {
    EngineFinding { engine: engine.as_str(), state, detail, hint: None }
}

fn cluster_configs() -> Vec<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").map(PathBuf::from);
    let usual = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    named.into_iter().chain(usual).collect()
}

pub fn render(engines: &[EngineFinding]) -> String {
    let width = engines.iter().map(|engine| engine.engine.len()).max().unwrap_or(0);
    let mut text = String::new();
    for EngineFinding { engine, state, detail, hint } in engines {
        let mark = match state {
            EngineState::Works | EngineState::Found => Mark::Yes.to_string(),
            EngineState::Broken => Mark::No.to_string(),
            EngineState::NotDriven => Mark::Perhaps.to_string(),
            EngineState::Absent => format!("{DIM}–{DIM:#}"),
        };
        text += &format!("  {mark} {engine:width$}  {DIM}{detail}{DIM:#}\n");
        if let Some(hint) = hint {
            text += &format!("    {:width$}  {ADVICE}remedy:{ADVICE:#} {hint}\n", "");
        }
    }
    text
}
