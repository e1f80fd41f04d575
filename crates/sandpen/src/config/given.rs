//! The flags of this command line, as the next one can have them: in whichever directory, they mean the same.

use std::path::{Path, PathBuf};

use sandbox::{Error, Result};

use super::{Config, Key, Origin, absolute};

impl Config {
    /// Those that a server can be started with. What is about the output of this command alone is not among them.
    pub fn flags(&self) -> Result<Vec<(Key, String)>> {
        let written = self.places.iter().filter(|written| written.origin == Origin::Flags);
        let values = written.flat_map(|written| &written.values);
        let lasting = values.filter(|(key, _)| !matches!(key, Key::Json | Key::Color | Key::Verbose));
        lasting.map(|(key, value)| Ok((*key, anywhere(*key, value)?))).collect()
    }

    /// The file that was named in place of the usual ones, by a flag.
    pub fn named_file(&self) -> Result<Option<String>> {
        self.named_file.as_deref().map(whole).transpose()
    }
}

/// With paths that do not depend on where we are.
fn anywhere(key: Key, value: &str) -> Result<String> {
    if matches!(key, Key::StateDir | Key::Runners | Key::SecretsFile) {
        return whole(Path::new(value));
    }
    if matches!(key, Key::Image | Key::PythonImage | Key::JsImage) {
        return match value.split_once(':') {
            Some((kind @ ("dir" | "tar"), path)) => Ok(format!("{kind}:{}", whole(Path::new(path))?)),
            Some(_) | None => Ok(value.to_owned()),
        };
    }
    if key == Key::AllowPath {
        return match value.strip_suffix(":ro") {
            Some(path) => Ok(format!("{}:ro", whole(Path::new(path))?)),
            None => whole(Path::new(value)),
        };
    }
    Ok(value.to_owned())
}

fn whole(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| not_text(path))?;
    absolute(text)?.into_os_string().into_string().map_err(|path| not_text(&PathBuf::from(path)))
}

fn not_text(path: &Path) -> Error {
    Error::unsupported(format!("{} is not UTF-8, which configurations of clients are", path.display()))
        .with_hint("call it otherwise")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Written;

    #[test]
    fn flags_mean_the_same_from_everywhere() {
        let mut flags = Written::new(Origin::Flags);
        for (key, value) in [
            (Key::Engine, "docker"),
            (Key::StateDir, "state"),
            (Key::Json, "true"),
            (Key::Image, "dir:root"),
            (Key::AllowPath, ".:ro"),
            (Key::PythonImage, "python:3"),
        ] {
            flags.push(key, value);
        }
        let mut variables = Written::new(Origin::Variables);
        variables.push(Key::Memory, "1G");
        let here = |path: &str| std::path::absolute(path).unwrap().display().to_string();
        let config = Config::resolve([variables, flags]).unwrap();
        assert_eq!(
            config.flags().unwrap(),
            [
                (Key::Engine, "docker".to_owned()),
                (Key::StateDir, here("state")),
                (Key::Image, format!("dir:{}", here("root"))),
                (Key::AllowPath, format!("{}:ro", here("."))),
                (Key::PythonImage, "python:3".to_owned()),
            ]
        );
        assert_eq!(config.named_file().unwrap(), None);
    }
}
