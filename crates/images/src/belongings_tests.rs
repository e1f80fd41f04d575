use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::XattrFlags;

use super::*;
use crate::confined::Directory;
use crate::unpack::OWNER_ATTRIBUTE;

const ROOM: Bounds = Bounds { entries: 100, bytes: 1000 };
const ANN: Account = Account { user: 1000, group: 50 };

/// A tree of entries: path, mode, user and group. What ends in a slash is a directory; a file holds its path.
fn tree(place: &Path, entries: &[(&str, u32, u32, u32)]) -> Overlaid {
    for (path, mode, user, group) in entries {
        let at = place.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        match path.ends_with('/') {
            true => fs::create_dir_all(&at).unwrap(),
            false => fs::write(&at, path).unwrap(),
        }
        let file = File::open(&at).unwrap();
        let owner = format!("{user}:{group}");
        rustix::fs::fsetxattr(&file, OWNER_ATTRIBUTE, owner.as_bytes(), XattrFlags::empty()).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(*mode)).unwrap();
    }
    Overlaid::of_layers(vec![Directory::open(place).unwrap()])
}

/// What is written: path, mode, user and group.
fn written(tree: &Overlaid, bounds: Bounds) -> (Vec<(String, u32, u64, u64)>, Belongings) {
    let place = tempfile::tempdir().unwrap();
    let file = File::create(place.path().join("layer")).unwrap();
    let found = write(tree, ANN, bounds, &file).unwrap();
    let bytes = fs::read(place.path().join("layer")).unwrap();
    assert_eq!(Digest::of(&bytes), found.digest);
    let mut archive = tar::Archive::new(&bytes[..]);
    let entries = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let header = entry.header();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        (path, header.mode().unwrap(), header.uid().unwrap(), header.gid().unwrap())
    });
    (entries.collect(), found)
}

fn paths(written: &[(String, u32, u64, u64)]) -> Vec<&str> {
    written.iter().map(|(path, ..)| &**path).collect()
}

#[test]
fn what_is_the_user_s_is_written_with_the_way_to_it() {
    let place = tempfile::tempdir().unwrap();
    let tree = tree(
        place.path(),
        &[
            ("srv/", 0o751, 0, 7),
            ("srv/open/", 0o755, 0, 7),
            ("opt/", 0o755, 3, 4),
            ("opt/own/", 0o755, 1000, 50),
            ("opt/own/root-s", 0o644, 0, 0),
            ("opt/own/mine", 0o600, 1000, 0),
            ("opt/group", 0o640, 0, 50),
            ("opt/group-too", 0o644, 0, 50),
            ("opt/all", 0o666, 0, 0),
            ("usr/other", 0o600, 33, 33),
        ],
    );
    let (written, found) = written(&tree, ROOM);
    assert_eq!(paths(&written), ["opt/", "opt/own/", "opt/all", "opt/group", "opt/own/mine"]);
    assert_eq!(written[0], ("opt/".to_owned(), 0o755, 3, 4));
    assert_eq!(written[4], ("opt/own/mine".to_owned(), 0o600, 1000, 0));
    assert_eq!((found.entries, found.left_out), (5, 0));
    assert_eq!(found.bytes, ["opt/all", "opt/group", "opt/own/mine"].map(str::len).iter().sum::<usize>() as u64);
}

#[test]
fn a_closed_directory_is_written_as_a_whole_or_not_at_all() {
    let place = tempfile::tempdir().unwrap();
    let entries = [
        ("home/ann/", 0o700, 1000, 50),
        ("home/ann/sub/", 0o755, 0, 0),
        ("home/ann/sub/root-s", 0o600, 0, 0),
        ("root/", 0o700, 0, 0),
        ("root/ann-s", 0o644, 1000, 50),
    ];
    let tree = tree(place.path(), &entries);
    std::os::unix::fs::symlink("sub", place.path().join("home/ann/link")).unwrap();
    let (all, found) = written(&tree, ROOM);
    let expected =
        ["home/", "home/ann/", "home/ann/.wh..wh..opq", "home/ann/link", "home/ann/sub/", "home/ann/sub/root-s"];
    assert_eq!(paths(&all), expected, "nobody gets to what is in root's");
    assert_eq!(found.entries, 6);
    for bounds in [Bounds { entries: 5, ..ROOM }, Bounds { bytes: 18, ..ROOM }] {
        let (some, found) = written(&tree, bounds);
        assert_eq!((paths(&some), found.left_out), (vec![], 1), "{bounds:?}");
    }
    assert_eq!(written(&tree, Bounds { entries: 6, bytes: 19 }).0.len(), 6);
}

#[test]
fn directories_go_before_files_and_no_bound_is_passed() {
    let place = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..4).flat_map(|number| [format!("d{number}/"), format!("d{number}/file")]).collect();
    let entries: Vec<(&str, u32, u32, u32)> = names.iter().map(|name| (&**name, 0o755, 1000, 50)).collect();
    let tree = tree(place.path(), &entries);
    let (some, found) = written(&tree, Bounds { entries: 5, ..ROOM });
    assert_eq!(paths(&some), ["d0/", "d1/", "d2/", "d3/", "d0/file"]);
    assert_eq!((found.entries, found.left_out), (5, 3));
    let (some, found) = written(&tree, Bounds { bytes: 14, ..ROOM });
    assert_eq!((some.len(), found.bytes, found.left_out), (6, 14, 2));
}

#[test]
fn an_image_without_anything_of_the_user_s_gives_nothing() {
    let place = tempfile::tempdir().unwrap();
    let tree = tree(place.path(), &[("bin/sh", 0o755, 0, 0), ("tmp/", 0o755, 0, 0)]);
    assert_eq!(written(&tree, ROOM).1.entries, 0);
}

#[test]
fn what_nobody_can_read_is_left_out_and_no_failure() {
    let opened = |kind: io::ErrorKind| readable::<()>(Err(kind.into()));
    assert!(opened(io::ErrorKind::PermissionDenied).unwrap().is_none());
    assert!(opened(io::ErrorKind::NotFound).is_err());
    assert!(readable(Ok(())).unwrap().is_some());
}
