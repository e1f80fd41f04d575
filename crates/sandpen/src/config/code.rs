//! Settings of the profile `philschmid`: what its tools run code on.

use std::ffi::OsString;

use sandbox::{Error, Image, Result};

use super::env::text;
use super::key::Key;
use super::written::Written;

/// What was chosen in place of the older server's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeConfig {
    pub python_image: Option<Image>,
    pub js_image: Option<Image>,
    /// For both tools, whatever they are called.
    pub language: Option<String>,
}

/// The older server's variables as settings.
pub fn variables(written: &mut Written, lookup: impl Fn(&str) -> Option<OsString>) -> Result<()> {
    let text = |name: &str| lookup(name).map(|value| text(name, value)).transpose();
    if let Some(backend) = text("BACKEND")? {
        written.push(Key::Engine, engine(&backend)?);
    }
    if text("VERBOSE")?.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        written.push(Key::Log, "info");
    }
    if let Some(names) = text("PASSTHROUGH_ENV")? {
        written.push(Key::PassThroughEnv, names);
    }
    // One without the other said nothing.
    if let (Some(image), Some(language)) = (text("CONTAINER_IMAGE")?, text("CONTAINER_LANGUAGE")?) {
        written.push(Key::PythonImage, &image);
        written.push(Key::JsImage, &image);
        written.push(Key::CodeLanguage, language);
    }
    Ok(())
}

fn engine(backend: &str) -> Result<&'static str> {
    const HINT: &str = "use docker or podman, or leave BACKEND out: sandboxes are then made without a daemon";
    match backend.trim().to_ascii_lowercase().as_str() {
        "docker" => Ok("docker"),
        "podman" => Ok("podman"),
        "kubernetes" => Ok("kubernetes"),
        "micromamba" => {
            Err(Error::unsupported("BACKEND is micromamba, which is not served: it is no sandbox").with_hint(HINT))
        }
        other => {
            Err(Error::invalid_input(format!("BACKEND is {other:?}, which is none that there was")).with_hint(HINT))
        }
    }
}

#[cfg(test)]
mod tests {
    use tools::ProfileName;

    use super::*;
    use crate::config::Origin;

    fn read(variables: &[(&str, &str)]) -> Result<Vec<(Key, String)>> {
        let mut written = Written::new(Origin::Profile(ProfileName::Philschmid));
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        super::variables(&mut written, value).map(|()| written.values)
    }

    #[test]
    fn the_older_variables_are_settings() {
        let pair = |key: Key, value: &str| (key, value.to_owned());
        assert_eq!(read(&[]).unwrap(), []);
        let given = [("BACKEND", "Docker"), ("VERBOSE", "True"), ("PASSTHROUGH_ENV", "A, B")];
        let meant = [pair(Key::Engine, "docker"), pair(Key::Log, "info"), pair(Key::PassThroughEnv, "A, B")];
        assert_eq!(read(&given).unwrap(), meant);
        assert_eq!(read(&[("CONTAINER_IMAGE", "ruby:3"), ("VERBOSE", "1")]).unwrap(), []);
        let given = [("CONTAINER_IMAGE", "ruby:3"), ("CONTAINER_LANGUAGE", "Ruby")];
        let meant = [pair(Key::PythonImage, "ruby:3"), pair(Key::JsImage, "ruby:3"), pair(Key::CodeLanguage, "Ruby")];
        assert_eq!(read(&given).unwrap(), meant);
    }

    #[test]
    fn what_makes_no_sandboxes_is_refused() {
        let error = read(&[("BACKEND", "micromamba")]).unwrap_err();
        assert!(error.message().contains("micromamba") && error.hint().unwrap().contains("docker"), "{error}");
        assert!(read(&[("BACKEND", "lxc")]).is_err());
    }
}
