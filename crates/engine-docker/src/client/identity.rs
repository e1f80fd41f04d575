//! Which daemon this is. What is kept for sandboxes of one must not be taken for what another has left behind.

use std::fs;

use bollard::models::SystemInfo;
use sha2::{Digest, Sha256};

use crate::connect::Endpoint;

/// Bytes of the digest that tell daemons apart.
const LENGTH: usize = 8;

/// The same each time, for as long as the daemon has its containers.
///
/// Daemons of one host may share their id, and have their containers in different directories. Podman speaks of an id as well,
/// which is another one for every question; it is known by its not naming an index. There the way to the daemon tells.
pub(super) fn identity(endpoint: &Endpoint, info: &SystemInfo) -> String {
    let has_index = info.index_server_address.as_deref().is_some_and(|index| !index.is_empty());
    let own = info.id.clone().filter(|id| has_index && !id.is_empty());
    let (kind, name) = match own {
        Some(id) => ("id", id),
        None => ("place", place(endpoint)),
    };
    let directory = info.docker_root_dir.as_deref().unwrap_or_default();
    let digest = Sha256::digest([kind, &name, directory].join("\0").as_bytes());
    digest.iter().take(LENGTH).map(|byte| format!("{byte:02x}")).collect()
}

/// One name for a socket that has several.
fn place(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Local(path) => fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().to_string(),
        Endpoint::Plain { address } | Endpoint::Tls { address, .. } => address.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(path: &str) -> Endpoint {
        Endpoint::Local(path.into())
    }

    fn docker(id: &str, directory: &str) -> SystemInfo {
        SystemInfo {
            id: Some(id.to_owned()),
            index_server_address: Some("https://index.docker.io/v1/".to_owned()),
            docker_root_dir: Some(directory.to_owned()),
            ..SystemInfo::default()
        }
    }

    fn podman(id: &str, directory: &str) -> SystemInfo {
        SystemInfo { index_server_address: Some(String::new()), ..docker(id, directory) }
    }

    #[test]
    fn docker_is_one_daemon_by_whatever_way() {
        let first = identity(&local("/run/docker.sock"), &docker("A", "/var/lib/docker"));
        assert_eq!(first.len(), 2 * LENGTH);
        let far = Endpoint::Plain { address: "127.0.0.1:2375".to_owned() };
        assert_eq!(identity(&far, &docker("A", "/var/lib/docker")), first);
        assert_ne!(identity(&far, &docker("B", "/var/lib/docker")), first);
        assert_ne!(identity(&local("/run/docker.sock"), &docker("A", "/srv/docker")), first, "another on its host");
    }

    #[test]
    fn podman_is_known_by_the_way_to_it() {
        let (ours, other) = (local("/run/podman/podman.sock"), local("/run/user/1000/podman/podman.sock"));
        let first = identity(&ours, &podman("one", "/data"));
        assert_eq!(identity(&ours, &podman("two", "/data")), first, "it says another id each time");
        assert_ne!(identity(&other, &podman("one", "/data")), first);
        assert_ne!(identity(&ours, &podman("one", "/elsewhere")), first);
    }

    #[test]
    #[cfg(unix)]
    fn a_socket_with_two_names_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("socket"), directory.path().join("link"));
        fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let of = |path| identity(&Endpoint::Local(path), &podman("one", "/data"));
        assert_eq!(of(link), of(path));
    }
}
