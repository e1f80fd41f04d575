//! Life and death of the server: short versions of what the program `crash` does at length.

use std::time::Duration;

use async_trait::async_trait;
use sandpen_tests::Result;
use sandpen_tests::aftermath::{self, Scene};
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::Lab;
use sandpen_tests::random::Random;
use sandpen_tests::server::Victims;

pub const CHECKS: &[&dyn Check] = &[&Killed, &Restarted, &Crashed];

/// The scenes wait and count in plain threads.
async fn blocking(work: impl FnOnce() -> Result<Vec<String>> + Send + 'static) -> Result<Vec<String>> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

async fn control() -> Result<Finding> {
    Ok(Finding::from_breaches(&blocking(aftermath::control).await?, "an orphan was not seen"))
}

/// Kills, of whom; and which of the leftovers count.
async fn kills(victims: &'static [Victims], counted: &'static str) -> Result<Finding> {
    let left = blocking(move || {
        let mut random = Random::announced();
        let scene = Scene::new()?;
        let mut left = Vec::new();
        for victims in victims {
            let delay = random.duration_below(Duration::from_millis(300));
            left.extend(scene.kill_busy(random.draw(), delay, *victims)?);
        }
        Ok(left)
    })
    .await?;
    let left: Vec<String> = left.into_iter().filter(|leak| leak.starts_with(counted)).collect();
    Ok(Finding::from_breaches(&left, format!("{} kills, nothing left", victims.len())))
}

/// Kills the server and does not start it again.
struct Killed;

#[async_trait]
impl Check for Killed {
    fn about(&self) -> About {
        About {
            id: "LC-01",
            tries: "SIGKILL of a busy server, of its launcher and of both; no restart",
            stopped_by: "held channels: the launcher's, and that of process 1 of each sandbox",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    fn embedded_only(&self) -> Option<&'static str> {
        Some("there is no launcher; the program `daemons` kills servers that have sandboxes at a daemon")
    }

    async fn run(&self, _lab: &Lab) -> Result<Finding> {
        use Victims::{Launcher, Server, ServerAndLauncher};
        kills(&[Server, ServerAndLauncher, Launcher, Server, ServerAndLauncher, Server], "2 s after").await
    }

    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        control().await
    }
}

/// Kills the server and starts it again.
struct Restarted;

#[async_trait]
impl Check for Restarted {
    fn about(&self) -> About {
        About {
            id: "LC-02",
            tries: "SIGKILL of server and launcher, then a restart on the same state directory",
            stopped_by: "clearing away what dead processes left, at start",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    fn embedded_only(&self) -> Option<&'static str> {
        Some("there is no launcher; the program `daemons` kills servers that have sandboxes at a daemon")
    }

    async fn run(&self, _lab: &Lab) -> Result<Finding> {
        use Victims::{Server, ServerAndLauncher};
        kills(&[ServerAndLauncher, Server, ServerAndLauncher, ServerAndLauncher], "after the restart").await
    }

    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        control().await
    }
}

/// Dies at steps of create and destroy.
struct Crashed;

#[async_trait]
impl Check for Crashed {
    fn about(&self) -> About {
        About {
            id: "LC-03",
            tries: "a crash at the first, middle and last named step of create and destroy, then a restart",
            stopped_by: "clearing away what dead processes left, at start",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    fn embedded_only(&self) -> Option<&'static str> {
        Some("there is no launcher; the program `daemons` kills servers that have sandboxes at a daemon")
    }

    async fn run(&self, _lab: &Lab) -> Result<Finding> {
        let steps = engine_native::steps();
        let chosen: Vec<&'static str> = [0, steps.len() / 2, steps.len().saturating_sub(1)]
            .iter()
            .filter_map(|index| steps.get(*index).copied())
            .collect();
        if chosen.is_empty() {
            return Ok(Finding::Breach("the engine names no steps".to_owned()));
        }
        let shown = chosen.join(", ");
        let left = blocking(move || {
            let scene = Scene::new()?;
            let mut left = Vec::new();
            for step in chosen {
                left.extend(scene.crash_at(step)?.into_iter().map(|leak| format!("{step}: {leak}")));
            }
            Ok(left)
        })
        .await?;
        Ok(Finding::from_breaches(&left, format!("{shown}: nothing left; all {} in the program crash", steps.len())))
    }

    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        control().await
    }
}
