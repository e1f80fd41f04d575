//! Flags for packages that code imports.

use clap::Args;
use sandbox::{PackageLanguage, Packages, Result};

use super::{Key, Written, push};

/// What a sandbox of this command is to have installed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sandbox")]
pub struct PackageFlags {
    /// Have this package there, from the index of this machine's pip, uv or npm: pandas==2.2.3, npm:lodash@^4
    #[arg(long, value_name = "PACKAGE")]
    package: Vec<String>,

    #[command(flatten)]
    host: PackageHostFlag,
}

impl PackageFlags {
    pub fn write_to(&self, written: &mut Written) {
        self.host.write_to(written);
    }

    pub fn is_empty(&self) -> bool {
        self.package.is_empty()
    }

    /// What has no language before it is of the usual one.
    pub fn packages(&self, usual: PackageLanguage) -> Result<Vec<Packages>> {
        Packages::sort_out(usual, &self.texts())
    }

    pub fn texts(&self) -> Vec<&str> {
        self.package.iter().flat_map(|text| parts(text)).collect()
    }
}

#[derive(Args, Clone, Debug, Default)]
pub struct PackageHostFlag {
    /// Let installations reach this host too, when an index leads there: files.example.com
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    package_host: Vec<String>,
}

impl PackageHostFlag {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::PackageHost, &self.package_host);
    }
}

/// At commas, except those within a requirement: before a version, and in brackets.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth <= 0 => {
                let next = text[at + 1..].trim_start();
                if !next.starts_with(['=', '<', '>', '!', '~']) {
                    parts.push(&text[start..at]);
                    start = at + 1;
                }
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_part_packages_and_not_versions() {
        assert_eq!(parts("numpy,pandas==2.2.3, six"), ["numpy", "pandas==2.2.3", "six"]);
        assert_eq!(parts("requests[socks,x]>=2,<3,six,"), ["requests[socks,x]>=2,<3", "six"]);
        assert_eq!(parts("npm:lodash@^4,npm:@types/node"), ["npm:lodash@^4", "npm:@types/node"]);
    }
}
