//! The settings of uv: variables over the user's file over the machine's.

use std::path::PathBuf;

use sandbox::{Error, Result};
use serde::Deserialize;

use super::{Found, Surroundings};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Settings {
    index_url: Option<String>,
    #[serde(default)]
    extra_index_url: Vec<String>,
    #[serde(default)]
    index: Vec<Index>,
    #[serde(default)]
    allow_insecure_host: Vec<String>,
    pip: Option<Pip>,
}

#[derive(Debug, Deserialize)]
struct Index {
    url: String,
    #[serde(default)]
    default: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Pip {
    index_url: Option<String>,
    #[serde(default)]
    extra_index_url: Vec<String>,
}

/// `None` when nobody has told uv of an index.
pub fn read(surroundings: &Surroundings) -> Result<Option<Found>> {
    let mut usual: Option<String> = None;
    let mut extra: Vec<String> = Vec::new();
    let mut trusted: Vec<String> = Vec::new();
    let files = [Some(surroundings.in_root("etc/uv/uv.toml")), surroundings.in_config("uv/uv.toml")];
    for path in files.into_iter().flatten() {
        let Some(text) = surroundings.read(&path) else { continue };
        let settings: Settings = toml::from_str(&text).map_err(|cause| {
            Error::invalid_input("the settings of uv cannot be read").with_cause(cause).with_hint("see uv.toml")
        })?;
        let (pip_url, pip_extra) = settings.pip.map_or((None, Vec::new()), |pip| (pip.index_url, pip.extra_index_url));
        let (default, others): (Vec<Index>, Vec<Index>) = settings.index.into_iter().partition(|index| index.default);
        let default = default.into_iter().next().map(|index| index.url);
        usual = pip_url.or(default).or(settings.index_url).or(usual);
        let others: Vec<String> = others.into_iter().map(|index| index.url).collect();
        extra =
            [others, pip_extra, settings.extra_index_url].into_iter().find(|urls| !urls.is_empty()).unwrap_or(extra);
        trusted.extend(settings.allow_insecure_host);
    }
    let words = |name: &str| -> Option<Vec<String>> {
        // `name=url` gives an index a name, which is nothing to us.
        let bare = |word: &str| match word.split_once('=') {
            Some((name, url)) if !name.contains(':') => url.to_owned(),
            Some(_) | None => word.to_owned(),
        };
        Some(surroundings.variable(name)?.split_whitespace().map(bare).collect())
    };
    let first = |name: &str| words(name).and_then(|words| words.into_iter().next());
    usual = first("UV_DEFAULT_INDEX").or_else(|| first("UV_INDEX_URL")).or(usual);
    extra = words("UV_INDEX").or_else(|| words("UV_EXTRA_INDEX_URL")).unwrap_or(extra);
    trusted.extend(words("UV_INSECURE_HOST").unwrap_or_default());
    if usual.is_none() && extra.is_empty() {
        return Ok(None);
    }
    let usual = usual.unwrap_or_else(|| super::PYPI.to_owned());
    let urls = [usual].iter().chain(&extra).map(|url| url.parse()).collect::<Result<Vec<_>>>()?;
    let certificates = surroundings.variable("SSL_CERT_FILE").map(PathBuf::from);
    Ok(Some(Found { urls, trusted_hosts: trusted, certificates, ..Found::default() }))
}
