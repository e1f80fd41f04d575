//! Older servers from settings.

use std::sync::Arc;

use sandbox::Result;
use tools::profile::{Automata, Cloudflare, CodeImage, CodeRunner, Philschmid, SandboxServer};
use tools::{Profile, ProfileName, ProfileOption};

use self::code_runner::{Naming, Store};
use crate::config::{CodeConfig, Config, Key};

pub mod code_runner;

/// The one of this name, set up as its own users would have it.
pub fn profile(name: ProfileName, config: &Config) -> Result<Arc<dyn Profile>> {
    let options = config.server.profile_options.clone();
    match name {
        ProfileName::Cloudflare => Ok(Arc::new(Cloudflare::new(options))),
        ProfileName::SandboxServer => Ok(Arc::new(SandboxServer::new(options))),
        ProfileName::Philschmid => {
            let (python, javascript) = code_images(config)?;
            Ok(Arc::new(Philschmid::new(options, python, javascript)))
        }
        ProfileName::CodeRunner => {
            let naming = match options.has(ProfileOption::ShortDirectories) {
                true => Naming::Short,
                false => Naming::Whole,
            };
            let store = Store::new(&config.code_runner, config.state_dir()?).naming(naming);
            Ok(Arc::new(CodeRunner::new(options, Arc::new(store))))
        }
        ProfileName::Automata => Ok(Arc::new(Automata::new(options))),
    }
}

