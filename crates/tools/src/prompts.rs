//! Prompts worth having: whole tasks that the tools are made for, in the words of somebody who has done them.

use std::collections::BTreeMap;

use sandbox::{Error, Result};

#[derive(Clone, Copy, Debug)]
pub struct Prompt {
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub arguments: &'static [Argument],
    text: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub struct Argument {
    pub name: &'static str,
    pub description: &'static str,
    /// What an argument that is left out stands for; one without is required.
    pub default: Option<&'static str>,
    /// Values to offer while it is typed.
    pub choices: &'static [&'static str],
}

pub const ALL: &[Prompt] = &[
    Prompt {
        name: "analyse_data",
        title: "Analyse a data file",
        description: "Look at a data file in a sandbox, answer a question about it, and show the evidence",
        arguments: &[
            Argument { name: "file", description: "The file, as a path or an address", default: None, choices: &[] },
            Argument {
                name: "question",
                description: "What you want to know",
                default: Some("What is in it, and what is remarkable about it?"),
                choices: &[],
            },
        ],
        text: include_str!("prompts/analyse_data.md"),
    },
    Prompt {
        name: "test_repository",
        title: "Set up and test a repository",
        description: "Bring a repository into a sandbox, find out how it is tested, run its tests, and explain failures",
        arguments: &[Argument {
            name: "source",
            description: "Where the repository is: a directory, an archive, or files that you paste",
            default: None,
            choices: &[],
        }],
        text: include_str!("prompts/test_repository.md"),
    },
    Prompt {
        name: "make_chart",
        title: "Make a chart",
        description: "Draw a chart from data, look at it, and improve it until it can be read at a glance",
        arguments: &[
            Argument { name: "data", description: "The data, or where it is", default: None, choices: &[] },
            Argument {
                name: "kind",
                description: "The kind of chart",
                default: Some("whichever shows it best"),
                choices: &["bar", "box", "heat map", "histogram", "line", "scatter"],
            },
        ],
        text: include_str!("prompts/make_chart.md"),
    },
];

pub fn find(name: &str) -> Result<&'static Prompt> {
    ALL.iter().find(|prompt| prompt.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|prompt| prompt.name).collect();
        Error::invalid_input(format!("there is no prompt {name:?}"))
            .with_hint(format!("the prompts are {}", names.join(", ")))
    })
}

impl Prompt {
    /// The message, with the arguments in their places.
    pub fn text(&self, arguments: &BTreeMap<String, String>) -> Result<String> {
        if let Some(unknown) = arguments.keys().find(|name| self.arguments.iter().all(|known| known.name != *name)) {
            return Err(Error::invalid_input(format!("the prompt {} has no argument {unknown:?}", self.name)));
        }
        let mut text = self.text.to_owned();
        for argument in self.arguments {
            let value = arguments.get(argument.name).map(String::as_str).or(argument.default).ok_or_else(|| {
                Error::invalid_input(format!("the prompt {} needs the argument {}", self.name, argument.name))
            })?;
            text = text.replace(&format!("{{{{{}}}}}", argument.name), value);
        }
        Ok(text)
    }

    pub fn complete(&self, argument: &str, typed: &str) -> Vec<String> {
        let choices = self.arguments.iter().find(|known| known.name == argument).map_or(&[][..], |known| known.choices);
        choices.iter().filter(|choice| choice.starts_with(typed)).map(|choice| (*choice).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_has_its_place_and_every_place_its_argument() {
        for prompt in ALL {
            let arguments = prompt.arguments.iter().map(|known| (known.name.to_owned(), "VALUE".to_owned())).collect();
            let text = prompt.text(&arguments).unwrap();
            assert!(!text.contains("{{"), "{}: {text}", prompt.name);
            assert_eq!(text.matches("VALUE").count(), prompt.arguments.len(), "{}", prompt.name);
        }
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        let prompt = find("analyse_data").unwrap();
        assert!(prompt.text(&BTreeMap::new()).unwrap_err().message().contains("file"));
        let unknown = BTreeMap::from([("fil".to_owned(), "x".to_owned())]);
        assert!(prompt.text(&unknown).unwrap_err().message().contains("\"fil\""));
        assert!(find("nothing").is_err());
    }
}
