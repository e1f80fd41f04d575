//! Processes as `/proc` shows them: enough to end a stage that hangs, with all that it started.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

/// `root` and everything below it, children before parents.
pub fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        found.extend(children.get(&found[next]).into_iter().flatten());
        next += 1;
    }
    found.reverse();
    found
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Kill `root` and everything below it.
pub fn kill_tree(root: u32) {
    let pids: Vec<String> = tree(root).iter().map(u32::to_string).collect();
    let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
}

/// Whether this process has the rights of root.
pub fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.starts_with("Uid:\t") && line.split('\t').nth(2) == Some("0"))
    })
}

/// Whether `program` is found in the search path.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()))
}
