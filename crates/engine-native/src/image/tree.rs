//! Images that are a whole root tree: a directory of the host, or an archive that was unpacked to one.
//!
//! Whoever made the tree is not trusted. It is looked at by descriptor, and what a mount or a made-up file must lie on
//! has to be a real directory.

use std::io;
use std::path::{Path, PathBuf};

use sandbox::user::{UserIds, UserTables};
use sandbox::{Error, Result, Role};

use super::layers::Layers;
use super::users::{self, User};
use super::{RootTree, SEARCH_PATH, environment, etc, named};

/// Where every sandbox has something of its own.
const DIRECTORIES: [&str; 5] = ["dev", "etc", "proc", "sys", "tmp"];

/// Of the made-up files, those that say where one is; the rest only fills gaps.
pub const ALWAYS: [&str; 3] = ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];

/// The tree in `path`. The state directory may not lie in it: a sandbox would see every other one.
pub fn directory_tree(path: &Path, state: &Path, role: Role) -> Result<RootTree> {
    let unusable = |error: std::io::Error| {
        let cause = std::io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Error::not_found("the image's directory cannot be opened").with_cause(cause)
    };
    let lower = path.canonicalize().map_err(unusable)?;
    if lower.parent().is_none() || state.canonicalize().is_ok_and(|state| state.starts_with(&lower)) {
        return Err(Error::invalid_input("the image's directory contains the state of all sandboxes")
            .with_hint("use the image host to work with the programs of this machine"));
    }
    let lowers = vec![lower];
    let layers = Layers::open(&lowers).map_err(unusable)?;
    for name in DIRECTORIES {
        let found = layers.find(name).map_err(unusable)?;
        if found.is_some_and(|found| !found.is_directory()) {
            return Err(not_a_directory(name));
        }
    }
    let tables = users::tables(&layers).map_err(unusable)?;
    // It names nobody, which is root.
    let user = users::runs_as(UserIds { id: 0, group: 0 }, role);
    let mut tree = over(lowers, &layers, &tables, user)?;
    if user == User::ROOT {
        tree.environment.extend(named::belongings(&layers, &tables, user));
    }
    Ok(tree)
}

pub fn not_a_directory(name: &str) -> Error {
    Error::invalid_input(format!("/{name} of the image is not a directory"))
        .with_hint("a link there could lead anywhere; replace it in the image with an empty directory")
}

/// An image with what lies over it: made-up files where it has none, and a line for the user where its own tables have
/// none.
pub fn over(lowers: Vec<PathBuf>, layers: &Layers, tables: &UserTables, user: User) -> Result<RootTree> {
    let unreadable = |cause: io::Error| Error::unavailable("the image's tree cannot be read").with_cause(cause);
    let has = |path: &str| layers.find(path).is_ok_and(|found| found.is_some());
    let shell = ["/bin/bash", "/usr/bin/bash"].into_iter().find(|shell| has(shell)).unwrap_or("/bin/sh");
    let completed = users::completed(tables, user, shell);
    let mut files = Vec::new();
    for mut file in etc::made_up(shell, user)? {
        let path = file.path.to_string_lossy().into_owned();
        let own = layers.find(&path).map_err(unreadable)?;
        if let Some(own) = own.filter(|_| !ALWAYS.contains(&&*path)) {
            let table = match &*path {
                "/etc/passwd" => &completed.users,
                "/etc/group" => &completed.groups,
                _ => &None,
            };
            // One that is not a file means something to the image, and stays as it is.
            let Some(table) = table.as_ref().filter(|_| own.is_file()) else { continue };
            file.contents = table.clone().into_bytes();
        }
        files.push(file);
    }
    Ok(RootTree {
        files,
        lowers,
        fill: Vec::new(),
        modes: Vec::new(),
        binds: Vec::new(),
        links: Vec::new(),
        directories: Vec::new(),
        top: layers.top_directories().map_err(unreadable)?,
        user,
        image_ids: None,
        belongings: None,
        search_path: SEARCH_PATH.to_owned(),
        environment: environment(),
    })
}

/// The tree of an archive, unpacked to `store` unless it has been before.
pub fn archive_tree(path: &Path, state: &Path, store: &Path, role: Role) -> Result<RootTree> {
    let store = images::Store::open(store).map_err(super::image_error)?;
    let lower = images::archive::unpacked(&store, path, &images::Limits::default()).map_err(|error| match error {
        images::Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::not_found("the image's archive cannot be opened").with_cause(error)
        }
        other => super::image_error(other),
    })?;
    directory_tree(&lower, state, role)
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
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
        fs::write(root.join("etc/hosts"), "its own").unwrap();
        symlink("/etc/shadow", root.join("etc/group")).unwrap();
        let tree = resolve(&Image::Directory(root.clone()), None, &state, None, Role::Guest).unwrap();
        assert_eq!(tree.lowers, [root.canonicalize().unwrap()]);
        assert_eq!(
            names(&tree),
            ["/etc/passwd", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/shells"]
        );
        let passwd = String::from_utf8(tree.files[0].contents.clone()).unwrap();
        assert_eq!(passwd, "root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n");
    }

    #[test]
    fn links_in_the_place_of_mount_points_are_refused() {
        for name in DIRECTORIES {
            let place = tempfile::tempdir().unwrap();
            let (root, state) = (place.path().join("root"), place.path().join("state"));
            fs::create_dir_all(&root).unwrap();
            symlink("/tmp", root.join(name)).unwrap();
            let error = resolve(&Image::Directory(root), None, &state, None, Role::Guest).unwrap_err();
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
            let error = resolve(&Image::Directory(path.to_owned()), None, &state, None, Role::Guest).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
        let missing =
            resolve(&Image::Directory(place.path().join("missing")), None, &state, None, Role::Guest).unwrap_err();
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
        let tree = resolve(&Image::Archive(archive.clone()), None, &state, None, Role::Guest).unwrap();
        assert_eq!(fs::read_to_string(tree.lowers[0].join("bin/tool")).unwrap(), "x");
        assert_eq!(tree.top, ["bin"]);
        assert_eq!(resolve(&Image::Archive(archive.clone()), None, &state, None, Role::Guest).unwrap(), tree);
        assert_eq!(names(&tree).len(), 7);

        fs::write(&archive, "not an archive, but long enough to look like one").unwrap();
        let error = resolve(&Image::Archive(archive), None, &state, None, Role::Guest).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        let missing =
            resolve(&Image::Archive(place.path().join("missing.tar")), None, &state, None, Role::Guest).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
