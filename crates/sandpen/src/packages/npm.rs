//! The settings of npm: variables over the user's file over the machine's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox::Result;

use super::url::Login;
use super::{Found, NPM, Surroundings, ini};

pub fn read(surroundings: &Surroundings) -> Result<Found> {
    let mut settings: BTreeMap<String, String> = BTreeMap::new();
    for path in files(surroundings) {
        let Some(text) = surroundings.read(&path) else { continue };
        for (_, key, value) in ini::entries(&text) {
            let value = value.trim_matches(['"', '\'']);
            settings.insert(key, expanded(value, surroundings));
        }
    }
    for key in ["registry", "cafile", "strict-ssl"] {
        let name = format!("npm_config_{}", key.replace('-', "_"));
        if let Some(value) = surroundings.variable(&name).or_else(|| surroundings.variable(&name.to_ascii_uppercase()))
        {
            settings.insert(key.to_owned(), value);
        }
    }
    let named = settings.get("registry").map(|url| url.parse()).transpose()?;
    let is_usual = named.is_none();
    let registry = match named {
        Some(url) => url,
        None => NPM.parse()?,
    };
    let mut scopes = Vec::new();
    for (key, value) in &settings {
        if let Some(scope) = key.strip_suffix(":registry").filter(|scope| scope.starts_with('@')) {
            scopes.push((scope.to_owned(), value.parse()?));
        }
    }
    let is_strict = settings.get("strict-ssl").is_none_or(|value| value != "false");
    let trusted_hosts = if is_strict { Vec::new() } else { vec![String::from("*")] };
    let is_usual = is_usual && scopes.is_empty();
    Ok(Found {
        urls: vec![registry],
        scopes,
        logins: logins(&settings),
        trusted_hosts,
        certificates: settings
            .get("cafile")
            .map(PathBuf::from)
            .or_else(|| surroundings.variable("NODE_EXTRA_CA_CERTS").map(PathBuf::from)),
        is_usual,
    })
}

/// `//host/path/:_authToken=…` and the like.
fn logins(settings: &BTreeMap<String, String>) -> Vec<(String, Login)> {
    let mut logins = Vec::new();
    for (key, value) in settings {
        let Some((place, kind)) = key.strip_prefix("//").and_then(|rest| rest.rsplit_once(':')) else { continue };
        let login = match kind {
            "_authToken" => Login::Token(value.clone()),
            "_auth" => Login::Encoded(value.clone()),
            "_password" => {
                let Some(user) = settings.get(&format!("//{place}:username")) else { continue };
                let decoded = STANDARD.decode(value).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                let Some(password) = decoded else { continue };
                Login::Basic { user: user.clone(), password }
            }
            _ => continue,
        };
        // Hosts are the same in any case, and paths are not.
        let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        logins.push((host.to_ascii_lowercase() + path, login));
    }
    // The nearest one counts.
    logins.sort_by_key(|(place, _)| std::cmp::Reverse(place.len()));
    logins
}

/// `${NAME}` is a variable of the environment; one that is not set stays as it is.
fn expanded(value: &str, surroundings: &Surroundings) -> String {
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        text.push_str(before);
        match after.split_once('}') {
            Some((name, behind)) => {
                text.push_str(&surroundings.variable(name).unwrap_or_else(|| format!("${{{name}}}")));
                rest = behind;
            }
            None => {
                text.push_str("${");
                rest = after;
            }
        }
    }
    text + rest
}

/// The weaker first.
fn files(surroundings: &Surroundings) -> Vec<PathBuf> {
    let named = |name: &str| {
        surroundings.variable(name).or_else(|| surroundings.variable(&name.to_ascii_uppercase())).map(PathBuf::from)
    };
    let global = match named("npm_config_globalconfig") {
        Some(path) => vec![path],
        None => ["usr/etc/npmrc", "usr/local/etc/npmrc", "etc/npmrc"].map(|path| surroundings.in_root(path)).to_vec(),
    };
    let user = named("npm_config_userconfig").or_else(|| surroundings.in_home(".npmrc"));
    global.into_iter().chain(user).collect()
}
