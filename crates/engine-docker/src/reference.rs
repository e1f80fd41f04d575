//! Names of images, as daemons understand them.

use std::fmt;

use sandbox::{Error, Result};

const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_TAG: &str = "latest";

/// A name that means one image: a repository and a tag or a digest. What was left out is put in, because a daemon that is
/// asked for a repository alone fetches all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub repository: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Tag(String),
    Digest(String),
}

impl Reference {
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            let shown: String = text.chars().take(64).collect();
            Error::invalid_input(format!("{shown:?} is not the name of an image"))
                .with_hint("write for example debian:12 or registry.example.org/team/tool:1")
        };
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let path_at = name.rfind('/').map_or(0, |slash| slash + 1);
        let (repository, tag) = match name[path_at..].rfind(':') {
            Some(colon) => (&name[..path_at + colon], Some(&name[path_at + colon + 1..])),
            None => (name, None),
        };
        let is_path = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:[]".contains(&byte))
        };
        if !repository.split('/').all(is_path) || tag.is_some_and(|tag| !is_path(tag) || tag.contains(':')) {
            return Err(wrong());
        }
        let version = match digest {
            Some(digest) => {
                let hex = digest.strip_prefix("sha256:").ok_or_else(wrong)?;
                if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(wrong());
                }
                Version::Digest(digest.to_owned())
            }
            None => Version::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        };
        Ok(Self { repository: repository.to_owned(), version })
    }

    /// The host that it comes from.
    pub fn registry(&self) -> &str {
        match self.repository.split_once('/') {
            Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
            Some(_) | None => DEFAULT_REGISTRY,
        }
    }

    /// As the API wants it beside the repository.
    pub fn version(&self) -> Option<&str> {
        match &self.version {
            Version::Tag(version) | Version::Digest(version) => Some(version),
        }
    }

    /// Whether an image that the daemon calls so is the one that is meant. Podman writes names out; Docker does not.
    pub fn is_called(&self, name: &str) -> bool {
        let Ok(other) = Self::parse(name) else { return false };
        self.version == other.version && (self.repository == other.repository || short(self) == short(&other))
    }
}

impl Reference {
    /// All ways to write it.
    pub fn spellings(&self) -> Vec<String> {
        let written = self.to_string();
        if self.registry() != DEFAULT_REGISTRY {
            return vec![written];
        }
        let with = |repository: String| Self { repository, version: self.version.clone() }.to_string();
        let short = short(self);
        let whole =
            if short.contains('/') { format!("docker.io/{short}") } else { format!("docker.io/library/{short}") };
        vec![written, with(short.to_owned()), with(whole)]
    }
}

/// A repository without what names of the default registry, and of images that never had one, may leave out.
fn short(reference: &Reference) -> &str {
    let name = &reference.repository;
    ["docker.io/library/", "docker.io/", "index.docker.io/", "localhost/"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name)
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Version::Tag(tag) => write!(f, "{}:{tag}", self.repository),
            Version::Digest(digest) => write!(f, "{}@{digest}", self.repository),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_put_in() {
        for (text, whole, registry) in [
            ("debian", "debian:latest", "docker.io"),
            ("team/tool:1", "team/tool:1", "docker.io"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000"),
            ("[::1]:5000/a:b", "[::1]:5000/a:b", "[::1]:5000"),
            ("r.example/x:1", "r.example/x:1", "r.example"),
        ] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!((reference.to_string().as_str(), reference.registry()), (whole, registry));
        }
        let digest = format!("x@sha256:{}", "0".repeat(64));
        assert_eq!(Reference::parse(&digest).unwrap().to_string(), digest);
        for text in ["", "a//b", "/a", "a:", "x@sha256:00", "x@md5:00", "a b"] {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_image_is_the_one_that_is_called_so() {
        let called = |asked: &str, name: &str| Reference::parse(asked).unwrap().is_called(name);
        assert!(called("debian", "debian:latest"));
        assert!(called("debian:12", "docker.io/library/debian:12"));
        assert!(called("tool:1", "localhost/tool:1"));
        assert!(called("docker.io/team/tool:1", "team/tool:1"));
        assert!(!called("debian", "debian:12"));
        assert!(!called("d0d168a3ce10", "debian:latest"), "the beginning of a digest is no name");
        assert!(!called("tool:1", "evil.example/tool:1"));
        assert!(!called("debian", "<none>:<none>"));
    }
}
