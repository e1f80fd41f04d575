//! Who the user is to which registry: what `docker login` left.
//!
//! Read only when a registry asks, and given only to the registry it is kept for.

use std::collections::HashMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::reference::DEFAULT_REGISTRY;

/// Under which Docker keeps the login to its own registry.
const DOCKER_KEY: &str = "https://index.docker.io/v1/";

/// A helper may have to wait for a person.
const HELPER_PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_ANSWER: u64 = 1 << 20;

/// Where logins are looked up.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    file: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    Password {
        user: String,
        secret: String,
    },
    /// Something to get tokens with, instead of a password.
    Identity(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: HashMap<String, Auth>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

impl Credentials {
    /// No login anywhere.
    pub fn none() -> Self {
        Self::default()
    }

    /// Those in a file of this form.
    pub fn in_file(path: PathBuf) -> Self {
        Self { file: Some(path) }
    }

    /// Those of the user's own Docker client.
    pub fn of_docker() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let directory = variable("DOCKER_CONFIG").or_else(|| std::env::home_dir().map(|home| home.join(".docker")));
        Self { file: directory.map(|directory| directory.join("config.json")) }
    }

    /// The login for one registry, and for no other.
    pub fn find(&self, registry: &str) -> Result<Option<Login>> {
        let Some(file) = &self.file else { return Ok(None) };
        let text = match std::fs::read(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(format!("reading {}", file.display()))(error)),
        };
        let config: DockerConfig = serde_json::from_slice(&text)
            .map_err(|error| Error::Invalid(format!("Docker's config.json is not in order ({error})")))?;
        let key = if registry == DEFAULT_REGISTRY { DOCKER_KEY } else { registry };
        let own_helper = config.cred_helpers.iter().find(|(name, _)| host_of(name) == registry);
        let helper = own_helper.map(|(_, helper)| helper).or(config.creds_store.as_ref());
        if let Some(helper) = helper
            && let Some(login) = ask(helper, key)?
        {
            return Ok(Some(login));
        }
        let auth = config.auths.iter().find(|(name, _)| host_of(name) == registry).map(|(_, auth)| auth);
        auth.map_or(Ok(None), Auth::login)
    }
}

impl Auth {
    fn login(&self) -> Result<Option<Login>> {
        if !self.identitytoken.is_empty() {
            return Ok(Some(Login::Identity(self.identitytoken.clone())));
        }
        if !self.auth.is_empty() {
            let broken = || Error::Invalid("a login in Docker's config.json is not in order".to_owned());
            let text = STANDARD.decode(self.auth.trim()).map_err(|_| broken())?;
            let text = String::from_utf8(text).map_err(|_| broken())?;
            let (user, secret) = text.trim_end_matches('\0').split_once(':').ok_or_else(broken)?;
            return Ok(Some(Login::Password { user: user.to_owned(), secret: secret.to_owned() }));
        }
        let (user, secret) = (self.username.clone(), self.password.clone());
        Ok((!user.is_empty()).then_some(Login::Password { user, secret }))
    }
}

/// A key may be an address with a path, as Docker's own is.
fn host_of(key: &str) -> String {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let host = rest.split('/').next().unwrap_or_default().to_ascii_lowercase();
    if host == "index.docker.io" || host == "registry-1.docker.io" { DEFAULT_REGISTRY.to_owned() } else { host }
}

/// Runs `docker-credential-NAME get`, as Docker does. `None` if it knows nothing of this registry.
fn ask(helper: &str, key: &str) -> Result<Option<Login>> {
    if helper.is_empty() || !helper.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        return Err(Error::Invalid("Docker's config.json names a helper that is none".to_owned()));
    }
    let program = format!("docker-credential-{helper}");
    let failed = |why: &dyn fmt::Display| Error::Unavailable(format!("{program} does not give a login: {why}"));
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(&error))?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read what it is asked says so by its exit code.
        let _ = input.write_all(key.as_bytes());
    }
    let output = child.stdout.take();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.map(|output| output.take(LONGEST_ANSWER).read_to_string(&mut text));
        read.and_then(std::result::Result::ok).map(|_| text).unwrap_or_default()
    });
    let deadline = Instant::now() + HELPER_PATIENCE;
    let status = loop {
        match child.try_wait().map_err(|error| failed(&error))? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(&"it takes too long"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = reading.join().unwrap_or_default();
    if !status.success() {
        // It has no other way to say so, and every client takes this sentence for it.
        return if text.contains("credentials not found") { Ok(None) } else { Err(failed(&status)) };
    }
    let answer: HelperAnswer = serde_json::from_str(&text).map_err(|_| failed(&"it is not understood"))?;
    Ok(Some(match answer {
        HelperAnswer { username, secret } if username == "<token>" => Login::Identity(secret),
        HelperAnswer { username, secret } => Login::Password { user: username, secret },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(config: &str, registry: &str) -> Result<Option<Login>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        std::fs::write(&path, config).unwrap();
        Credentials::in_file(path).find(registry)
    }

    fn password(user: &str, secret: &str) -> Option<Login> {
        Some(Login::Password { user: user.to_owned(), secret: secret.to_owned() })
    }

    #[test]
    fn each_registry_gets_its_own_login_and_no_other() {
        let config = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "YWRhOnM6ZQ=="},
            "one.example:5000": {"auth": "Ym9iOng="},
            "https://two.example/v2/": {"username": "eve", "password": "y"},
            "three.example": {"identitytoken": "t"},
            "empty.example": {}
        }}"#;
        assert_eq!(find(config, "docker.io").unwrap(), password("ada", "s:e"));
        assert_eq!(find(config, "one.example:5000").unwrap(), password("bob", "x"));
        assert_eq!(find(config, "two.example").unwrap(), password("eve", "y"));
        assert_eq!(find(config, "three.example").unwrap(), Some(Login::Identity("t".to_owned())));
        for other in ["one.example", "one.example:5001", "sub.two.example", "example", "empty.example", "evil.example"]
        {
            assert_eq!(find(config, other).unwrap(), None, "{other}");
        }
    }

    #[test]
    fn what_is_broken_is_said_and_what_is_missing_is_not() {
        assert!(matches!(find("{", "x.example"), Err(Error::Invalid(_))));
        let config = r#"{"auths": {"x.example": {"auth": "!"}}}"#;
        assert!(matches!(find(config, "x.example"), Err(Error::Invalid(_))));
        for helper in ["../../bin/sh", "", "a b"] {
            let config = format!(r#"{{"credHelpers": {{"x.example": "{helper}"}}}}"#);
            assert!(matches!(find(&config, "x.example"), Err(Error::Invalid(_))), "{helper:?}");
        }
        let missing = r#"{"credHelpers": {"x.example": "sandpen-test-no-such-helper"}}"#;
        assert!(matches!(find(missing, "x.example"), Err(Error::Unavailable(_))));
        assert_eq!(find(missing, "y.example").unwrap(), None, "nobody asks it about others");
        assert_eq!(Credentials::in_file("/nonexistent/config.json".into()).find("x.example").unwrap(), None);
        assert_eq!(Credentials::none().find("x.example").unwrap(), None);
        assert_eq!(format!("{:?}", password("ada", "secret")), "Some(Login)");
    }
}
