//! The path by which others start this program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sandbox::{Error, Result};

/// What it is called unless somebody renames it.
pub const USUAL_NAME: &str = "sandpen";

/// The whole of it.
pub fn path() -> Result<String> {
    let own = std::env::current_exe().and_then(std::path::absolute);
    let own = own.map_err(|cause| Error::unavailable("this program cannot be found").with_cause(cause))?;
    let path = lasting(&own, std::env::var_os("PATH").as_deref());
    if !path.is_file() {
        return Err(Error::wrong_state(format!("{} is not there any more", path.display()))
            .with_hint("run the program from where it is now"));
    }
    path.into_os_string().into_string().map_err(|path| {
        Error::unsupported(format!("{} is not UTF-8, which configurations of clients are", path.display()))
            .with_hint("put the program elsewhere")
    })
}

/// The name by which a shell finds the program, if it does: package managers have a link there that stays, while what it
/// leads to goes with the next version.
fn lasting(own: &Path, path: Option<&OsStr>) -> PathBuf {
    let Some(name) = own.file_name() else { return own.to_owned() };
    let target = own.canonicalize().ok();
    let places = path.into_iter().flat_map(std::env::split_paths).filter(|place| place.is_absolute());
    let mut candidates = places.map(|place| place.join(name));
    candidates
        .find(|candidate| target.is_some() && candidate.canonicalize().ok() == target)
        .unwrap_or_else(|| own.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_link_of_a_package_manager_outlives_what_it_leads_to() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["cellar", "bin", "other"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("cellar/sandpen"), "this").unwrap();
        std::fs::write(at("other/sandpen"), "another").unwrap();
        std::os::unix::fs::symlink(at("cellar/sandpen"), at("bin/sandpen")).unwrap();
        let found = |names: &[&str]| {
            let path = std::env::join_paths(names.iter().map(|name| at(name))).unwrap();
            lasting(&at("cellar/sandpen"), Some(&path))
        };
        assert_eq!(found(&["other", "bin"]), at("bin/sandpen"));
        assert_eq!(found(&["other"]), at("cellar/sandpen"));
        assert_eq!(lasting(&at("cellar/sandpen"), None), at("cellar/sandpen"));
    }
}
