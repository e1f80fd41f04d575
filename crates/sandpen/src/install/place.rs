//! Where the clients keep the servers of a person, on each system. Pure: what there is on a machine comes in as functions.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sandbox::{Error, Result};

use super::client::Client;
use crate::config::base_directory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Linux,
    MacOs,
    Windows,
}

impl System {
    pub const THIS: Self = if cfg!(windows) {
        Self::Windows
    } else if cfg!(target_os = "macos") {
        Self::MacOs
    } else {
        Self::Linux
    };
}

/// What is known of a machine: variables, and the names in a directory (none, if there is no such directory).
#[derive(Debug)]
pub struct Machine<Variables, Names> {
    pub system: System,
    pub variable: Variables,
    pub names: Names,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// Is there once the client was.
    pub trace: PathBuf,
}

impl<Variables, Names> Machine<Variables, Names>
where
    Variables: Fn(&str) -> Option<OsString>,
    Names: Fn(&Path) -> Vec<OsString>,
{
    pub fn place(&self, client: Client) -> Result<Place> {
        let beside = |file: PathBuf| {
            let trace = file.parent().unwrap_or(&file).to_owned();
            Place { file, trace }
        };
        match client {
            Client::ClaudeDesktop => {
                self.claude_desktop().map(|directory| beside(directory.join("claude_desktop_config.json")))
            }
            Client::ClaudeCode => {
                let (directory, usual) = match self.directory("CLAUDE_CONFIG_DIR") {
                    Some(directory) => (directory.clone(), directory),
                    None => self.home().map(|home| (home.join(".claude"), home))?,
                };
                // One that an early version made counts more, as long as it is there.
                let early = (self.names)(&directory).iter().any(|name| name == ".config.json");
                let file = if early { directory.join(".config.json") } else { usual.join(".claude.json") };
                Ok(Place { file, trace: directory })
            }
            Client::Cursor => self.home().map(|home| beside(home.join(".cursor").join("mcp.json"))),
            Client::Vscode => self.of_applications().map(|applications| {
                let trace = applications.join("Code");
                Place { file: trace.join("User").join("mcp.json"), trace }
            }),
            Client::Windsurf => {
                self.home().map(|home| beside(home.join(".codeium").join("windsurf").join("mcp_config.json")))
            }
            Client::Gemini => {
                let home = self.directory("GEMINI_CLI_HOME").map_or_else(|| self.home(), Ok);
                home.map(|home| beside(home.join(".gemini").join("settings.json")))
            }
            Client::Codex => {
                let usual = || self.home().map(|home| home.join(".codex"));
                let directory = self.directory("CODEX_HOME").map_or_else(usual, Ok);
                directory.map(|directory| beside(directory.join("config.toml")))
            }
            Client::Zed => {
                let directory = match self.system {
                    System::Linux => self.linux_settings().map(|settings| settings.join("zed")),
                    System::MacOs => self.home().map(|home| home.join(".config").join("zed")),
                    System::Windows => self.of_applications().map(|applications| applications.join("Zed")),
                };
                directory.map(|directory| beside(directory.join("settings.json")))
            }
        }
    }

    /// On Windows it comes as a package, for which the system keeps a directory of settings apart from everybody else's.
    fn claude_desktop(&self) -> Result<PathBuf> {
        let usual = || self.of_applications().map(|applications| applications.join("Claude"));
        let packages = match self.system {
            System::Windows => self.directory("LOCALAPPDATA").map(|local| local.join("Packages")),
            System::Linux | System::MacOs => None,
        };
        let Some(packages) = packages else { return usual() };
        let is_claude = |name: &OsString| name.to_string_lossy().starts_with("Claude_");
        let found: Vec<OsString> = (self.names)(&packages).into_iter().filter(is_claude).collect();
        match &found[..] {
            [] => usual(),
            [package] => Ok(packages.join(package).join("LocalCache").join("Roaming").join("Claude")),
            [_, _, ..] => Err(Error::invalid_input("there are several packages of Claude Desktop on this machine")
                .with_hint(format!("name the file to change with --file; they are in {}", packages.display()))),
        }
    }

    /// What programs with windows keep for a person.
    fn of_applications(&self) -> Result<PathBuf> {
        match self.system {
            System::Linux => self.linux_settings(),
            System::MacOs => self.home().map(|home| home.join("Library").join("Application Support")),
            System::Windows => {
                let usual = || self.home().map(|home| home.join("AppData").join("Roaming"));
                self.directory("APPDATA").map_or_else(usual, Ok)
            }
        }
    }

    fn linux_settings(&self) -> Result<PathBuf> {
        let chosen = base_directory(&self.variable, "XDG_CONFIG_HOME");
        chosen.map_or_else(|| self.home().map(|home| home.join(".config")), Ok)
    }

    fn home(&self) -> Result<PathBuf> {
        let name = match self.system {
            System::Linux | System::MacOs => "HOME",
            System::Windows => "USERPROFILE",
        };
        self.directory(name).ok_or_else(|| {
            Error::invalid_input(format!("{name} is not set, so nobody knows where the client's configuration is"))
                .with_hint(format!("set {name}, or name the file with --file"))
        })
    }

    fn directory(&self, variable: &str) -> Option<PathBuf> {
        (self.variable)(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(system: System, variables: &[(&str, &str)], packages: &[&str], client: Client) -> Result<Place> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let names = |directory: &Path| {
            let names = if directory == Path::new("local/Packages") { packages } else { &[] };
            names.iter().map(OsString::from).collect()
        };
        Machine { system, variable, names }.place(client)
    }

    fn file(system: System, variables: &[(&str, &str)], client: Client) -> String {
        place(system, variables, &[], client).unwrap().file.display().to_string()
    }

    const UNIX: &[(&str, &str)] = &[("HOME", "/home/user")];
    const WINDOWS: &[(&str, &str)] = &[("USERPROFILE", "user"), ("APPDATA", "roaming"), ("LOCALAPPDATA", "local")];

    #[test]
    fn each_client_is_found_on_each_system() {
        for (client, linux, mac, windows) in [
            (
                Client::ClaudeDesktop,
                ".config/Claude/claude_desktop_config.json",
                "Library/Application Support/Claude/claude_desktop_config.json",
                "roaming/Claude/claude_desktop_config.json",
            ),
            (Client::ClaudeCode, ".claude.json", ".claude.json", "user/.claude.json"),
            (Client::Cursor, ".cursor/mcp.json", ".cursor/mcp.json", "user/.cursor/mcp.json"),
            (
                Client::Vscode,
                ".config/Code/User/mcp.json",
                "Library/Application Support/Code/User/mcp.json",
                "roaming/Code/User/mcp.json",
            ),
            (
                Client::Windsurf,
                ".codeium/windsurf/mcp_config.json",
                ".codeium/windsurf/mcp_config.json",
                "user/.codeium/windsurf/mcp_config.json",
            ),
            (Client::Gemini, ".gemini/settings.json", ".gemini/settings.json", "user/.gemini/settings.json"),
            (Client::Codex, ".codex/config.toml", ".codex/config.toml", "user/.codex/config.toml"),
            (Client::Zed, ".config/zed/settings.json", ".config/zed/settings.json", "roaming/Zed/settings.json"),
        ] {
            assert_eq!(file(System::Linux, UNIX, client), format!("/home/user/{linux}"));
            assert_eq!(file(System::MacOs, UNIX, client), format!("/home/user/{mac}"));
            assert_eq!(file(System::Windows, WINDOWS, client), windows);
        }
    }

    #[test]
    fn variables_that_move_a_configuration_are_followed() {
        let with = |name, value| [("HOME", "/home/user"), (name, value)];
        let moved = |name, client| file(System::Linux, &with(name, "/moved"), client);
        assert_eq!(moved("XDG_CONFIG_HOME", Client::Zed), "/moved/zed/settings.json");
        assert_eq!(moved("XDG_CONFIG_HOME", Client::Vscode), "/moved/Code/User/mcp.json");
        assert_eq!(moved("CLAUDE_CONFIG_DIR", Client::ClaudeCode), "/moved/.claude.json");
        assert_eq!(moved("CODEX_HOME", Client::Codex), "/moved/config.toml");
        assert_eq!(moved("GEMINI_CLI_HOME", Client::Gemini), "/moved/.gemini/settings.json");
        let on_mac = file(System::MacOs, &with("XDG_CONFIG_HOME", "/moved"), Client::Zed);
        assert_eq!(on_mac, "/home/user/.config/zed/settings.json");
        for ignored in ["", "moved"] {
            let found = file(System::Linux, &with("XDG_CONFIG_HOME", ignored), Client::Zed);
            assert_eq!(found, "/home/user/.config/zed/settings.json");
        }
    }

    #[test]
    fn the_file_of_an_early_claude_code_counts_as_long_as_it_is_there() {
        let file = |variables: &[(&str, &str)], place: &str| {
            let variable =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
            let names =
                |directory: &Path| if directory == Path::new(place) { vec![".config.json".into()] } else { vec![] };
            let machine = Machine { system: System::Linux, variable, names };
            machine.place(Client::ClaudeCode).unwrap().file.display().to_string()
        };
        assert_eq!(file(UNIX, "/home/user/.claude"), "/home/user/.claude/.config.json");
        assert_eq!(file(UNIX, "/home/user"), "/home/user/.claude.json");
        let moved = [("HOME", "/home/user"), ("CLAUDE_CONFIG_DIR", "/moved")];
        assert_eq!(file(&moved, "/moved"), "/moved/.config.json");
        assert_eq!(file(&moved, "/home/user/.claude"), "/moved/.claude.json");
    }

    #[test]
    fn a_packaged_claude_desktop_has_its_settings_to_itself() {
        let found = |packages: &[&str]| place(System::Windows, WINDOWS, packages, Client::ClaudeDesktop);
        assert_eq!(
            found(&["Microsoft.Photos_8", "Claude_pzs8"]).unwrap().file,
            Path::new("local/Packages/Claude_pzs8/LocalCache/Roaming/Claude/claude_desktop_config.json")
        );
        let error = found(&["Claude_a", "Claude_b"]).unwrap_err();
        assert!(error.hint().unwrap().contains("--file"), "{error:?}");
    }

    #[test]
    fn without_a_home_nothing_is_guessed() {
        for client in Client::ALL {
            for (system, name) in [(System::Linux, "HOME"), (System::MacOs, "HOME"), (System::Windows, "USERPROFILE")] {
                let error = place(system, &[("HOME", ""), ("USERPROFILE", "")], &[], client).unwrap_err();
                assert!(error.message().contains(name), "{error}");
            }
        }
    }
}
