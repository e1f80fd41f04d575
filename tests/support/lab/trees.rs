//! Root trees of a check as images of the daemon that the environment names.

use std::path::Path;

use crate::Result;
use crate::daemon::Given;
use crate::random::unique;

/// What they are called.
const IMAGES: &str = "escape-tree";

impl Given {
    /// A root tree of this host as an image of the daemon.
    pub fn import(&self, tree: &Path) -> Result<String> {
        let archive = tempfile::NamedTempFile::new()?;
        let mut writer = tar::Builder::new(archive.as_file());
        writer.follow_symlinks(false);
        writer.append_dir_all(".", tree)?;
        writer.finish()?;
        drop(writer);
        let name = format!("{IMAGES}:{}", unique("tree"));
        self.docker(&["import", &archive.path().to_string_lossy(), &name])?;
        Ok(name)
    }

    /// What checks have left there, which is removed.
    pub fn leftovers(&self) -> Result<Vec<String>> {
        for image in self.docker(&["images", "--quiet", IMAGES])?.split_whitespace() {
            self.docker(&["rmi", "--force", image])?;
        }
        let containers = self.docker(&["ps", "--all", "--format", "{{.Names}}"])?;
        let containers: Vec<String> = containers.lines().map(|name| format!("container {name}")).collect();
        for name in containers.iter().filter_map(|line| line.strip_prefix("container ")) {
            self.docker(&["rm", "--force", name])?;
        }
        Ok(containers)
    }
}
