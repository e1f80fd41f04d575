//! `.dockerignore`: what of the build context is not there for the build.

use super::MAX_BYTES;
use super::pattern::Pattern;
use crate::error::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignore(Vec<(Pattern, bool)>);

impl Ignore {
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            return Err(Error::LimitExceeded("a .dockerignore has more than a mebibyte".to_owned()));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().filter(|line| !line.starts_with('#')).map(str::trim);
        let mut patterns = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (pattern, kept) = line.strip_prefix('!').map_or((line, false), |rest| (rest.trim(), true));
            patterns.push((Pattern::parse(pattern)?, kept));
        }
        Ok(Self(patterns))
    }

    /// Whether a path, from the top of the context, is left out. The last line that speaks of it counts.
    pub fn leaves_out(&self, path: &str) -> bool {
        let last = self.0.iter().rev().find(|(pattern, _)| pattern.covers(path));
        last.is_some_and(|(_, kept)| !kept)
    }

    /// Whether something below a directory that is left out may be kept all the same.
    pub fn has_exceptions(&self) -> bool {
        self.0.iter().any(|(_, kept)| *kept)
    }
}
