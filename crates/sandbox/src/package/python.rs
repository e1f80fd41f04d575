//! Requirements of Python (PEP 508) without addresses: `name[extra]>=1,<2; python_version < "3.12"`.

use super::{Requirement, shown};
use crate::error::{Error, Result};

/// Longest first, where one begins like another.
const OPERATORS: [&str; 8] = ["===", "==", "!=", "<=", ">=", "~=", "<", ">"];

pub(super) fn requirement(text: &str) -> Result<Requirement> {
    let (wanted, marker) = match text.split_once(';') {
        Some((wanted, marker)) => (wanted, Some(marker.trim())),
        None => (text, None),
    };
    let end = wanted.find(|character: char| !is_name_character(character)).unwrap_or(wanted.len());
    let (name, rest) = wanted.split_at(end);
    if !is_name(name) {
        return Err(wrong(text));
    }
    let mut rest = rest.trim();
    let name = normalized(name);
    let mut plain = name.clone();
    if let Some(inside) = rest.strip_prefix('[') {
        let (extras, after) = inside.split_once(']').ok_or_else(|| wrong(text))?;
        if !extras.split(',').all(|extra| is_name(extra.trim())) {
            return Err(wrong(text));
        }
        let mut extras: Vec<String> = extras.split(',').map(|extra| normalized(extra.trim())).collect();
        extras.sort();
        plain.push_str(&format!("[{}]", extras.join(",")));
        rest = after.trim();
    }
    if !rest.is_empty() {
        let specifiers: Option<Vec<String>> = rest.split(',').map(specifier).collect();
        plain.push_str(&specifiers.ok_or_else(|| wrong(text))?.join(","));
    }
    if let Some(marker) = marker {
        if marker.is_empty() || !marker.chars().all(is_marker_character) {
            return Err(wrong(text));
        }
        plain.push_str(&format!("; {marker}"));
    }
    Ok(Requirement { name, text: plain })
}

fn specifier(text: &str) -> Option<String> {
    let text = text.trim();
    let (operator, version) =
        OPERATORS.iter().find_map(|operator| Some((operator, text.strip_prefix(operator)?.trim())))?;
    let is_version = version.starts_with(|character: char| character.is_ascii_alphanumeric())
        && version.chars().all(|character| character.is_ascii_alphanumeric() || ".*+!_-".contains(character));
    is_version.then(|| format!("{operator}{version}"))
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.')
}

fn is_name(text: &str) -> bool {
    text.chars().all(is_name_character)
        && text.starts_with(|character: char| character.is_ascii_alphanumeric())
        && text.ends_with(|character: char| character.is_ascii_alphanumeric())
}

fn is_marker_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || " _.'\"<>=!~()-".contains(character)
}

/// As indexes compare names (PEP 503).
fn normalized(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

fn wrong(text: &str) -> Error {
    let error = Error::invalid_input(format!("{} is not a package of Python", shown(text)));
    if text.contains("://") || text.contains('@') || text.contains('/') {
        return error.with_hint("packages come from the index by name; addresses and paths are not taken");
    }
    if text.starts_with('-') {
        return error.with_hint("options of pip are not taken; name packages like pandas or pandas==2.2.3");
    }
    error.with_hint("write a name, and which versions if it matters: pandas, pandas==2.2.3, requests[socks]>=2,<3")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_as_pip_reads_them() {
        for (text, plain) in [
            ("pandas", "pandas"),
            ("Zope.Interface", "zope-interface"),
            ("pandas == 2.2.3", "pandas==2.2.3"),
            ("requests[Socks, use_chardet]>=2, <3", "requests[socks,use-chardet]>=2,<3"),
            ("torch==2.3.0+cpu", "torch==2.3.0+cpu"),
            ("a~=1.4.2", "a~=1.4.2"),
            ("a==1.*", "a==1.*"),
            ("a===1!2.0-rc1", "a===1!2.0-rc1"),
            ("a; python_version < \"3.12\"", "a; python_version < \"3.12\""),
        ] {
            assert_eq!(requirement(text).unwrap().as_str(), plain, "{text}");
        }
    }

    #[test]
    fn nothing_but_names_and_versions_is_taken() {
        for text in [
            "",
            "-r requirements.txt",
            "--index-url=http://evil.example",
            "-e .",
            ".",
            "./package",
            "/etc/passwd",
            "a @ https://evil.example/a.whl",
            "git+https://evil.example/a",
            "https://evil.example/a.whl",
            "a.whl/../b",
            "a==",
            "a==-1",
            "a>",
            "a 1.0",
            "a==1 --hash=sha256:00",
            "a[",
            "a[-x]",
            "a[]",
            "a;",
            "a; os_name == \"x\"\n--index-url http://evil.example",
            "a\n-r /etc/passwd",
            "a # comment",
            "a==${HOME}",
            "ä",
            "a-",
            "_a",
        ] {
            assert!(requirement(text).is_err(), "{text:?} was taken");
        }
    }
}
