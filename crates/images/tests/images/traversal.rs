//! SU-01: layers that try to get out of their directory.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use images::Error;
use tar::EntryType;

use crate::archive::{Archive, Layout};
use crate::naive;
use crate::place::Place;

/// The case does harm to whoever believes it, and none here: it is refused, alone and on top of an honest layer.
#[track_caller]
fn refused(make: impl Fn(&Path) -> Archive) {
    let control = Place::new();
    let directory = control.top.path().join("naive");
    fs::create_dir(&directory).unwrap();
    naive::unpack(&make(&control.outside()).bytes(), &directory);
    assert!(control.is_harmed(), "the control: this archive is harmless");

    for below in [None, Some(Archive::new().directory("directory", 0o755).bytes())] {
        let place = Place::new();
        let layers: Vec<Vec<u8>> = below.into_iter().chain([make(&place.outside()).bytes()]).collect();
        let imported = place.import(&Layout::new(&layers).tar());
        assert!(matches!(imported, Err(Error::Refused(_))), "{imported:?}");
        assert!(!place.is_harmed());
        assert!(place.store.names().unwrap().is_empty());
        let plain = Place::new();
        let imported = plain.import(&make(&plain.outside()).bytes());
        assert!(matches!(imported, Err(Error::Refused(_))), "as a root tree: {imported:?}");
        plain.assert_nothing_came();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn names_that_go_up() {
    refused(|_| Archive::new().file("../outside/escape", "x"));
    refused(|_| Archive::new().directory("a", 0o755).file("a/../../outside/escape", "x"));
    refused(|_| Archive::new().symlink("../outside/link", "x"));
}

#[test]
fn absolute_names() {
    refused(|outside| Archive::new().file(&format!("{}/escape", text(outside)), "x"));
}

#[test]
fn linked_parents() {
    refused(|outside| Archive::new().symlink("link", text(outside)).file("link/escape", "x"));
    refused(|_| Archive::new().symlink("a", "../outside").symlink("b", "a").file("b/escape", "x"));
    refused(|outside| Archive::new().symlink("link", text(outside)).directory("link", 0o700));
}

#[test]
fn hard_links_out() {
    refused(|_| Archive::new().hard_link("stolen", "../outside/canary"));
    refused(|outside| Archive::new().symlink("link", text(outside)).hard_link("stolen", "link/canary"));
}

#[test]
fn the_root_as_a_link() {
    refused(|outside| Archive::new().symlink("./.", text(outside)).file("escape", "x").file("../outside/x", ""));
    let place = Place::new();
    let imported = place.import(&Archive::new().symlink("./", text(&place.outside())).file("escape", "x").bytes());
    assert!(matches!(imported, Err(Error::Refused(_))), "{imported:?}");
    place.assert_nothing_came();
}

/// A file that replaces a link must not be written through it.
#[test]
fn a_file_over_a_link() {
    let make = |place: &Place| {
        let canary = place.outside().join("canary");
        Archive::new().symlink("file", text(&canary)).file("file", "harm").bytes()
    };
    let control = Place::new();
    fs::create_dir(control.top.path().join("naive")).unwrap();
    naive::unpack(&make(&control), &control.top.path().join("naive"));
    assert!(control.is_harmed());

    let place = Place::new();
    place.import(&make(&place)).unwrap();
    assert!(!place.is_harmed());
    assert_eq!(fs::read_to_string(place.image().layers[0].path.join("file")).unwrap(), "harm");
}

/// Marks of removal are names too.
#[test]
fn whiteouts_that_go_up() {
    for path in [".wh...", ".wh..", ".wh.", "a/.wh...", ".wh.a/b", "a/.wh..wh..opq/b", "../outside/.wh.canary"] {
        let place = Place::new();
        let imported = place.import(&Layout::new(&[Archive::new().file(path, "").bytes()]).tar());
        assert!(matches!(imported, Err(Error::Refused(_))), "{path}: {imported:?}");
        place.assert_nothing_came();
    }
    let place = Place::new();
    let link = Archive::new().symlink("link", text(&place.outside())).file("link/.wh.canary", "").bytes();
    assert!(matches!(place.import(&Layout::new(&[link]).tar()), Err(Error::Refused(_))));
    let place = Place::new();
    let link = Archive::new().symlink("link", text(&place.outside())).file("link/.wh..wh..opq", "").bytes();
    assert!(matches!(place.import(&Layout::new(&[link]).tar()), Err(Error::Refused(_))));
    assert!(!place.is_harmed());
}

#[test]
fn devices_and_set_id_bits() {
    let archive = Archive::new()
        .entry(EntryType::Char, "null", "", b"", 0o666)
        .entry(EntryType::Block, "disk", "", b"", 0o666)
        .entry(EntryType::Fifo, "fifo", "", b"", 0o666)
        .entry(EntryType::Regular, "su", "", b"x", 0o6755)
        .entry(EntryType::Directory, "shared", "", b"", 0o2775)
        .bytes();
    let control = tempfile::tempdir().unwrap();
    naive::unpack(&archive, control.path());
    assert_eq!(fs::metadata(control.path().join("su")).unwrap().mode() & 0o7777, 0o6755, "the control");
    if rustix::process::geteuid().is_root() {
        let device = fs::symlink_metadata(control.path().join("null")).unwrap();
        assert!(device.file_type().is_char_device(), "the control, which only root can show");
    }

    let place = Place::new();
    place.import(&Layout::new(&[archive]).tar()).unwrap();
    let tree = &place.image().layers[0].path;
    assert_eq!(crate::place::names(tree).len(), 2);
    assert_eq!(fs::metadata(tree.join("su")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(tree.join("shared")).unwrap().mode() & 0o7777, 0o775);
}

/// Attributes of an overlay would let a layer show files of the layers below under other names.
#[test]
fn attributes_do_not_arrive() {
    let archive = Archive::new()
        .extended("SCHILY.xattr.user.overlay.redirect", b"/etc")
        .directory("directory", 0o755)
        .extended("SCHILY.xattr.user.overlay.opaque", b"y")
        .directory("other", 0o755)
        .bytes();
    let place = Place::new();
    place.import(&Layout::new(&[archive]).tar()).unwrap();
    for name in ["directory", "other"] {
        let path = place.image().layers[0].path.join(name);
        let mut names = [0u8; 256];
        let length = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
        assert_eq!(&names[..length], b"", "{name}");
        rustix::fs::setxattr(&path, "user.overlay.redirect", b"x", rustix::fs::XattrFlags::empty())
            .expect("the control");
    }
}
