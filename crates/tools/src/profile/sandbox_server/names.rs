//! Names of images as Docker has them, for images that are saved under plainer ones.

use sandbox::{Error, ImageName, Result, SavedName};
use sha2::{Digest, Sha256};

/// Digits of the digest in a name that could not be kept as it was written.
const DIGITS: usize = 16;

/// What may stand before them.
const READABLE: usize = 40;

/// What an image is saved as that is called `name`: the same, where that is a name for saved images, and otherwise one
/// that no other name leads to.
pub fn saved_as(name: &str) -> Result<SavedName> {
    let (repository, tag) = parts(name)?;
    if tag == "latest"
        && !is_made_up(repository)
        && let Ok(plain) = repository.parse()
    {
        return Ok(plain);
    }
    let whole = format!("{repository}:{tag}");
    let digest = Sha256::digest(whole.as_bytes());
    let digest: String = digest.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    let plain = |character: char| match character.to_ascii_lowercase() {
        character @ ('a'..='z' | '0'..='9') => character,
        _ => '-',
    };
    let readable: String = whole.chars().map(plain).take(READABLE).collect();
    format!("{}-{digest}", readable.trim_matches('-')).parse()
}

/// One that looks like ours could be that of another name.
fn is_made_up(name: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.rsplit_once('-').is_some_and(|(_, last)| last.len() == DIGITS && last.bytes().all(is_digit))
}

/// The repository and the tag, which is `latest` when there is none. A registry may have a port.
fn parts(name: &str) -> Result<(&str, &str)> {
    let wrong = |why: &str| {
        Err(Error::invalid_input(format!("invalid reference format: {why}"))
            .with_hint("write for example my-env, my-env:v1 or localhost:5000/team/env:v1"))
    };
    if name.parse::<ImageName>().is_err() || name.contains('@') {
        return wrong("it is not the name of an image that can be saved");
    }
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let (repository, tag) = match name[last..].find(':') {
        Some(colon) => (&name[..last + colon], &name[last + colon + 1..]),
        None => (name, "latest"),
    };
    let is_tag = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if tag.is_empty() || tag.len() > 128 || !tag.bytes().all(is_tag) || tag.starts_with(['.', '-']) {
        return wrong("the tag is not one");
    }
    // What stands before the first slash may be a registry, whose letters may be of any case.
    let (_, path) = repository.split_once('/').unwrap_or(("", repository));
    if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return wrong("repository name must be lowercase");
    }
    if path.split('/').any(|part| !part.ends_with(|last: char| last.is_ascii_alphanumeric())) {
        return wrong("a part of the repository name is empty or ends in a mark");
    }
    Ok((repository, tag))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_is_found_again_however_it_is_written() {
        for (one, other) in [("my-env", "my-env:latest"), ("a/b", "a/b:latest"), ("h:5000/x", "h:5000/x:latest")] {
            assert_eq!(saved_as(one).unwrap(), saved_as(other).unwrap());
        }
        assert_eq!(saved_as("my-env").unwrap().as_str(), "my-env");
    }

    #[test]
    fn different_names_are_different_images() {
        let tagged = saved_as("my-env:v1").unwrap();
        assert!(tagged.as_str().starts_with("my-env-v1-"), "{tagged}");
        let long = "x".repeat(200);
        let names = [
            "my-env",
            "my-env:v1",
            "my-env:V1",
            "my.env",
            "my_env",
            "my/env",
            "h:5000/my-env",
            "H:5000/my-env",
            "my-env-v1",
            tagged.as_str(),
            &long,
            "saved:lab",
            "host",
            "host:1",
        ];
        let saved: BTreeSet<_> = names.iter().map(|name| saved_as(name).unwrap()).collect();
        assert_eq!(saved.len(), names.len());
    }

    #[test]
    fn what_docker_would_not_take_is_refused() {
        for name in ["", "My-Env", "a b", "a:", "a:b:c", "a@sha256:00", "a//b", "/a", "a/", "a:-x", "a/B", "a-", "../x"]
        {
            let error = saved_as(name).unwrap_err();
            assert!(error.message().starts_with("invalid reference format"), "{name:?}: {error}");
        }
    }
}
