//! What the places serve as files: a repository that can be cloned, and a library for Python.

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

/// Wheels that are only text, so that whichever Python sandboxes have can use them.
const LIBRARY: &str = r#"set -e
cd "$1"
python3 -m pip install --quiet --disable-pip-version-check --target python \
    --only-binary :all: --platform any --abi none --implementation py requests
tar -C python -cf python.tar ."#;

/// Whether Python's `requests` is there. Without an index to take it from, its uses are skipped by name.
pub fn library(directory: &Path) -> bool {
    let output = Command::new("sh").args(["-c", LIBRARY, "sh"]).arg(directory).output();
    output.is_ok_and(|output| output.status.success())
}

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
