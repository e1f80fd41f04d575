//! Names of images, spelled as Docker spells them: `debian`, `ghcr.io/owner/tool:1.2`, `name@sha256:…`.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;
use crate::error::{Error, Result};

/// Where a name without a host belongs.
pub const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_NAMESPACE: &str = "library/";
const DEFAULT_TAG: &str = "latest";

/// One image in one registry, with nothing left to guess: host, repository, and a tag or a digest or both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// The host, with its port if it has one.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Whether no registry has it, because its host is one of those that never are anywhere (RFC 6761, 6.4): an image that
    /// was made here and has its name from us.
    pub fn is_local(&self) -> bool {
        let host = self.registry.split_once(':').map_or(&*self.registry, |(host, _)| host);
        host == "invalid" || host.ends_with(".invalid")
    }

    /// As people write it: without what goes without saying.
    pub fn familiar(&self) -> String {
        let text = self.to_string();
        let Some(short) = text.strip_prefix(DEFAULT_REGISTRY).and_then(|rest| rest.strip_prefix('/')) else {
            return text;
        };
        short.strip_prefix(DEFAULT_NAMESPACE).filter(|rest| !rest.contains('/')).unwrap_or(short).to_owned()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = self.digest {
            write!(f, "@{}", digest.qualified())?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why: &str| Error::Invalid(format!("{:?} is not the name of an image: {why}", Short(text)));
        let (rest, digest) = match text.split_once('@') {
            None => (text, None),
            Some((rest, digest)) => {
                let digest = Digest::parse_qualified(digest)
                    .ok_or_else(|| refuse("behind the @ stands sha256: and 64 lower-case hexadecimal digits"))?;
                (rest, Some(digest))
            }
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            Some(_) | None => (rest, None),
        };
        let (registry, repository) = split_registry(name);
        if !is_host(&registry) {
            return Err(refuse("its registry is not a host name"));
        }
        if repository.chars().any(|character| character.is_ascii_uppercase()) {
            return Err(refuse("names are written in lower case"));
        }
        if !repository.split('/').all(is_component) {
            return Err(refuse("names have letters, digits, and single dots, dashes and underscores between them"));
        }
        if registry.len() + 1 + repository.len() > 255 {
            return Err(refuse("it is longer than 255 characters"));
        }
        if digest.is_none() && tag.is_none() && looks_like_a_digest(name) {
            return Err(refuse("a digest alone does not say in which repository it is"));
        }
        if let Some(tag) = tag
            && !is_tag(tag)
        {
            return Err(refuse("a tag has up to 128 letters, digits, dots, dashes and underscores"));
        }
        let tag = tag.or_else(|| digest.is_none().then_some(DEFAULT_TAG)).map(str::to_owned);
        Ok(Self { registry, repository, tag, digest })
    }
}

/// What stands before the first slash is a host only if it cannot be the first part of a name.
fn split_registry(name: &str) -> (String, String) {
    let (registry, rest) = match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(|character| character.is_ascii_uppercase()) =>
        {
            (first.to_ascii_lowercase(), rest)
        }
        Some(_) | None => (DEFAULT_REGISTRY.to_owned(), name),
    };
    let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY.to_owned() } else { registry };
    let repository = if registry == DEFAULT_REGISTRY && !rest.contains('/') {
        format!("{DEFAULT_NAMESPACE}{rest}")
    } else {
        rest.to_owned()
    };
    (registry, repository)
}

/// A host name or address, with a port or without. It becomes part of addresses and of file names.
pub fn is_host(text: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+');
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, rest)| {
            let port = rest.strip_prefix(':');
            address.parse::<std::net::Ipv6Addr>().is_ok() && (rest.is_empty() || port.is_some_and(is_port))
        });
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.len() <= 253 && host.split('.').all(is_label) && port.is_none_or(is_port)
}

