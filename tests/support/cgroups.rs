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
    let table = mounts::of("self");
    membership
        .lines()
        .filter_map(|line| group_of(line, &table))
        .flat_map(|group| files.iter().map(move |file| group.join(file)))
        .find_map(|file| fs::read_to_string(file).ok())
        .map(|text| text.trim().to_owned())
}

/// The directory that a line `number:controllers:path` of `/proc/PID/cgroup` means. At the top there are no limits.
fn group_of(line: &str, table: &[mounts::Mount]) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
    let is_there = |mount: &&mounts::Mount| match mount.kind.as_str() {
        "cgroup" => controllers.split(',').any(|name| mount.filesystem_options.iter().any(|option| option == name)),
        "cgroup2" => controllers.is_empty(),
        _ => false,
    };
    let top = &table.iter().find(is_there)?.point;
    (!path.is_empty()).then(|| Path::new(top).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_means_a_directory_of_its_own_hierarchy() {
        let table: Vec<mounts::Mount> = [
            "1 1 0:1 / /groups/cpu rw - cgroup cgroup rw,cpu,cpuacct",
            "1 1 0:1 / /groups/memory rw - cgroup cgroup rw,memory",
            "1 1 0:1 / /groups/unified rw - cgroup2 cgroup2 rw",
        ]
        .iter()
        .filter_map(|line| mounts::Mount::parse(line))
        .collect();
        let group = |line: &str| group_of(line, &table).map(|path| path.display().to_string());
        assert_eq!(group("4:memory:/a/b").as_deref(), Some("/groups/memory/a/b"));
        assert_eq!(group("3:cpu,cpuacct:/a").as_deref(), Some("/groups/cpu/a"));
        assert_eq!(group("0::/a").as_deref(), Some("/groups/unified/a"));
        assert_eq!(group("4:memory:/"), None);
        assert_eq!(group("9:pids:/a"), None);
    }
}
