//! Patterns for paths, as `.dockerignore` and the sources of `COPY` have them.

use crate::error::{Error, Result};

/// `*` and `?` stay within a directory, `**` is any number of directories, `[…]` a choice of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Component>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Component {
    Directories,
    Parts(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Character(char),
    One,
    Many,
    Choice { negated: bool, ranges: Vec<(char, char)> },
}

impl Pattern {
    /// A slash at either end means nothing, as in Docker.
    pub fn parse(text: &str) -> Result<Self> {
        let components = text.split('/').filter(|component| !matches!(*component, "" | "."));
        let mut parsed = Vec::new();
        for component in components {
            match component {
                "**" => parsed.push(Component::Directories),
                ".." => _ = parsed.pop(),
                component => parsed.push(Component::Parts(parts(component, text)?)),
            }
        }
        Ok(Self(parsed))
    }

    /// Whether the whole path is meant.
    pub fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        components_match(&self.0, &names)
    }

    /// Whether the path or a directory that it is in is meant.
    pub fn covers(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        (1..=names.len()).any(|length| components_match(&self.0, &names[..length]))
    }

    /// Whether it is a path and nothing else.
    pub fn is_plain(&self) -> bool {
        self.0.iter().all(|component| match component {
            Component::Directories => false,
            Component::Parts(parts) => parts.iter().all(|part| matches!(part, Part::Character(_))),
        })
    }
}

fn parts(component: &str, whole: &str) -> Result<Vec<Part>> {
    let wrong = || Error::Invalid(format!("{:?} is not a pattern", whole.chars().take(100).collect::<String>()));
    let mut parts = Vec::new();
    let mut characters = component.chars();
    while let Some(character) = characters.next() {
        parts.push(match character {
            '*' => Part::Many,
            '?' => Part::One,
            '\\' => Part::Character(characters.next().ok_or_else(wrong)?),
            '[' => {
                let inside: String = characters.by_ref().take_while(|one| *one != ']').collect();
                let (negated, inside) = inside.strip_prefix('^').map_or((false, inside.as_str()), |rest| (true, rest));
                if inside.is_empty() || !component.contains(']') {
                    return Err(wrong());
                }
                let mut ranges = Vec::new();
                let mut inside = inside.chars().peekable();
                while let Some(first) = inside.next() {
                    let last = match inside.next_if_eq(&'-') {
                        Some(_) => inside.next().ok_or_else(wrong)?,
                        None => first,
                    };
                    ranges.push((first, last));
                }
                Part::Choice { negated, ranges }
            }
            character => Part::Character(character),
        });
    }
    // Several stars in a row would only make trying harder.
    parts.dedup_by(|one, other| *one == Part::Many && *other == Part::Many);
    Ok(parts)
}

fn components_match(components: &[Component], names: &[&str]) -> bool {
    // Which of the first names each component can end at, so that no pattern takes more than their product.
    let mut reached = vec![false; names.len() + 1];
    reached[0] = true;
    for component in components {
        let mut next = vec![false; names.len() + 1];
        match component {
            Component::Directories => {
                let mut any = false;
                for (index, reached) in reached.iter().enumerate() {
                    any |= reached;
                    next[index] = any;
                }
            }
            Component::Parts(parts) => {
                for index in 0..names.len() {
                    next[index + 1] = reached[index] && name_matches(parts, names[index]);
                }
            }
        }
        reached = next;
    }
    reached[names.len()]
}

fn name_matches(parts: &[Part], name: &str) -> bool {
    let characters: Vec<char> = name.chars().collect();
    let mut reached = vec![false; characters.len() + 1];
    reached[0] = true;
    for part in parts {
        let mut next = vec![false; characters.len() + 1];
        if *part == Part::Many {
            let mut any = false;
            for (index, reached) in reached.iter().enumerate() {
                any |= reached;
                next[index] = any;
            }
        } else {
            for (index, character) in characters.iter().enumerate() {
                next[index + 1] = reached[index] && part.takes(*character);
            }
        }
        reached = next;
    }
    reached[characters.len()]
}

impl Part {
    fn takes(&self, character: char) -> bool {
        match self {
            Self::Character(own) => *own == character,
            Self::One | Self::Many => true,
            Self::Choice { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&character)) != *negated
            }
        }
    }
}
