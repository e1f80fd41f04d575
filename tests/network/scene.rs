//! What the checks share: an engine with a gateway, sandboxes in it, and the outside's word on who came.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use egress::{GatewaySettings, Rule};
use sandbox::{Layer, Network, Owner, SandboxSpec};
use sandpen_tests::lab::Sandbox;
use sandpen_tests::probe::Findings;
use sandpen_tests::{Result, Trouble};

use crate::backend::Lab;
use crate::world::oracle::Oracle;
use crate::world::places::{self, Kind};
use crate::world::visits::{Visit, VisitKind};

/// What is sent to whoever answers.
pub const HELLO: &str = "GET /hello HTTP/1.0\r\nHost: public.example.com\r\n\r\n";

/// What is missing of the walls, so that a check can be seen to fail.
#[derive(Clone, Debug, Default)]
pub struct Weakness {
    pub layers: Vec<Layer>,
    pub rules: BTreeSet<Rule>,
}

pub struct Scene {
    pub directory: PathBuf,
    pub oracle: Oracle,
    pub lab: Lab,
    weakness: Weakness,
}

impl Scene {
    pub async fn start(directory: &Path) -> Result<Self> {
        Self::with(directory, &Weakness::default(), GatewaySettings::default()).await
    }

    async fn with(directory: &Path, weakness: &Weakness, settings: GatewaySettings) -> Result<Self> {
        let settings = GatewaySettings { without: weakness.rules.clone(), ..settings };
        let lab = Lab::start(&weakness.layers, settings).await?;
        let scene =
            Self { oracle: Oracle::of(directory), directory: directory.to_owned(), lab, weakness: weakness.clone() };
        // What came before is nobody's finding.
        scene.oracle.visits()?;
        Ok(scene)
    }

    /// The same with less in the way.
    pub async fn weakened(&self, weakness: &Weakness) -> Result<Self> {
        Self::with(&self.directory, weakness, GatewaySettings::default()).await
    }

    /// The same with an operator who lets sandboxes reach these hosts although they are private.
    pub async fn allowing(&self, private: &str) -> Result<Self> {
        let private_hosts = private.split(',').map(str::parse).collect::<sandbox::Result<_>>()?;
        self.with_settings(GatewaySettings { private_hosts, ..GatewaySettings::default() }).await
    }

    /// The same with another operator.
    pub async fn with_settings(&self, settings: GatewaySettings) -> Result<Self> {
        Self::with(&self.directory, &self.weakness, settings).await
    }

    /// With the probe in it, and a network as it is written on a command line.
    pub async fn sandbox(&self, network: &str) -> Result<Sandbox> {
        let network: Network = network.parse()?;
        self.lab.sandbox_of(SandboxSpec { network, ..SandboxSpec::new(Owner::local()) }).await
    }

    /// As a program without proxy settings: resolves names, connects to every address, sends, and tells what came back.
    pub async fn fetch(&self, sandbox: &Sandbox, targets: &[(String, u16)], text: &str) -> Result<Findings> {
        let targets: Vec<(&str, String)> =
            targets.iter().map(|(host, port)| (host.as_str(), port.to_string())).collect();
        let mut findings = Findings::default();
        // So few that even the slowest way to fail for each of them takes less than a probe may take.
        for some in targets.chunks(6) {
            let words = some.iter().flat_map(|(host, port)| [*host, port.as_str()]);
            let arguments: Vec<&str> = ["fetch"].into_iter().chain(words).collect();
            findings.0.extend(sandbox.probe_with_input(&arguments, text).await?.complete()?.findings.0);
        }
        Ok(findings)
    }

    /// Say something to the proxy, and hear what it says.
    pub async fn ask_proxy(&self, sandbox: &Sandbox, text: &str) -> Result<String> {
        let arguments = ["fetch", "127.0.0.1", "3128"];
        let findings = sandbox.probe_with_input(&arguments, text).await?.complete()?.findings;
        Ok(findings.0.first().map(|(_, answer)| answer.clone()).unwrap_or_default())
    }

    /// The probe with nothing around it.
    pub fn probe_on_host(&self, arguments: &[&str], input: &str) -> Result<Findings> {
        let place = tempfile::tempdir()?;
        let probe = sandpen_tests::lab::probe_on_host(place.path())?;
        let words = place.path().join("input");
        std::fs::write(&words, input)?;
        let output = Command::new(probe).args(arguments).stdin(Stdio::from(std::fs::File::open(words)?)).output()?;
        if !output.status.success() {
            return Err(Trouble(format!("the probe ended with {}", output.status)));
        }
        Ok(Findings::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Whether this engine can be without that.
    pub fn can_be(&self, weakness: &Weakness) -> bool {
        weakness.layers.is_empty() || self.lab.has_own_walls()
    }

    /// Whether this wall stands.
    pub fn has(&self, layer: Layer) -> bool {
        !self.weakness.layers.contains(&layer)
    }

    pub fn is_public(&self, visit: &Visit) -> bool {
        places::place(&visit.place).is_some_and(|place| place.kind == Kind::Public)
    }
}

/// Those who came and should not have, once each. A question to the host's resolver is no arrival.
pub fn arrivals(visits: &[Visit], is_welcome: impl Fn(&Visit) -> bool) -> Vec<String> {
    let unwelcome = visits.iter().filter(|visit| visit.kind != VisitKind::Question && !is_welcome(visit));
    let mut told: Vec<String> = unwelcome.map(ToString::to_string).collect();
    told.dedup();
    told
}
