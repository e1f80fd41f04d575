//! The dashboard that is in the program, against what its source makes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sandpen_tests::Result;
use sandpen_tests::program::run;

use crate::{Installed, source};

const LIMIT: Duration = Duration::from_secs(120);

/// Built anew, byte for byte the same; and its types are right.
pub fn is_reproduced(installed: &Installed) -> Result<()> {
    let dashboard = source("../crates/sandpen/dashboard");
    let place = tempfile::Builder::new().prefix("sandpen-dashboard-").tempdir()?;
    for name in ["build.mjs", "package.json", "tsconfig.json"] {
        fs::copy(dashboard.join(name), place.path().join(name))?;
    }
    copy(&dashboard.join("src"), &place.path().join("src"))?;
    let packages = installed.clients().join("dashboard/node_modules");
    std::os::unix::fs::symlink(&packages, place.path().join("node_modules"))?;
    let node = |arguments: &[&str]| {
        let mut command = Command::new("node");
        command.args(arguments).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(place.path());
        run(&mut command, place.path(), LIMIT)?.succeeded()
    };
    node(&["node_modules/typescript/bin/tsc", "--noEmit"])?;
    node(&["build.mjs"])?;
    let (made, kept) = (read(&place.path().join("dist"))?, read(&dashboard.join("dist"))?);
    if made != kept {
        let differs = |name: &&String| made.get(*name) != kept.get(*name);
        let names: std::collections::BTreeSet<_> = made.keys().chain(kept.keys()).filter(differs).collect();
        return Err(format!("crates/sandpen/dashboard/dist is not what `npm run build` makes: {names:?}").into());
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, there) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&path, &there)?;
        } else {
            fs::copy(path, there)?;
        }
    }
    Ok(())
}

fn read(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
    }
    Ok(files)
}
