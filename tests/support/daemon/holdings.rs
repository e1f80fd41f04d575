//! All that a daemon has, by what names it.

use std::collections::BTreeSet;

use crate::Result;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub containers: BTreeSet<String>,
    /// Each as its digest and its name.
    pub images: BTreeSet<String>,
    pub volumes: BTreeSet<String>,
    pub networks: BTreeSet<String>,
}

impl Holdings {
    /// Asked of Docker's own client, which `docker` runs to its end.
    pub fn of(docker: impl Fn(&[&str]) -> Result<String>) -> Result<Self> {
        let lines = |arguments: &[&str]| -> Result<BTreeSet<String>> {
            Ok(docker(arguments)?.lines().map(|line| line.trim().to_owned()).collect())
        };
        Ok(Self {
            containers: lines(&["ps", "--all", "--quiet", "--no-trunc"])?,
            images: lines(&["images", "--all", "--no-trunc", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"])?,
            volumes: lines(&["volume", "ls", "--format", "{{.Name}}"])?,
            networks: lines(&["network", "ls", "--no-trunc", "--format", "{{.ID}} {{.Name}}"])?,
        })
    }
}
