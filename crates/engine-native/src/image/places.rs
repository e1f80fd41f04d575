//! Where in a root a tree of others may be seen: where nothing is hidden by it, and nothing lies over it.

use std::io;

use sandbox::{Error, GuestPath, Result};

use super::RootTree;
use super::layers::Layers;

/// Every sandbox has something of its own there.
const TAKEN: [&str; 7] = ["/dev", "/home/sandbox", "/mnt", "/proc", "/run", "/sys", "/tmp"];

/// Refuses places that something else of the root needs, or that need each other. A builder has no work directory of ours.
pub fn check(tree: &RootTree, work_directory: Option<&GuestPath>, places: &[&GuestPath]) -> Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    let unreadable = |cause: io::Error| Error::unavailable("the image's tree cannot be read").with_cause(cause);
    let layers = Layers::open(&tree.lowers).map_err(unreadable)?;
    let touch = |one: &GuestPath, other: &GuestPath| one.contains(other) || other.contains(one);
    let taken = TAKEN.iter().map(|path| path.parse()).collect::<Result<Vec<GuestPath>>>()?;
    for (index, at) in places.iter().enumerate() {
        let own = tree.binds.iter().map(|bind| &bind.target).chain(work_directory).chain(&taken);
        let made = tree.links.iter().map(|(path, _)| path).chain(tree.files.iter().map(|file| &file.path));
        let others = places.iter().skip(index + 1).copied();
        let is_free = !at.is_root()
            && !own.chain(made).chain(others).any(|path| touch(path, at))
            && !is_in_the_way(&layers, at).map_err(unreadable)?;
        if !is_free {
            return Err(Error::invalid_input(format!("nothing can be attached at {at}: something else is there"))
                .with_hint("choose a path that the image does not have"));
        }
    }
    Ok(())
}

/// Whether the image has something there, or something on the way that is no directory.
fn is_in_the_way(layers: &Layers, at: &GuestPath) -> io::Result<bool> {
    let path = at.to_string_lossy();
    let ends = path.match_indices('/').map(|(end, _)| end).filter(|end| *end > 0);
    for end in ends {
        if layers.find(&path[..end])?.is_some_and(|found| !found.is_directory()) {
            return Ok(true);
        }
    }
    Ok(layers.find(&path)?.is_some())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::image::Bind;

    #[test]
    fn a_tree_lies_where_nothing_else_does() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("opt/tool")).unwrap();
        symlink("opt", place.path().join("link")).unwrap();
        let path = |text: &str| text.parse::<GuestPath>().unwrap();
        let tree = RootTree {
            lowers: vec![place.path().to_owned()],
            binds: vec![Bind { source: "/usr".into(), target: path("/usr") }],
            links: vec![(path("/bin"), "usr/bin".to_owned())],
            ..RootTree::default()
        };
        let judge = |texts: &[&str]| {
            let paths: Vec<GuestPath> = texts.iter().map(|text| path(text)).collect();
            check(&tree, Some(&path("/workspace")), &paths.iter().collect::<Vec<_>>()).is_ok()
        };
        for free in [&["/packages/python"][..], &["/node_modules"], &["/opt/other"], &["/a", "/b"], &[]] {
            assert!(judge(free), "{free:?}");
        }
        for taken in [
            "/",
            "/usr",
            "/usr/lib/x",
            "/bin",
            "/opt/tool",
            "/opt",
            "/link/x",
            "/workspace/x",
            "/tmp",
            "/run/x",
            "/home",
        ] {
            assert!(!judge(&[taken]), "{taken}");
        }
        assert!(!judge(&["/a", "/a"]) && !judge(&["/a/b", "/a"]), "one over the other");
    }
}
