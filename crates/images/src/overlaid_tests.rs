use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::XattrFlags;
use tempfile::TempDir;

use super::*;

/// Trees of files whose contents are the numbers of their trees, the highest first.
fn trees(all: &[&[&str]]) -> (TempDir, Overlaid) {
    let place = tempfile::tempdir().unwrap();
    for (number, files) in all.iter().enumerate() {
        let tree = place.path().join(number.to_string());
        fs::create_dir(&tree).unwrap();
        for file in *files {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, number.to_string()).unwrap();
        }
    }
    let overlaid = open(&place, all.len());
    (place, overlaid)
}

fn open(place: &TempDir, count: usize) -> Overlaid {
    let open = |number: usize| Directory::open(&place.path().join(number.to_string())).unwrap();
    Overlaid::of_layers((0..count).map(open).collect())
}

fn read(tree: &Overlaid, path: &str) -> Option<String> {
    match tree.follow(path.as_bytes(), Leaving::StaysAtRoot).ok()?.node? {
        Node::File(leaf) => Some(io::read_to_string(leaf.open().unwrap()).unwrap()),
        Node::Directory(_) | Node::Link(..) | Node::Special(_) => None,
    }
}

#[test]
fn the_highest_has_its_way_and_directories_are_one() {
    let (_place, tree) = trees(&[&["etc/one", "file/below"], &["etc/one", "etc/two", "file"]]);
    assert_eq!(read(&tree, "/etc/one").as_deref(), Some("0"));
    assert_eq!(read(&tree, "etc/./two").as_deref(), Some("1"));
    assert_eq!(read(&tree, "file"), None, "a directory covers a file");
    let Some(Node::Directory(etc)) = tree.find(b"etc").unwrap() else { panic!("no directory") };
    assert_eq!(etc.names().unwrap().into_iter().collect::<Vec<_>>(), [b"one".to_vec(), b"two".to_vec()]);
}

#[test]
fn what_is_removed_or_hidden_is_not_there() {
    let (place, _) = trees(&[&["opaque/x"], &["opaque/below/file", "gone/file", "etc/passwd"], &["gone/deep"]]);
    let top = place.path().join("0");
    Directory::open(&top).unwrap().make_whiteout(Name::new(b"gone").unwrap()).unwrap();
    let opaque = Directory::open(&top.join("opaque")).unwrap();
    rustix::fs::fsetxattr(&opaque, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    let tree = open(&place, 3);
    for path in ["gone/file", "gone/deep", "gone", "opaque/below/file"] {
        assert!(tree.follow(path.as_bytes(), Leaving::StaysAtRoot).unwrap().node.is_none(), "{path}");
    }
    assert_eq!(read(&tree, "opaque/x").as_deref(), Some("0"));
    let root = Directory::open(&top).unwrap();
    rustix::fs::fsetxattr(&root, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    assert_eq!(read(&open(&place, 3), "etc/passwd"), None);
}

#[test]
fn links_lead_to_places_of_the_tree_and_never_out() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("canary"), "outside").unwrap();
    let (place, tree) = trees(&[&["inner/x"], &["data/file"]]);
    let top = place.path().join("0");
    symlink("/data", top.join("absolute")).unwrap();
    symlink("../../../data/file", top.join("inner/up")).unwrap();
    symlink(outside.path(), top.join("outside")).unwrap();
    symlink("/proc/self/root", top.join("magic")).unwrap();
    symlink("loop", top.join("loop")).unwrap();
    symlink("inner", top.join("first")).unwrap();
    symlink("first/../inner/x", top.join("second")).unwrap();
    assert_eq!(read(&tree, "absolute/file").as_deref(), Some("1"));
    assert_eq!(read(&tree, "inner/up").as_deref(), Some("1"));
    assert_eq!(read(&tree, "second").as_deref(), Some("0"));
    assert_eq!(read(&tree, "../../data/file").as_deref(), Some("1"));
    let place_of = |path: &str| tree.follow(path.as_bytes(), Leaving::StaysAtRoot);
    assert!(place_of("outside/canary").unwrap().node.is_none());
    assert!(place_of("magic/etc").unwrap().node.is_none());
    assert!(matches!(place_of("loop"), Err(Lost::TooManyLinks)));
    assert!(matches!(place_of("inner/x/below"), Err(Lost::NoDirectory)));
    assert_eq!(place_of("absolute/new/name").unwrap().path, b"data/new/name");
    for path in ["absolute/file", "inner/up", "outside/canary", "..", "inner/../../data"] {
        let refused = tree.follow(path.as_bytes(), Leaving::Refused);
        assert!(matches!(refused, Err(Lost::Outside)), "{path}: {refused:?}");
    }
    assert!(tree.follow(b"second", Leaving::Refused).unwrap().node.is_some());
}
