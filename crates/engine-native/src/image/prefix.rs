//! Which directories outside of the system tree may be shown to a sandbox because an interpreter lives there.
//!
//! Pure: what the host looks like is passed in. The interpreter's own word is not enough, since a Python that was
//! configured with `--prefix=$HOME` would open the whole home.

use std::path::{Component, Path, PathBuf};

/// Trees that are made for being read by everybody and whose parts refer to each other by absolute path.
const SHARED_TREES: [&str; 3] = ["/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew"];

/// Never shown, and neither is anything below or above: data, run-time state, keys, sockets, the kernel's own trees.
const CLOSED: [&str; 9] = ["/boot", "/dev", "/etc", "/proc", "/run", "/srv", "/sys", "/var/lib", "/var/spool"];

/// Directories directly below a home that hold programs and no one's data.
const TOOLS_AT_HOME: [&str; 2] = [".npm-global", ".venv"];

/// The places that a prefix may not be, contain, or (for the state) lie in.
#[derive(Clone, Debug, Default)]
pub struct Private {
    pub homes: Vec<PathBuf>,
    pub state: PathBuf,
}

/// The directory to show for an interpreter that lives in `prefix`, which has no links in it; or why there is none.
pub fn admit(prefix: &Path, private: &Private) -> Result<PathBuf, String> {
    if let Some(shared) = SHARED_TREES.iter().find(|tree| prefix.starts_with(tree)) {
        return Ok(PathBuf::from(shared));
    }
    let shown = prefix.display();
    let refuse = |why: &str| Err(format!("{shown} {why}"));
    let names: Vec<&Path> = prefix
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .map(|part| Path::new(part.as_os_str()))
        .collect();
    if !prefix.is_absolute() || prefix.components().any(|part| part == Component::ParentDir) {
        return refuse("is not a plain absolute path");
    }
    if names.len() < 2 {
        return refuse("is a whole top-level directory");
    }
    if names[0] == Path::new("home") && names.len() == 2 {
        return refuse("is a home directory");
    }
    if CLOSED.iter().any(|closed| overlap(prefix, Path::new(closed))) {
        return refuse("is not for programs");
    }
    if overlap(prefix, &private.state) {
        return refuse("has to do with our own state");
    }
    for home in private.homes.iter().filter(|home| home.components().count() > 1) {
        if home.starts_with(prefix) {
            return refuse("contains a home directory");
        }
        let Ok(below) = prefix.strip_prefix(home) else { continue };
        let first = below.to_string_lossy();
        let hidden_at_home = below.components().count() == 1 && first.starts_with('.');
        if hidden_at_home && !TOOLS_AT_HOME.contains(&first.as_ref()) {
            return refuse("holds a user's data besides programs");
        }
    }
    Ok(prefix.to_owned())
}

fn overlap(one: &Path, other: &Path) -> bool {
    !other.as_os_str().is_empty() && (one.starts_with(other) || other.starts_with(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(prefix: &str) -> Result<PathBuf, String> {
        let private = Private {
            homes: ["/root", "/home/ada", "/var/www", "/", "/opt/service/home"].map(PathBuf::from).to_vec(),
            state: PathBuf::from("/opt/state/sandpen"),
        };
        admit(Path::new(prefix), &private)
    }

    #[test]
    fn interpreters_where_they_usually_are_may_be_shown() {
        for prefix in [
            "/home/ada/.pyenv/versions/3.11.7",
            "/home/ada/.nvm/versions/node/v22.1.0",
            "/home/ada/.local/share/uv/python/cpython-3.13",
            "/home/ada/.rustup/toolchains/stable-x86_64-unknown-linux-gnu",
            "/home/ada/project/.venv",
            "/home/ada/miniconda3",
            "/home/ada/.npm-global",
            "/opt/conda",
            "/opt/R/4.4.1",
        ] {
            assert_eq!(decide(prefix), Ok(PathBuf::from(prefix)));
        }
    }

    #[test]
    fn nobodys_data_comes_along() {
        for prefix in [
            "/",
            "/opt",
            "/root",
            "/home",
            "/home/ada",
            "/home/bob",
            "/home/ada/.local",
            "/home/ada/.cargo",
            "/home/ada/.config",
            "/etc/python",
            "/var/lib/thing",
            "/var",
            "/run/user/1000",
            "/opt/service",
            "/opt/state",
            "/opt/state/sandpen",
            "/opt/state/sandpen/below",
            "/opt/../root",
            "relative/prefix",
        ] {
            assert!(decide(prefix).is_err(), "{prefix} was taken");
        }
    }

    #[test]
    fn parts_of_a_shared_tree_bring_the_tree() {
        assert_eq!(decide("/nix/store/abc-python3-3.12"), Ok(PathBuf::from("/nix/store")));
        assert_eq!(
            decide("/home/linuxbrew/.linuxbrew/Cellar/node/22.1.0"),
            Ok(PathBuf::from("/home/linuxbrew/.linuxbrew"))
        );
    }
}
