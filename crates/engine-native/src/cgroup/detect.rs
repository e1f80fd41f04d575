//! Finding where each controller lives on this host, and whether we may make groups there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use super::{Controller, Place, Version};

/// The group of the server itself, beside those of its sandboxes. The unit of systemd names it too.
const ASIDE: &str = "sandpen-server";

/// A controller that cannot be used, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub controller: Controller,
    pub why: String,
    pub remedy: String,
}

/// One cgroup file system: where it is mounted, which part of the hierarchy that shows, and our own group in it.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    controllers: Vec<String>,
    own: PathBuf,
    top: PathBuf,
}

/// Every controller, with its place or the reason why it has none. Makes nothing.
pub fn detect() -> io::Result<(Vec<Place>, Vec<Missing>)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let membership = fs::read_to_string("/proc/self/cgroup")?;
    let mut hierarchies = parse(&mounts, &membership);
    for hierarchy in hierarchies.iter_mut().filter(|hierarchy| hierarchy.version == Version::V2) {
        let offered = fs::read_to_string(hierarchy.own.join("cgroup.controllers")).unwrap_or_default();
        hierarchy.controllers = offered.split_whitespace().map(str::to_owned).collect();
    }
    let mut places = Vec::new();
    let mut missing = Vec::new();
    for controller in Controller::ALL {
        match place(controller, &hierarchies) {
            Ok(place) => places.push(place),
            Err((why, remedy)) => missing.push(Missing { controller, why, remedy }),
        }
    }
    Ok((places, missing))
}

fn place(controller: Controller, hierarchies: &[Hierarchy]) -> Result<Place, (String, String)> {
    let has =
        |hierarchy: &&Hierarchy| hierarchy.controllers.iter().any(|name| name == controller.name(hierarchy.version));
    let Some(hierarchy) = hierarchies.iter().find(has) else {
        return Err((
            format!("no mounted cgroup hierarchy offers the {} controller", controller.name(Version::V2)),
            "run under `systemd-run --user --scope -p Delegate=yes`, or mount cgroups".to_owned(),
        ));
    };
    for parent in parents(hierarchy) {
        let writable = rustix::fs::accessat(CWD, parent, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
        if writable && (hierarchy.version == Version::V1 || can_have_children(parent)) {
            return Ok(Place { controller, version: hierarchy.version, parent: parent.to_owned() });
        }
    }
    Err((
        "this user may not make cgroups here".to_owned(),
        "run as root, or under `systemd-run --user --scope -p Delegate=yes`".to_owned(),
    ))
}

/// Where groups of sandboxes may be, the best place first.
fn parents(hierarchy: &Hierarchy) -> Vec<&Path> {
    let (own, top) = (hierarchy.own.as_path(), hierarchy.top.as_path());
    match hierarchy.version {
        // Groups with processes and groups with subgroups may be the same.
        Version::V1 => vec![own],
        // They may not, except at the top: below our own group only if it can be emptied. A service manager that put us into our
        // place aside (DelegateSubgroup=) did so to keep the group around it free for those of sandboxes.
        Version::V2 => {
            let around = own.parent().filter(|_| own != top && own.file_name().is_some_and(|name| name == ASIDE));
            around.into_iter().chain([own, top]).collect()
        }
    }
}

/// On version 2 a group that holds processes cannot pass controllers on. Ours may be emptied into a subgroup when
/// nobody but us is in it; the top of the hierarchy is exempt from the rule.
fn can_have_children(group: &Path) -> bool {
    if !group.join("cgroup.type").exists() {
        return true;
    }
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id();
    processes.lines().all(|line| line.parse() == Ok(own) || parent_of(line) == Some(own))
}

fn parent_of(process: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Pass the controllers on from the parent of `group` and from `group` itself.
pub(super) fn enable_controllers(group: &Path) -> io::Result<()> {
    let Some(parent) = group.parent() else { return Ok(()) };
    let wanted = "+memory +cpu +pids";
    if fs::write(parent.join("cgroup.subtree_control"), wanted).is_err() {
        let aside = parent.join(ASIDE);
        fs::create_dir_all(&aside)?;
        for process in fs::read_to_string(parent.join("cgroup.procs"))?.lines() {
            fs::write(aside.join("cgroup.procs"), process)?;
        }
        fs::write(parent.join("cgroup.subtree_control"), wanted)?;
    }
    fs::write(group.join("cgroup.subtree_control"), wanted)
}

fn parse(mounts: &str, membership: &str) -> Vec<Hierarchy> {
    mounts.lines().filter_map(|line| parse_mount(line, membership)).collect()
}

fn parse_mount(line: &str, membership: &str) -> Option<Hierarchy> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, mount_point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    let (version, controllers) = match kind {
        "cgroup" => (Version::V1, options.split(',').map(str::to_owned).collect::<Vec<_>>()),
        "cgroup2" => (Version::V2, Vec::new()),
        _ => return None,
    };
    let own = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let matches = match version {
            Version::V1 => names.split(',').any(|name| !name.is_empty() && controllers.iter().any(|c| c == name)),
            Version::V2 => names.is_empty(),
        };
        matches.then_some(path)
    })?;
    // Under Docker the mount may show only a part of the hierarchy, while the membership is told from its top.
    let below = own.strip_prefix(root.trim_end_matches('/')).unwrap_or(own).trim_start_matches('/');
    let top = PathBuf::from(mount_point);
    Some(Hierarchy { version, controllers, own: top.join(below), top })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_host_is_read_per_hierarchy() {
        let mounts = "\
            30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            33 25 0:29 / /proc rw - proc proc rw\n";
        let membership = "4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/\n";
        let found = parse(mounts, membership);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].own, Path::new("/sys/fs/cgroup/memory/jobs/7"));
        assert_eq!(found[1].own, Path::new("/sys/fs/cgroup/cpu,cpuacct/"));
        assert_eq!((found[2].version, found[2].own.as_path()), (Version::V2, Path::new("/sys/fs/cgroup/unified/")));
    }

    #[test]
    fn a_server_that_was_put_aside_has_its_sandboxes_beside_it() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let service = Path::new("/sys/fs/cgroup/system.slice/sandpen.service");
        let found = |group: &str| parse(mounts, &format!("0::/system.slice/{group}\n")).remove(0);
        let (aside, plain) = (found("sandpen.service/sandpen-server"), found("sandpen.service"));
        let top = Path::new("/sys/fs/cgroup");
        assert_eq!(parents(&aside), [service, &service.join("sandpen-server"), top]);
        assert_eq!(parents(&plain), [service, top]);
        let unit = include_str!("../../../../deploy/systemd/sandpen.service");
        assert!(unit.contains(&format!("\nDelegateSubgroup={ASIDE}\n")), "the unit calls it otherwise");
    }

    #[test]
    fn a_namespace_sees_its_part_as_the_top() {
        let mounts = "30 25 0:26 /jobs/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let found = parse(mounts, "3:pids:/jobs/abc/inner\n");
        assert_eq!(found[0].own, Path::new("/sys/fs/cgroup/pids/inner"));
    }
}
