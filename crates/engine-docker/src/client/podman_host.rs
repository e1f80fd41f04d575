//! What Podman says of its host in its own language alone: in Docker's it claims every limit, also for an ordinary user to
//! whom no control group was delegated, and then makes containers without any.

use serde::Deserialize;

use super::{DaemonFacts, plain};
use crate::Flavour;
use crate::connect::Endpoint;

const INFO: &str = "/v4.0.0/libpod/info";

#[derive(Debug, Deserialize)]
struct Info {
    host: Host,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Host {
    #[serde(default)]
    cgroup_controllers: Vec<String>,
    security: Security,
}

#[derive(Debug, Deserialize)]
struct Security {
    rootless: bool,
}

/// `None` when there is no answer.
pub(super) async fn ask(flavour: Flavour, endpoint: &Endpoint) -> Option<Host> {
    match flavour {
        Flavour::Docker => None,
        Flavour::Podman => parse(&plain::ask(endpoint, "GET", INFO).await.ok()?),
    }
}

/// Whatever could not be found out is taken for missing, which then is refused by name.
pub(super) fn completed(facts: DaemonFacts, host: Option<&Host>) -> DaemonFacts {
    let has =
        |controller: &str| host.is_some_and(|host| host.cgroup_controllers.iter().any(|found| found == controller));
    let rootless = host.is_some_and(|host| host.security.rootless);
    DaemonFacts {
        rootless: facts.rootless || rootless,
        user_namespaces: facts.user_namespaces || rootless,
        memory_limit: facts.memory_limit && has("memory"),
        process_limit: facts.process_limit && has("pids"),
        cpu_limit: facts.cpu_limit && has("cpu"),
        ..facts
    }
}

fn parse(answer: &[u8]) -> Option<Host> {
    serde_json::from_slice::<Info>(plain::parts(answer)?.1).ok().map(|info| info.host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims_everything() -> DaemonFacts {
        DaemonFacts { memory_limit: true, process_limit: true, cpu_limit: true, ..DaemonFacts::default() }
    }

    fn told(body: &str) -> DaemonFacts {
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}");
        completed(claims_everything(), parse(answer.as_bytes()).as_ref())
    }

    #[test]
    fn a_limit_without_its_controller_is_none() {
        let poor = told(r#"{"host": {"cgroupControllers": ["memory", "pids"], "security": {"rootless": true}}}"#);
        assert!(poor.rootless && poor.user_namespaces && poor.memory_limit && poor.process_limit);
        assert!(!poor.cpu_limit);
        let none = told(r#"{"host": {"cgroupControllers": [], "security": {"rootless": true}}}"#);
        assert!(!none.memory_limit && !none.process_limit);
        let whole =
            told(r#"{"host": {"cgroupControllers": ["cpu", "memory", "pids"], "security": {"rootless": false}}}"#);
        assert_eq!(whole, claims_everything());
    }

    #[test]
    fn what_is_not_understood_is_no_limit() {
        for body in ["", "{}", "<html>"] {
            assert!(!told(body).memory_limit, "{body}");
        }
    }
}
