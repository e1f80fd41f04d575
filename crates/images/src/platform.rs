//! For which machines an image is, and which of several fits this one.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    pub architecture: String,
    pub os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// Of this machine, in the words that registries use.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", Some("v8")),
            "x86" => ("386", None),
            "arm" => ("arm", Some("v7")),
            other => (other, None),
        };
        Self { architecture: architecture.to_owned(), os: "linux".to_owned(), variant: variant.map(str::to_owned) }
    }

    /// How well something for `self` runs on `machine`: not at all, or the higher the better.
    pub fn fitness(&self, machine: &Self) -> Option<u32> {
        if self.os != machine.os || self.architecture != machine.architecture {
            return None;
        }
        match (self.number(), machine.number()) {
            (wanted, there) if wanted == there => Some(u32::MAX),
            // Variants are steps of one ladder: a machine runs what was made for those below it.
            (Some(wanted), Some(there)) => (wanted < there).then_some(wanted),
            (None, _) => Some(0),
            // On amd64 the variants are extensions, which a machine without a word about them may lack.
            (Some(wanted), None) => (wanted == 1).then_some(1),
        }
    }

    fn number(&self) -> Option<u32> {
        let number = self.variant.as_deref().and_then(|variant| variant.strip_prefix('v')?.parse().ok());
        // There was never another one, so most images leave it out.
        number.or_else(|| (self.architecture == "arm64").then_some(8))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let os = parts.next().unwrap();
        Platform { os, architecture: parts.next().unwrap(), variant: parts.next() }
    }

    #[test]
    fn the_nearest_that_runs_is_the_fittest() {
        let best = |machine: &str, offered: &[&'static str]| {
            let machine = platform(machine);
            let fitness = |text: &&&'static str| platform(text).fitness(&machine);
            offered.iter().filter(|text| fitness(text).is_some()).max_by_key(fitness).copied().unwrap_or("none")
        };
        let several = ["windows/amd64", "linux/386", "linux/arm/v6", "linux/arm/v7", "linux/arm64/v8", "linux/amd64"];
        assert_eq!(best("linux/amd64", &several), "linux/amd64");
        assert_eq!(best("linux/arm64", &several), "linux/arm64/v8");
        assert_eq!(best("linux/arm64/v8", &["linux/arm64"]), "linux/arm64");
        assert_eq!(best("linux/arm/v7", &several), "linux/arm/v7");
        assert_eq!(best("linux/arm/v6", &several), "linux/arm/v6");
        assert_eq!(best("linux/arm/v8", &several), "linux/arm/v7");
        assert_eq!(best("linux/amd64", &["linux/amd64/v3", "linux/amd64"]), "linux/amd64");
        assert_eq!(best("linux/amd64", &["linux/amd64/v3"]), "none");
        assert_eq!(best("linux/s390x", &several), "none");
    }
}
