//! The most that one owner may have, over all its sandboxes.

use clap::Args;

use super::push;
use crate::config::key::Key;
use crate::config::written::Written;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Limits of one user")]
pub struct OwnerFlags {
    /// Sandboxes that one user may have at once [default: 1000]
    #[arg(long, value_name = "NUMBER")]
    owner_sandboxes: Option<String>,

    /// Processors of all sandboxes of one user together, as they are limited [default: no bound]
    #[arg(long, value_name = "NUMBER")]
    owner_cpus: Option<String>,

    /// Memory of all sandboxes of one user together, as they are limited [default: no bound]
    #[arg(long, value_name = "SIZE")]
    owner_memory: Option<String>,

    /// The most room of one user, for files of all sandboxes and for saved images together [default: no bound]
    #[arg(long, value_name = "SIZE")]
    owner_disk: Option<String>,

    /// The most images that one user may have saved [default: 1000]
    #[arg(long, value_name = "NUMBER")]
    owner_saved_images: Option<String>,

    /// Runs that one user may start in a minute [default: no bound]
    #[arg(long, value_name = "NUMBER")]
    owner_runs: Option<String>,

    /// Another limit for one user: alice:sandboxes=5; the names are those of these options, without owner
    #[arg(long, value_name = "USER:LIMIT=VALUE", value_delimiter = ',')]
    owner_limit: Vec<String>,
}

impl OwnerFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::OwnerSandboxes, &self.owner_sandboxes);
        push(written, Key::OwnerCpus, &self.owner_cpus);
        push(written, Key::OwnerMemory, &self.owner_memory);
        push(written, Key::OwnerDisk, &self.owner_disk);
        push(written, Key::OwnerSavedImages, &self.owner_saved_images);
        push(written, Key::OwnerRuns, &self.owner_runs);
        push(written, Key::OwnerLimit, &self.owner_limit);
    }
}
