//! What can be cloned from a server that knows nothing but files.

use std::path::Path;
use std::process::Command;

use sandpen_tests::{Result, Trouble};

const SCRIPT: &str = r#"set -e
cd "$1"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null HOME="$1"
git init --quiet --initial-branch main work
echo 'from the repository' >work/file
git -C work add file
git -C work -c user.name=test -c user.email=test@example.com commit --quiet --message first
git clone --quiet --bare work repository.git
git -C repository.git update-server-info"#;

pub fn make(directory: &Path) -> Result<()> {
    let Ok(output) = Command::new("sh").args(["-c", SCRIPT, "sh"]).arg(directory).output() else {
        return Err("sh does not start".into());
    };
    // Without Git there is nothing to clone, and nobody to clone it: that use is skipped by name.
    if output.status.success() || output.status.code() == Some(127) {
        return Ok(());
    }
    Err(Trouble(format!("there is nothing to clone: {}", String::from_utf8_lossy(&output.stderr))))
}
