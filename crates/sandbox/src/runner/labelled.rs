//! Runners that images bring along: an image says by its labels that its entry point runs code from standard input.

use std::fmt;

use async_trait::async_trait;

use super::{Place, Runner, Runners};
use crate::error::{Error, Result};
use crate::image::ImageName;
use crate::spec::Environment;

/// An image whose entry point runs the code that it is given on its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRunner {
    pub language: String,
    pub image: ImageName,
    /// What the image starts, with its arguments.
    pub command: Vec<String>,
}

impl ImageRunner {
    /// The label that makes an image a runner, and its value.
    pub const MARK: (&'static str, &'static str) = ("sandbox.runner", "true");
    /// The label that says of which language.
    pub const LANGUAGE: &'static str = "sandbox.language";
    /// How many languages come by labels. Each is in what every client reads.
    pub const MOST_LANGUAGES: usize = 64;

    /// `None` when the labels do not say that it is one. One that says it and lacks something is refused with the reason.
    pub fn from_labels<'a>(
        image: &ImageName,
        label: impl Fn(&str) -> Option<&'a str>,
        command: Vec<String>,
    ) -> Result<Option<Self>> {
        let (mark, value) = Self::MARK;
        if label(mark) != Some(value) {
            return Ok(None);
        }
        let wrong = |what: &str| Error::invalid_input(format!("the image {image} is no runner: it has {what}"));
        let language = label(Self::LANGUAGE).unwrap_or_default().to_ascii_lowercase();
        if !is_language(&language) {
            return Err(wrong(&format!("no word for a language in its label {}", Self::LANGUAGE)));
        }
        if command.first().is_none_or(String::is_empty) {
            return Err(wrong("no entry point"));
        }
        Ok(Some(Self { language, image: image.clone(), command }))
    }
}

/// Who knows which images are runners. An engine that has none has no host image either, and then every language is on an
/// image of its own.
#[async_trait]
pub trait ImageRunners: fmt::Debug + Send + Sync {
    /// Those that are there now. The first of several for one language counts.
    async fn list(&self) -> Result<Vec<ImageRunner>>;

    /// Whether two names mean the same image. Some engines write names out.
    fn is_same(&self, one: &ImageName, other: &ImageName) -> bool {
        one == other
    }

    /// Whether a sandbox can be made from this image: it is there, or it would be fetched. No registry is asked.
    async fn can_be_had(&self, _image: &ImageName) -> Result<bool> {
        Ok(true)
    }

    /// Images that say that they are runners and are none, each as a sentence with the reason.
    async fn refused(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

impl Runners {
    /// With the languages that only images know. In a sandbox of another image these are missing.
    pub fn joined_by(self, images: &[ImageRunner]) -> Self {
        let mut runners = self.all().to_vec();
        let most = runners.len() + ImageRunner::MOST_LANGUAGES;
        for ImageRunner { language, .. } in images {
            let is_known = |runner: &Runner| runner.name == *language || runner.aliases.contains(language);
            if runners.len() < most && !runners.iter().any(is_known) {
                runners.push(Runner {
                    name: language.clone(),
                    title: language.clone(),
                    aliases: Vec::new(),
                    probes: Vec::new(),
                    install: Default::default(),
                    image: None,
                    environment: Environment::default(),
                    file: format!("main.{language}"),
                    place: Place::Work,
                    build: Vec::new(),
                    run: Vec::new(),
                    check: Default::default(),
                    warm: None,
                    prelude: None,
                });
            }
        }
        Self { own: Some(runners) }
    }
}

/// What an image can call a language. Models read it, and it is the end of a file's name.
fn is_language(word: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+#._-".contains(&byte);
    (1..=32).contains(&word.len()) && word.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(labels: &[(&str, &'static str)], command: &[&str]) -> Result<Option<ImageRunner>> {
        let label = |name: &str| labels.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        ImageRunner::from_labels(&"team/tool:1".parse().unwrap(), label, command)
    }

    #[test]
    fn labels_make_an_image_a_runner_and_nothing_else_does() {
        let found = runner(&[("sandbox.runner", "true"), ("sandbox.language", "Julia")], &["julia", "-"]).unwrap();
        assert_eq!(found.unwrap().language, "julia");
        assert_eq!(runner(&[("sandbox.language", "julia")], &["julia"]).unwrap(), None);
        assert_eq!(runner(&[("sandbox.runner", "false"), ("sandbox.language", "julia")], &["julia"]).unwrap(), None);
    }

    #[test]
    fn a_runner_that_lacks_something_is_refused_by_name() {
        for (labels, command) in [
            (&[("sandbox.runner", "true")][..], &["x"][..]),
            (&[("sandbox.runner", "true"), ("sandbox.language", "a b")], &["x"]),
            (&[("sandbox.runner", "true"), ("sandbox.language", "julia")], &[]),
        ] {
            assert!(runner(labels, command).unwrap_err().message().contains("team/tool:1"));
        }
    }

    #[test]
    fn a_language_is_a_short_word() {
        let named =
            |language: &'static str| runner(&[("sandbox.runner", "true"), ("sandbox.language", language)], &["x"]);
        for word in ["c++", "C#", "objective-c", "asp.net", "f_2", "abcdefghijklmnopqrstuvwxyz012345"] {
            assert_eq!(named(word).unwrap().unwrap().language, word.to_ascii_lowercase());
        }
        for other in ["", "a b", "a/b", "a\"b", "caf\u{e9}", "a\u{0}b", "a\nb", "abcdefghijklmnopqrstuvwxyz0123456"] {
            assert!(named(other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn images_bring_a_bounded_number_of_languages() {
        let found = |number: usize| ImageRunner {
            language: format!("tongue{number}"),
            image: "a:1".parse().unwrap(),
            command: vec!["x".to_owned()],
        };
        let many: Vec<ImageRunner> = (0..ImageRunner::MOST_LANGUAGES + 9).map(found).collect();
        let known = Runners::built_in().iter().count();
        assert_eq!(Runners::built_in().joined_by(&many).iter().count(), known + ImageRunner::MOST_LANGUAGES);
    }

    #[test]
    fn a_language_of_an_image_alone_is_one_more_language() {
        let found = |language: &str| ImageRunner {
            language: language.to_owned(),
            image: "a:1".parse().unwrap(),
            command: vec!["x".to_owned()],
        };
        let runners = Runners::built_in().joined_by(&[found("julia"), found("python"), found("ts")]);
        assert_eq!(runners.find("julia").unwrap().title, "julia");
        assert_eq!(runners.iter().count(), Runners::built_in().iter().count() + 1);
    }
}