/// Letters and digits, joined by one dot, one or two underscores, or any number of dashes.
fn is_component(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_joint = |joint: &str| matches!(joint, "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-');
    let joints = text.split(|character: char| character.is_ascii() && is_word(character as u8));
    text.bytes().next().is_some_and(is_word)
        && text.bytes().next_back().is_some_and(is_word)
        && joints.filter(|joint| !joint.is_empty()).all(is_joint)
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn looks_like_a_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Somebody's text in a message of ours.
struct Short<'a>(&'a str);

impl fmt::Debug for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.char_indices().nth(100).map_or(self.0.len(), |(index, _)| index);
        fmt::Debug::fmt(&self.0[..end], f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn names_are_completed_as_docker_does_it() {
        for (text, whole, familiar) in [
            ("debian", "docker.io/library/debian:latest", "debian:latest"),
            ("debian:12", "docker.io/library/debian:12", "debian:12"),
            ("owner/tool", "docker.io/owner/tool:latest", "owner/tool:latest"),
            ("library/debian", "docker.io/library/debian:latest", "debian:latest"),
            ("library/a/b", "docker.io/library/a/b:latest", "library/a/b:latest"),
            ("docker.io/debian", "docker.io/library/debian:latest", "debian:latest"),
            ("index.docker.io/debian", "docker.io/library/debian:latest", "debian:latest"),
            ("localhost/tool", "localhost/tool:latest", "localhost/tool:latest"),
            ("localhost:5000/tool:1", "localhost:5000/tool:1", "localhost:5000/tool:1"),
            ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest", "127.0.0.1:5000/a/b/c:latest"),
            ("[::1]:5000/tool", "[::1]:5000/tool:latest", "[::1]:5000/tool:latest"),
            ("GHCR.io/owner/tool", "ghcr.io/owner/tool:latest", "ghcr.io/owner/tool:latest"),
            ("a__b/c--d/e.f_g:T_.-x", "docker.io/a__b/c--d/e.f_g:T_.-x", "a__b/c--d/e.f_g:T_.-x"),
        ] {
            let reference: Reference = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                (reference.to_string(), reference.familiar()),
                (whole.to_owned(), familiar.to_owned()),
                "{text}"
            );
            assert_eq!(whole.parse::<Reference>().unwrap(), reference, "the whole name means the same");
            assert_eq!(familiar.parse::<Reference>().unwrap(), reference, "the short name means the same");
        }
    }

    #[test]
    fn a_digest_takes_the_place_of_a_tag_or_stands_beside_it() {
        let alone: Reference = format!("tool@sha256:{DIGITS}").parse().unwrap();
        assert_eq!((alone.tag(), alone.digest()), (None, Digest::parse_qualified(&format!("sha256:{DIGITS}"))));
        let both: Reference = format!("host.example:1/tool:2@sha256:{DIGITS}").parse().unwrap();
        assert_eq!(both.to_string(), format!("host.example:1/tool:2@sha256:{DIGITS}"));
    }

    #[test]
    fn hosts_that_cannot_be_have_nothing_but_our_own() {
        for (text, expected) in [
            ("saved.sandpen.invalid/a/b", true),
            ("INVALID:5000/a", true),
            ("x.invalid:5000/a", true),
            ("invalid/a", false),
            ("notinvalid.example/a", false),
            ("x.invalid.example/a", false),
            ("[::1]:5000/a", false),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().is_local(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "x".repeat(250);
        for text in [
            "",
            "/",
            "/tool",
            "tool/",
            "a//b",
            "Tool",
            "owner/Tool",
            "-tool",
            "tool-",
            "a..b",
            "a___b",
            "a._b",
            "../etc/passwd",
            "host.example/../x",
            "tool:",
            "tool:-x",
            "tool:a b",
            "tool@sha256:abc",
            &format!("tool@sha512:{DIGITS}"),
            &format!("tool@sha256:{}", DIGITS.to_uppercase()),
            DIGITS,
            "host.example:0/tool",
            "host.example:99999/tool",
            "host..example/tool",
            "-host.example/tool",
            "[::1/tool",
            "user@host.example/tool",
            "https://host.example/tool",
            "tool\n",
            "t\u{f6}ol",
            &long,
            &format!("tool:{long}"),
        ] {
            let parsed = text.parse::<Reference>();
            assert!(matches!(parsed, Err(Error::Invalid(_))), "{text:?}: {parsed:?}");
        }
    }
}
