//! Where settings and state are, on each system, unless somebody says otherwise.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sandbox::system;

/// What says where a person's own files are.
pub const HOME: &str = if cfg!(windows) { "LOCALAPPDATA" } else { "HOME" };

/// The files of settings, the person's own first.
pub fn usual_files(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let directories = if cfg!(windows) { windows_settings(lookup) } else { unix_settings(lookup) };
    directories.into_iter().map(|directory| directory.join("sandpen").join("sandpen.toml")).collect()
}

pub fn usual_state_dir(lookup: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if cfg!(windows) {
        return directory(&lookup, HOME).map(|local| local.join("sandpen"));
    }
    if cfg!(target_os = "linux") && system::is_root() {
        return Some(PathBuf::from("/var/lib/sandpen"));
    }
    unix_state(lookup)
}

fn unix_settings(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let own = base_directory(&lookup, "XDG_CONFIG_HOME")
        .or_else(|| directory(&lookup, "HOME").map(|home| home.join(".config")));
    own.into_iter().chain([PathBuf::from("/etc")]).collect()
}

fn windows_settings(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    ["APPDATA", "PROGRAMDATA"].iter().filter_map(|name| directory(&lookup, name)).collect()
}

fn unix_state(lookup: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    base_directory(&lookup, "XDG_STATE_HOME")
        .or_else(|| directory(&lookup, "HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("sandpen"))
}

/// What one of the `XDG_` variables says. Whoever reads them ignores one that depends on the current directory: a project could
/// bring settings along otherwise.
pub fn base_directory(lookup: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    directory(lookup, name).filter(|directory| directory.has_root())
}

fn directory(lookup: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    lookup(name).map(|value| Path::new(&value).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn a_person_comes_before_the_machine() {
        let home = [("HOME", "/home/ada")];
        assert_eq!(unix_settings(with(&home)), [Path::new("/home/ada/.config"), Path::new("/etc")]);
        assert_eq!(unix_settings(with(&[])), [Path::new("/etc")]);
        let both = [("HOME", "/home/ada"), ("XDG_CONFIG_HOME", "/conf")];
        assert_eq!(unix_settings(with(&both)), [Path::new("/conf"), Path::new("/etc")]);
        let relative = [("HOME", "/home/ada"), ("XDG_CONFIG_HOME", "conf")];
        assert_eq!(unix_settings(with(&relative)), unix_settings(with(&home)));
        let windows = [("APPDATA", "roaming"), ("PROGRAMDATA", "all"), ("HOME", "/home/ada")];
        assert_eq!(windows_settings(with(&windows)), [Path::new("roaming"), Path::new("all")]);
    }

    #[test]
    fn state_is_kept_where_it_is_looked_for() {
        assert_eq!(unix_state(with(&[("HOME", "/home/ada")])).unwrap(), Path::new("/home/ada/.local/state/sandpen"));
        assert_eq!(unix_state(with(&[("XDG_STATE_HOME", "/state")])).unwrap(), Path::new("/state/sandpen"));
        let relative = [("HOME", "/home/ada"), ("XDG_STATE_HOME", "./state")];
        assert_eq!(unix_state(with(&relative)), unix_state(with(&[("HOME", "/home/ada")])));
        assert_eq!(unix_state(with(&[])), None);
    }
}
