//! A daemon that somebody else has started and will end, as the environment names it: `SANDPEN_TEST_ENGINE` (`docker` or
//! `podman`), `SANDPEN_TEST_DAEMON` (its address) and `SANDPEN_TEST_IMAGE` (an image with Python and a shell).

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Flavour, LIMIT, PATH};
use crate::program::run;
use crate::{Result, images};

#[derive(Clone, Debug)]
pub struct Given {
    pub flavour: Flavour,
    pub address: String,
    pub image: String,
}

impl Given {
    /// `None`: the tests are about the embedded engine.
    pub fn of_environment() -> Result<Option<Self>> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(engine) = variable("SANDPEN_TEST_ENGINE").filter(|engine| engine != "native") else {
            return Ok(None);
        };
        let flavour =
            Flavour::named(&engine).ok_or_else(|| format!("SANDPEN_TEST_ENGINE is {engine:?}, which is no engine"))?;
        let address = variable("SANDPEN_TEST_DAEMON").ok_or("SANDPEN_TEST_DAEMON names no daemon")?;
        let image = variable("SANDPEN_TEST_IMAGE").unwrap_or_else(|| images::DEBIAN.to_owned());
        Ok(Some(Self { flavour, address, image }))
    }

    /// What the product must be told, to make its sandboxes there.
    pub fn variables(&self) -> [(&'static str, &str); 3] {
        [
            ("SANDPEN_ENGINE", self.flavour.as_str()),
            ("SANDPEN_DAEMON_HOST", &self.address),
            ("SANDPEN_CONTAINER_IMAGE", &self.image),
        ]
    }

    /// Containers of the installation that has this state directory, running or not. It must have made a sandbox before: one
    /// that never did has no name to look for.
    pub fn containers_of(&self, state: &Path) -> Result<Vec<String>> {
        let installation = fs::read_to_string(state.join("docker/installation"))?;
        let filter = format!("label=org.sandpen.installation={}", installation.trim());
        let format = "{{.ID}} {{.Names}} {{.Status}}";
        let listed = self.docker(&["ps", "--all", "--no-trunc", "--filter", &filter, "--format", format])?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Docker's own client, which speaks to either and has no settings of the caller's.
    pub fn client(&self) -> Command {
        let mut command = Command::new("docker");
        command.env_clear().env("PATH", PATH).env("HOME", "/nonexistent").env("DOCKER_HOST", &self.address);
        command
    }

    /// What it prints when it succeeds.
    pub fn docker(&self, words: &[&str]) -> Result<String> {
        let ran = run(self.client().args(words), &std::env::temp_dir(), LIMIT)?.succeeded();
        ran.map(|ran| ran.stdout).map_err(|trouble| format!("docker {}: {trouble}", words.join(" ")).into())
    }
}

/// What the engine of a run is called.
pub fn engine_name() -> Result<&'static str> {
    Ok(Given::of_environment()?.map_or("native", |daemon| daemon.flavour.as_str()))
}
