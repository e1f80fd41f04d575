//! What Docker and Podman need to run beside others.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::program::is_installed;
use crate::{Result, is_root};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    Docker,
    Podman,
}

impl Flavour {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::Docker, Self::Podman].into_iter().find(|flavour| flavour.as_str() == name)
    }

    /// Why there can be no such daemon here.
    pub fn missing(self) -> Option<String> {
        if !is_root() {
            return Some("a daemon in surroundings of its own needs root".to_owned());
        }
        let programs: &[&str] = match self {
            Self::Docker => &["dockerd", "docker", "unshare"],
            // Docker's client asks this one too, which is what the tests want to see it answer.
            Self::Podman => &["podman", "runc", "docker", "unshare"],
        };
        let absent = programs.iter().find(|name| !is_installed(name))?;
        Some(format!("{absent} is not installed"))
    }

    /// The program and its arguments; its settings lie in `place`.
    pub(super) fn command_line(self, place: &Path) -> Vec<String> {
        let at = |name: &str| place.join(name).display().to_string();
        let words: Vec<String> = match self {
            Self::Docker => vec![
                "dockerd".to_owned(),
                format!("--config-file={}", at("daemon.json")),
                format!("--host=unix://{}", at("socket")),
                format!("--data-root={}", at("data")),
                format!("--exec-root={}", at("exec")),
                format!("--pidfile={}", at("pid")),
                "--exec-opt=native.cgroupdriver=cgroupfs".to_owned(),
                // The loopback stays the host's, because a registry is there; nothing else of its network is touched.
                "--bridge=none".to_owned(),
                "--iptables=false".to_owned(),
                "--ip6tables=false".to_owned(),
                "--ip-forward=false".to_owned(),
                "--ip-masq=false".to_owned(),
                "--userland-proxy=false".to_owned(),
                "--shutdown-timeout=3".to_owned(),
            ],
            Self::Podman => {
                let service = ["system", "service", "--time", "0"].map(str::to_owned);
                let mut words = vec!["podman".to_owned()];
                words.extend(service);
                words.push(format!("unix://{}", at("socket")));
                words
            }
        };
        words
    }

    /// What it reads before anything else.
    pub(super) fn write_settings(self, place: &Path, insecure: &[&str]) -> Result<()> {
        match self {
            Self::Docker => {
                // Its own runtime under another name, which says what is done with a name.
                let mut runtimes = json!({"kata": {"path": "runc"}});
                if is_installed("runsc") {
                    // gVisor's way that needs neither virtualisation nor a kernel module. Its own network would want the
                    // daemon's.
                    let arguments = ["--platform=ptrace", "--network=none"];
                    // The second name is one that nobody knows.
                    for name in ["runsc", "other"] {
                        runtimes[name] = json!({"path": "runsc", "runtimeArgs": arguments});
                    }
                }
                fs::write(place.join("daemon.json"), json!({"runtimes": runtimes}).to_string())?;
            }
            Self::Podman => {
                let (open, processes) = (hard_limit("Max open files"), hard_limit("Max processes"));
                let containers = format!(
                    "[containers]\n\
                     default_ulimits = [\"nofile={open}:{open}\", \"nproc={processes}:{processes}\"]\n\
                     log_driver = \"k8s-file\"\n\
                     [engine]\n\
                     runtime = \"runc\"\n\
                     cgroup_manager = \"cgroupfs\"\n\
                     events_logger = \"file\"\n\
                     tmp_dir = \"{}\"\n",
                    place.join("exec").display()
                );
                fs::write(place.join("containers.conf"), containers)?;
                let [data, exec] = ["data", "exec"].map(|name| place.join(name));
                let storage = format!(
                    "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
                    data.display(),
                    exec.join("storage").display()
                );
                fs::write(place.join("storage.conf"), storage)?;
                let registries: String = insecure
                    .iter()
                    .map(|host| format!("[[registry]]\nlocation = \"{host}\"\ninsecure = true\n"))
                    .collect();
                fs::write(place.join("registries.conf"), registries)?;
            }
        }
        Ok(())
    }
}

/// Podman asks for more than root has in some machines, and then starts nothing.
fn hard_limit(name: &str) -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok()).unwrap_or(1024 * 1024)
}
