//! What the embedded engine finds on this machine.

use engine_native::host::{self, HostReport};
use sandbox::{Layer, Result};
use serde::Serialize;

use self::engines::EngineFinding;
use self::languages::LanguageFinding;
use self::network::NetworkFinding;
use super::Mark;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, ADVICE, BAD, BOLD, DIM, DOUBTFUL, GOOD};
use crate::table::{Align, Cell, Table};
use crate::wiring;

mod engines;
mod languages;
mod network;

/// Everything that was found, in the shape of `--json`.
#[derive(Debug, Serialize)]
struct Findings {
    version: &'static str,
    kernel: String,
    cgroups: String,
    privilege: String,
    layers: Vec<LayerFinding>,
    network: NetworkFinding,
    languages: Vec<LanguageFinding>,
    engines: Vec<EngineFinding>,
}

#[derive(Debug, Serialize)]
struct LayerFinding {
    layer: &'static str,
    description: &'static str,
    available: bool,
    allowed_to_be_missing: bool,
    detail: String,
    remedy: Option<String>,
}

pub fn run(config: &Config) -> Result<Exit> {
    let report = host::probe(config.state_dir()?);
    let layers = layers(&report, config);
    let whole = layers.iter().all(|layer| layer.available || layer.allowed_to_be_missing);
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION"),
        kernel: report.kernel,
        cgroups: report.cgroups,
        privilege: report.privilege,
        engines: engines::look(config, whole),
        network: network::look(config, whole),
        languages: languages::look(&wiring::runners(config)?),
        layers,
    };
    if config.json {
        output::object(&findings);
    } else {
        output::text(&render(&findings));
    }
    Ok(if whole && findings.engines.iter().all(EngineFinding::is_sound) { Exit::SUCCESS } else { Exit::FAILURE })
}

fn layers(report: &HostReport, config: &Config) -> Vec<LayerFinding> {
    let finding = |layer: Layer| {
        let probe = report.layers.iter().find(|probe| probe.layer == layer);
        LayerFinding {
            layer: layer.as_str(),
            description: layer.description(),
            available: probe.is_some_and(|probe| probe.available),
            allowed_to_be_missing: config.allow_missing.contains(&layer),
            detail: probe.map_or_else(|| "not looked for".to_owned(), |probe| probe.detail.clone()),
            remedy: probe.and_then(|probe| probe.remedy.clone()),
        }
    };
    Layer::ALL.iter().copied().map(finding).collect()
}

fn render(findings: &Findings) -> String {
    let mut machine = Table::new(&[("", Align::Left), ("", Align::Left)]);
    for (what, value) in [
        ("  sandpen", findings.version),
        ("  kernel", &findings.kernel),
        ("  cgroups", &findings.cgroups),
        ("  privilege", &findings.privilege),
    ] {
        machine.push([Cell::styled(what, DIM), value.into()]);
    }
    format!(
        "{BOLD}Machine{BOLD:#}\n{}\n{BOLD}Isolation{BOLD:#}\n{}\n{BOLD}Network{BOLD:#}\n{}\n{BOLD}Languages{BOLD:#}\n{}\n{BOLD}Engines{BOLD:#}\n{}\n{}\n",
        machine.render(),
        render_layers(&findings.layers),
        network::render(&findings.network),
        languages::render(&findings.languages),
        engines::render(&findings.engines),
        verdict(findings),
    )
}

fn render_layers(layers: &[LayerFinding]) -> String {
    let width = layers.iter().map(|layer| layer.layer.len()).max().unwrap_or(0);
    let mut text = String::new();
    for layer in layers {
        let mark = match (layer.available, layer.allowed_to_be_missing) {
            (true, _) => Mark::Yes,
            (false, true) => Mark::Perhaps,
            (false, false) => Mark::No,
        };
        let name = layer.layer;
        text += &format!("  {mark} {name:width$}  {}{DIM}; {}{DIM:#}\n", layer.description, layer.detail);
        if let Some(remedy) = layer.remedy.as_ref().filter(|_| !layer.available) {
            text += &format!("    {:width$}  {ADVICE}remedy:{ADVICE:#} {remedy}\n", "");
        }
    }
    text
}

fn verdict(findings: &Findings) -> String {
    let missing: Vec<_> = findings.layers.iter().filter(|layer| !layer.available).collect();
    if missing.iter().any(|layer| !layer.allowed_to_be_missing) {
        let flags: Vec<_> = missing.iter().map(|layer| format!("--allow-missing {}", layer.layer)).collect();
        return format!(
            "{BAD}Some walls cannot be built here, so no sandbox will start.{BAD:#}\n\
             Follow the remedies above, or accept the gaps: {}",
            flags.join(" ")
        );
    }
    if !findings.engines.iter().all(EngineFinding::is_sound) {
        return format!("{BAD}Every wall is possible here, but a sandbox did not start.{BAD:#}");
    }
    if missing.is_empty() {
        return format!("{GOOD}All {} layers stand.{GOOD:#}", findings.layers.len());
    }
    format!("{DOUBTFUL}Sandboxes start with {} layers missing, as you allowed.{DOUBTFUL:#}", missing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layer: Layer, available: bool, allowed_to_be_missing: bool) -> LayerFinding {
        LayerFinding {
            layer: layer.as_str(),
            description: layer.description(),
            available,
            allowed_to_be_missing,
            detail: "some detail".into(),
            remedy: Some("do this".into()),
        }
    }

    #[test]
    fn a_missing_layer_shows_its_remedy_and_a_present_one_does_not() {
        let text = render_layers(&[layer(Layer::Seccomp, true, false), layer(Layer::Landlock, false, false)]);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            plain,
            "  ✓ seccomp   only system calls from a list; some detail\n  \
             ✗ landlock  a second fence around files, signals and abstract sockets; some detail\n              \
             remedy: do this\n"
        );
    }
}