/// What the two tools of one of them run code on.
///
/// An image for everything counts more than what the older server's variables say, the language that goes with theirs included;
/// one that was chosen for a tool counts more than both.
fn code_images(config: &Config) -> Result<(CodeImage, CodeImage)> {
    let CodeConfig { python_image, js_image, language } = config.server.code.clone();
    let whole = config.is_written(Key::Image).then(|| config.sandbox.image.clone());
    let counts = |key| whole.is_none() || config.is_written(key);
    let language = language.filter(|_| counts(Key::CodeLanguage));
    let python = python_image.filter(|_| counts(Key::PythonImage)).or_else(|| whole.clone());
    let javascript = js_image.filter(|_| counts(Key::JsImage)).or_else(|| whole.clone());
    Ok((CodeImage::python(python, language.clone())?, CodeImage::javascript(javascript, language)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox::{Network, Quota};
    use tools::{Catalog, Selection};

    use super::*;
    use crate::attach::Screen;
    use crate::config::{Origin, Written};
    use crate::wiring;

    /// A server for this one alone.
    fn serving(profile: ProfileName, values: &[(Key, &str)]) -> Config {
        let mut written = Written::new(Origin::Flags);
        written.push(Key::Profile, profile.as_str());
        values.iter().for_each(|(key, value)| written.push(*key, *value));
        Config::resolve([written]).unwrap().serving().unwrap()
    }

    #[test]
    fn an_image_of_ours_counts_more_than_the_older_variables() {
        let written = |origin, values: &[(Key, &str)]| {
            let mut written = Written::new(origin);
            values.iter().for_each(|(key, value)| written.push(*key, *value));
            written
        };
        let older = [(Key::PythonImage, "ruby:3"), (Key::JsImage, "ruby:3"), (Key::CodeLanguage, "ruby")];
        let images = |flags: &[(Key, &str)]| {
            let places = [written(Origin::Profile(ProfileName::Philschmid), &older), written(Origin::Flags, flags)];
            code_images(&Config::resolve(places).unwrap()).unwrap()
        };
        let python = |image: &str, language: Option<&str>| {
            CodeImage::python(Some(image.parse().unwrap()), language.map(str::to_owned)).unwrap()
        };
        let javascript = |image: &str, language: Option<&str>| {
            CodeImage::javascript(Some(image.parse().unwrap()), language.map(str::to_owned)).unwrap()
        };
        let ruby = Some("ruby");
        assert_eq!(images(&[]), (python("ruby:3", ruby), javascript("ruby:3", ruby)));
        assert_eq!(images(&[(Key::Image, "host")]), (python("host", None), javascript("host", None)));
        let both = [(Key::Image, "host"), (Key::PythonImage, "python:3"), (Key::CodeLanguage, "ruby")];
        assert_eq!(images(&both), (python("python:3", ruby), javascript("host", ruby)));
    }

    #[test]
    fn sandboxes_are_bounded_as_the_older_servers_promised() {
        let runs = serving(ProfileName::CodeRunner, &[]).sandbox;
        assert_eq!((runs.limits.cpu_millis, runs.limits.memory.bytes()), (500, 256 << 20));
        assert_eq!(runs.timeout(Screen::Streams), Duration::from_secs(30));
        let idle = |profile, values: &[_]| serving(profile, values).sandbox.lifetime.idle;
        assert_eq!(idle(ProfileName::Cloudflare, &[]), Duration::from_secs(10 * 60));
        for profile in [ProfileName::SandboxServer, ProfileName::Automata] {
            let most = Quota::default().persistent_idle_lifetime;
            assert_eq!(idle(profile, &[]), most, "{profile}: they stayed until they were stopped");
            assert_eq!(idle(profile, &[(Key::Idle, "2h")]), Duration::from_secs(2 * 60 * 60), "{profile}");
        }
        let image = serving(ProfileName::Automata, &[]).sandbox.image;
        assert_eq!(image.to_string(), "python:3.12-slim-bookworm");
        assert_eq!(serving(ProfileName::Philschmid, &[]).sandbox.timeout(Screen::Streams), Duration::from_secs(30));
    }

    /// The older servers gave it but for one, which gave it to those who asked; the operator has the last word.
    #[test]
    fn the_internet_is_asked_for_and_the_operator_decides() {
        let hosts: Network = "example.com".parse().unwrap();
        for &profile in ProfileName::ALL {
            let of = |values: &[(Key, &str)]| serving(profile, values).sandbox.network;
            let (usual, bounded) = match profile {
                ProfileName::CodeRunner => (Network::None, Network::None),
                ProfileName::Cloudflare
                | ProfileName::SandboxServer
                | ProfileName::Automata
                | ProfileName::Philschmid => (Network::Internet, hosts.clone()),
            };
            assert_eq!(of(&[]), usual, "{profile}");
            assert_eq!(of(&[(Key::MaxNetwork, "example.com")]), bounded, "{profile}");
            assert_eq!(of(&[(Key::MaxNetwork, "none")]), Network::None, "{profile}");
            assert_eq!(of(&[(Key::Network, "none")]), Network::None, "{profile}");
        }
        // Beside others, where nobody granted anything to its clients.
        let plain = Config::resolve([Written::new(Origin::Flags)]).unwrap();
        for &profile in ProfileName::ALL {
            assert_eq!(plain.as_profile(profile).unwrap().sandbox.network, Network::None, "{profile}");
        }
    }

    /// The older server took every image of its daemon at its labels. A name that the operator writes counts more.
    #[test]
    fn images_of_registries_are_runners_for_a_server_of_code_runner_alone() {
        let covers = |config: &Config, name: &str| {
            config.daemon.runner_images.iter().any(|pattern| pattern.covers(&name.parse().unwrap()))
        };
        let fetched = "ghcr.io/owner/mcp-code-sandbox-runner-python:latest";
        for &profile in ProfileName::ALL {
            let is_believed = covers(&serving(profile, &[]), fetched);
            assert_eq!(is_believed, profile == ProfileName::CodeRunner, "{profile}");
        }
        let named = serving(ProfileName::CodeRunner, &[(Key::RunnerImage, "ghcr.io/team/*")]);
        assert!(covers(&named, "ghcr.io/team/runner:1") && !covers(&named, fetched));
        // Its clients cannot have anything fetched; where others may, and beside them, it is given nothing.
        assert!(serving(ProfileName::CodeRunner, &[]).server.images.is_empty());
        assert!(!covers(&serving(ProfileName::CodeRunner, &[(Key::AllowImage, "*")]), fetched));
        let plain = Config::resolve([Written::new(Origin::Flags)]).unwrap();
        assert!(!covers(&plain.as_profile(ProfileName::CodeRunner).unwrap(), fetched));
    }

    #[test]
    fn containers_of_automata_start_from_the_image_of_the_older_server() {
        let config = serving(ProfileName::Automata, &[]);
        let policy = wiring::policy(&config).unwrap();
        let profile = profile(ProfileName::Automata, &config).unwrap();
        let catalog = Catalog::of_profile(profile, &policy, &Selection::default()).unwrap();
        let schema = &catalog.find("sandbox_initialize").unwrap().input_schema;
        assert_eq!(schema["properties"]["image"]["default"], "python:3.12-slim-bookworm");
    }
}
