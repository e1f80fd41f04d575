//! Control groups in all hierarchies of the host, old and new.

use std::fs;
use std::path::{Path, PathBuf};

use crate::mounts;
use crate::processes::Process;

/// Where hierarchies are mounted.
pub fn hierarchies() -> Vec<PathBuf> {
    let is_cgroup = |mount: &mounts::Mount| mount.kind == "cgroup" || mount.kind == "cgroup2";
    mounts::of("self").into_iter().filter(is_cgroup).map(|mount| PathBuf::from(mount.point)).collect()
}

/// Every group with `mark` in its name, and all below it, in every hierarchy.
pub fn marked(mark: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for hierarchy in hierarchies() {
        collect(&hierarchy, mark, false, &mut found);
    }
    found
}

fn collect(directory: &Path, mark: &str, inside: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let wanted = inside || entry.file_name().to_string_lossy().contains(mark);
            if wanted {
                found.push(entry.path());
            }
            collect(&entry.path(), mark, wanted, found);
        }
    }
}

/// A control file of the group that `process` is in, from whichever hierarchy has it.
pub fn value(process: &Process, files: &[&str]) -> Option<String> {
    let membership = process.text("cgroup");
    let paths = membership.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let groups =
        paths.flat_map(|path| hierarchies().into_iter().map(move |top| top.join(path.trim_start_matches('/'))));
    // The top has no limits, and a program in it is in no group of ours.
    let below_the_top = groups.filter(|group| !hierarchies().contains(group));
    below_the_top
        .flat_map(|group| files.iter().map(move |file| group.join(file)))
        .find_map(|file| fs::read_to_string(file).ok())
        .map(|text| text.trim().to_owned())
}
