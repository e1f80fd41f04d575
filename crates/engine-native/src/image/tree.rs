//! Images that are a whole root tree: a directory of the host, or an archive that was unpacked to one.
//!
//! Whoever made the tree is not trusted. It is looked at by descriptor, and what a mount or a made-up file must lie on
//! has to be a real directory.

use std::path::Path;

use images::confined::{Directory, Missing, Name, is_directory};
use sandbox::{Error, Result};

use super::{RootTree, SEARCH_PATH, environment, etc};

/// Where every sandbox has something of its own.
const DIRECTORIES: [&str; 5] = ["dev", "etc", "proc", "sys", "tmp"];

/// Of the made-up files, those that say where one is; the rest only fills gaps.
const ALWAYS: [&str; 3] = ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];

/// The tree in `path`. The state directory may not lie in it: a sandbox would see every other one.
pub fn directory_tree(path: &Path, state: &Path) -> Result<RootTree> {
    let unusable = |error: std::io::Error| {
        let cause = std::io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Error::not_found("the image's directory cannot be opened").with_cause(cause)
    };
    let lower = path.canonicalize().map_err(unusable)?;
    if lower.parent().is_none() || state.canonicalize().is_ok_and(|state| state.starts_with(&lower)) {
        return Err(Error::invalid_input("the image's directory contains the state of all sandboxes")
            .with_hint("use the image host to work with the programs of this machine"));
    }
    let root = Directory::open(&lower).map_err(unusable)?;
    for name in DIRECTORIES {
        let found = root.stat(constant(name)).map_err(unusable)?;
        if found.is_some_and(|found| !is_directory(&found)) {
            return Err(Error::invalid_input(format!("/{name} of the image is not a directory"))
                .with_hint("a link there could lead anywhere; replace it in the image with an empty directory"));
        }
    }
    Ok(RootTree {
        files: missing_files(&root, &lower)?,
        lower: Some(lower),
        binds: Vec::new(),
        links: Vec::new(),
        directories: Vec::new(),
        search_path: SEARCH_PATH.to_owned(),
        environment: environment(),
    })
}

fn missing_files(root: &Directory, lower: &Path) -> Result<Vec<super::SyntheticFile>> {
    let etc = root.descend([constant("etc")], Missing::Fail).ok();
    let mut files = etc::made_up(lower)?;
    files.retain(|file| {
        let name = file.path.file_name().and_then(Name::new);
        let there = etc.as_ref().zip(name).and_then(|(etc, name)| etc.stat(name).ok().flatten());
        there.is_none() || ALWAYS.iter().any(|always| always.as_bytes() == file.path.as_bytes())
    });
    Ok(files)
}

fn constant(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).expect("names of directories in a root are constants")
}

/// The tree of an archive, unpacked to `store` unless it has been before.
pub fn archive_tree(path: &Path, state: &Path, store: &Path) -> Result<RootTree> {
    let store = images::Store::open(store).map_err(super::image_error)?;
    let lower = images::archive::unpacked(&store, path, &images::Limits::default()).map_err(|error| match error {
        images::Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::not_found("the image's archive cannot be opened").with_cause(error)
        }
        other => super::image_error(other),
    })?;
    directory_tree(&lower, state)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use sandbox::{ErrorKind, Image};

    use super::super::resolve;
    use super::*;

    fn names(tree: &RootTree) -> Vec<String> {
        tree.files.iter().map(|file| file.path.to_string()).collect()
    }

    #[test]
    fn a_tree_keeps_its_own_files_and_gets_what_it_lacks() {
        let place = tempfile::tempdir().unwrap();
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(&state).unwrap();
        fs::write(root.join("etc/passwd"), "its own").unwrap();
        fs::write(root.join("etc/hosts"), "its own").unwrap();
        symlink("/etc/shadow", root.join("etc/group")).unwrap();
        let tree = resolve(&Image::Directory(root.clone()), &state).unwrap();
        assert_eq!(tree.lower, Some(root.canonicalize().unwrap()));
        assert_eq!(
            names(&tree),
            ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/shells"]
        );
    }

    #[test]
    fn links_in_the_place_of_mount_points_are_refused() {
        for name in DIRECTORIES {
            let place = tempfile::tempdir().unwrap();
            let (root, state) = (place.path().join("root"), place.path().join("state"));
            fs::create_dir_all(&root).unwrap();
            symlink("/tmp", root.join(name)).unwrap();
            let error = resolve(&Image::Directory(root), &state).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn the_host_s_own_root_and_our_state_are_no_images() {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("below/state");
        fs::create_dir_all(&state).unwrap();
        for path in [Path::new("/"), place.path(), &state] {
            let error = resolve(&Image::Directory(path.to_owned()), &state).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
        let missing = resolve(&Image::Directory(place.path().join("missing")), &state).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(!missing.message().contains("missing"), "the path is for the log");
    }

    #[test]
    fn an_archive_becomes_a_tree() {
        let place = tempfile::tempdir().unwrap();
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/tool"), "x").unwrap();
        let archive = place.path().join("root.tar");
        let made = std::process::Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&root).arg(".").status();
        assert!(made.unwrap().success());
        let tree = resolve(&Image::Archive(archive.clone()), &state).unwrap();
        assert_eq!(fs::read_to_string(tree.lower.clone().unwrap().join("bin/tool")).unwrap(), "x");
        assert_eq!(resolve(&Image::Archive(archive.clone()), &state).unwrap(), tree);
        assert_eq!(names(&tree).len(), 7);

        fs::write(&archive, "not an archive, but long enough to look like one").unwrap();
        let error = resolve(&Image::Archive(archive), &state).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        let missing = resolve(&Image::Archive(place.path().join("missing.tar")), &state).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
