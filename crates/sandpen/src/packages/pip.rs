//! The settings of pip: variables over the user's file over the machine's.

use std::path::{Path, PathBuf};

use sandbox::Result;

use super::{Found, Surroundings, ini};

/// Sections that mean something to an installation, the weaker first.
const SECTIONS: [&str; 3] = ["global", "install", "wheel"];

pub fn read(surroundings: &Surroundings) -> Result<Found> {
    let mut settings = Settings::default();
    for path in files(surroundings) {
        let Some(text) = surroundings.read(&path) else { continue };
        let entries = ini::entries(&text);
        for section in SECTIONS {
            for (_, key, value) in entries.iter().filter(|(name, ..)| name == section) {
                settings.set(&key.replace('_', "-"), value);
            }
        }
    }
    for key in ["index-url", "extra-index-url", "trusted-host", "cert"] {
        let name = format!("PIP_{}", key.replace('-', "_").to_ascii_uppercase());
        if let Some(value) = surroundings.variable(&name) {
            settings.set(key, &value);
        }
    }
    let urls = settings.index.iter().chain(&settings.extra).map(|url| url.parse()).collect::<Result<Vec<_>>>()?;
    // An extra index alone stands beside the usual one.
    let urls = match (&settings.index, urls.is_empty()) {
        (None, false) => [super::PYPI.parse()?].into_iter().chain(urls).collect(),
        (Some(_), _) | (None, true) => urls,
    };
    Ok(Found {
        urls,
        trusted_hosts: settings.trusted,
        certificates: settings.certificates.map(PathBuf::from),
        ..Found::default()
    })
}

#[derive(Default)]
struct Settings {
    index: Option<String>,
    extra: Vec<String>,
    trusted: Vec<String>,
    certificates: Option<String>,
}

impl Settings {
    fn set(&mut self, key: &str, value: &str) {
        let words = || value.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        match key {
            "index-url" | "i" | "pypi-url" => self.index = words().into_iter().next(),
            "extra-index-url" => self.extra = words(),
            "trusted-host" => self.trusted = words(),
            "cert" => self.certificates = Some(value.trim().to_owned()).filter(|path| !path.is_empty()),
            _ => {}
        }
    }
}

/// The weaker first.
fn files(surroundings: &Surroundings) -> Vec<PathBuf> {
    let named = surroundings.variable("PIP_CONFIG_FILE");
    if named.as_deref() == Some("/dev/null") {
        return Vec::new();
    }
    let usual = [
        Some(surroundings.in_root("etc/xdg/pip/pip.conf")),
        Some(surroundings.in_root("etc/pip.conf")),
        surroundings.in_home(".pip/pip.conf"),
        surroundings.in_config("pip/pip.conf"),
    ];
    let named = named.map(|path| Path::new(&path).to_owned());
    usual.into_iter().flatten().chain(named).collect()
}
