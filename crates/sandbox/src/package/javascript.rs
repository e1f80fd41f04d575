//! Packages of npm: `lodash`, `@types/node@^20`, `left-pad@>=1 <2`. No aliases, addresses, paths or archives.

use super::{Requirement, shown};
use crate::error::{Error, Result};

const LONGEST_NAME: usize = 214;

pub(super) fn requirement(text: &str) -> Result<Requirement> {
    // The first character may be the one of a scope.
    let split = text.char_indices().skip(1).find(|(_, character)| *character == '@');
    let (name, range) = match split {
        Some((at, _)) => (&text[..at], text[at + 1..].trim()),
        None => (text, LATEST),
    };
    let parts: Vec<&str> = name.strip_prefix('@').unwrap_or(name).split('/').collect();
    let expected = if name.starts_with('@') { 2 } else { 1 };
    let is_name = name.len() <= LONGEST_NAME && parts.len() == expected && parts.iter().all(|part| is_part(part));
    if !is_name || !is_range(range) {
        return Err(wrong(text));
    }
    let text = if range == LATEST { name.to_owned() } else { format!("{name}@{range}") };
    Ok(Requirement { name: name.to_owned(), text })
}

/// The tag that npm takes when no version is asked for.
const LATEST: &str = "latest";

impl Requirement {
    /// What stands behind the name in a `package.json`.
    pub(crate) fn range(&self) -> &str {
        self.text.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('@')).unwrap_or(LATEST)
    }
}

fn is_part(text: &str) -> bool {
    // A name that ends so is read as a file.
    let is_archive = [".tgz", ".tar", ".gz"].iter().any(|ending| text.to_ascii_lowercase().ends_with(ending));
    text.starts_with(|character: char| character.is_ascii_alphanumeric())
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "._~-".contains(character))
        && !is_archive
}

fn is_range(text: &str) -> bool {
    let allowed = |character: char| character.is_ascii_alphanumeric() || ".^~<>=|*+- ".contains(character);
    !text.is_empty() && !text.starts_with(['-', '.', '+']) && text.chars().all(allowed) && !text.ends_with(".tgz")
}

fn wrong(text: &str) -> Error {
    let error = Error::invalid_input(format!("{} is not a package of npm", shown(text)));
    if text.contains("://") || text.contains(':') || text.starts_with(['.', '/']) {
        return error.with_hint("packages come from the registry by name; addresses and paths are not taken");
    }
    error.with_hint("write a name, and which versions if it matters: lodash, lodash@4.17.21, @types/node@^20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_as_npm_reads_them() {
        for (text, name, range) in [
            ("lodash", "lodash", "latest"),
            ("lodash@4.17.21", "lodash", "4.17.21"),
            ("@types/node@^20", "@types/node", "^20"),
            ("@scope/a", "@scope/a", "latest"),
            ("a@>=1 <2 || 3.x", "a", ">=1 <2 || 3.x"),
            ("a@next", "a", "next"),
            ("JSONStream@*", "JSONStream", "*"),
        ] {
            let read = requirement(text).unwrap();
            assert_eq!((read.name(), read.range()), (name, range), "{text}");
        }
        assert_eq!(requirement("a@latest").unwrap(), requirement("a").unwrap());
    }

    #[test]
    fn nothing_but_names_and_versions_is_taken() {
        for text in [
            "",
            "@",
            "@scope",
            "@scope/",
            "a/b",
            "./a",
            "../a",
            "/etc/passwd",
            "~/a",
            "a.tgz",
            "@s/a.tar.gz",
            "--registry=http://evil.example",
            "-g",
            "a@",
            "a@file:../b",
            "a@../b",
            "a@~/b",
            "a@npm:b@1",
            "a@github:evil/a",
            "a@evil/a",
            "a@https://evil.example/a.tgz",
            "git+ssh://evil.example/a",
            "a@1\nb",
            "a@-1",
            "_a",
            ".a",
            "ä",
        ] {
            assert!(requirement(text).is_err(), "{text:?} was taken");
        }
    }
}
