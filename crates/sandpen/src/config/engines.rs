//! Settings that the chosen engine cannot follow. They are refused wherever they are written: who wrote one relies on it.

use sandbox::{Error, Result};

use super::{EngineChoice, Key};

/// Whether this engine does what the setting says.
pub fn check(engine: EngineChoice, key: Key) -> Result<()> {
    match engine {
        EngineChoice::Native => on_this_system(key),
        EngineChoice::Docker => of_registries(key).map_or(Ok(()), |registries| Err(registries.of_docker())),
        EngineChoice::Podman => of_registries(key).map_or(Ok(()), |registries| Err(registries.of_podman())),
        EngineChoice::Kubernetes => Ok(()),
    }
}

/// Sandboxes without the kernel that was asked for would be weaker than somebody believes.
fn on_this_system(key: Key) -> Result<()> {
    if key == Key::Runtime {
        return Err(Error::invalid_input("runtimes are of Docker and Podman, and the native engine has none")
            .with_hint("choose --engine docker or podman, or leave the runtime out"));
    }
    Ok(())
}

/// What is said of registries. A daemon fetches images itself, and whom it asks is in its own settings.
enum Registries {
    Unencrypted,
    Mirrors,
}

fn of_registries(key: Key) -> Option<Registries> {
    if key == Key::InsecureRegistry {
        Some(Registries::Unencrypted)
    } else if key == Key::RegistryMirror {
        Some(Registries::Mirrors)
    } else {
        None
    }
}

impl Registries {
    fn of_docker(&self) -> Error {
        let member = match self {
            Self::Unencrypted => "insecure-registries",
            Self::Mirrors => "registry-mirrors",
        };
        Error::invalid_input(format!("the Docker daemon fetches images, and {} by its own settings", self.deed()))
            .with_hint(format!(
                "leave it out, and set \"{member}\" in the daemon's daemon.json (/etc/docker/daemon.json)"
            ))
    }

    fn of_podman(&self) -> Error {
        let entry = match self {
            Self::Unencrypted => "insecure = true for that registry",
            Self::Mirrors => "a mirror for that registry ([[registry.mirror]])",
        };
        Error::invalid_input(format!("Podman fetches images, and {} by its own settings", self.deed()))
            .with_hint(format!("leave it out, and set {entry} in registries.conf of Podman's host"))
    }

    fn deed(&self) -> &'static str {
        match self {
            Self::Unencrypted => "leaves encryption out",
            Self::Mirrors => "asks mirrors",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_refused_where_it_would_do_nothing() {
        let refused = |engine, key: Key| check(engine, key).err().and_then(|error| error.hint().map(str::to_owned));
        for (engine, key, hint) in [
            (EngineChoice::Docker, Key::InsecureRegistry, "\"insecure-registries\" in the daemon's daemon.json"),
            (EngineChoice::Docker, Key::RegistryMirror, "\"registry-mirrors\" in the daemon's daemon.json"),
            (EngineChoice::Podman, Key::InsecureRegistry, "insecure = true"),
            (EngineChoice::Podman, Key::RegistryMirror, "[[registry.mirror]]"),
            (EngineChoice::Native, Key::Runtime, "--engine docker"),
        ] {
            let told = refused(engine, key).unwrap_or_default();
            assert!(told.contains(hint), "{engine:?} {key:?}: {told}");
        }
        for (engine, key) in [
            (EngineChoice::Native, Key::RegistryMirror),
            (EngineChoice::Docker, Key::Runtime),
            (EngineChoice::Podman, Key::Pull),
        ] {
            assert_eq!(refused(engine, key), None, "{engine:?} {key:?}");
        }
    }
}
