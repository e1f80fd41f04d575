//! Layers as an overlay takes them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use images::unpack::Owners;
use tar::EntryType;

use crate::archive::{Archive, Layout};
use crate::place::{Place, names};

fn tree(layer: Archive) -> (Place, std::path::PathBuf) {
    let place = Place::new();
    place.import(&Layout::new(&[layer.bytes()]).tar()).unwrap();
    let path = place.image().layers[0].path.clone();
    (place, path)
}

fn attribute(path: &Path, name: &str) -> Option<String> {
    let mut value = [0u8; 64];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    Some(String::from_utf8_lossy(&value[..length]).into_owned())
}

fn is_whiteout(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == 0)
}

fn is_opaque(path: &Path) -> bool {
    attribute(path, "user.overlay.opaque").as_deref() == Some("y")
}

#[test]
fn what_a_layer_removes_becomes_a_whiteout() {
    let (_place, tree) = tree(
        Archive::new()
            .directory("etc", 0o755)
            .file("etc/.wh.gone", "")
            .file("etc/kept", "x")
            .file("var/.wh..wh..opq", "")
            .file(".wh..wh.aufs", ""),
    );
    assert!(is_whiteout(&tree.join("etc/gone")));
    assert!(is_opaque(&tree.join("var")) && !is_opaque(&tree.join("etc")));
    assert_eq!(names(&tree).len(), 2);
    assert_eq!(fs::read_to_string(tree.join("etc/kept")).unwrap(), "x");
}

/// Whatever the order, what the layer itself has stays, and shows nothing of what it removed.
#[test]
fn what_a_layer_removes_and_has_is_there_anew() {
    let orders = [
        Archive::new().file(".wh.a", "").directory("a", 0o700).file("a/new", "x").file(".wh.f", "").file("f", "y"),
        Archive::new().directory("a", 0o700).file("a/new", "x").file(".wh.a", "").file("f", "y").file(".wh.f", ""),
        Archive::new().file(".wh.a", "").file("a/new", "x").directory("a", 0o700).file("f", "y").file(".wh.f", ""),
    ];
    for order in orders {
        let (_place, tree) = tree(order);
        assert!(is_opaque(&tree.join("a")));
        assert_eq!(fs::read_to_string(tree.join("a/new")).unwrap(), "x");
        assert_eq!(fs::metadata(tree.join("a")).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::read_to_string(tree.join("f")).unwrap(), "y");
    }
}

#[test]
fn owners_are_kept_by_root_and_noted_by_others() {
    let (_place, tree) = tree(
        Archive::new()
            .file("root", "x")
            .owned_by(1234, 5678)
            .directory("home", 0o700)
            .entry(EntryType::Regular, "home/file", "", b"x", 0o400)
            .hard_link("home/other", "home/file")
            .symlink("home/link", "file"),
    );
    for (path, owner) in
        [("root", (0, 0)), ("home", (1234, 5678)), ("home/file", (1234, 5678)), ("home/link", (1234, 5678))]
    {
        let path = tree.join(path);
        let found = fs::symlink_metadata(&path).unwrap();
        match Owners::for_caller() {
            Owners::Kept | Owners::Mapped | Owners::Known => {
                assert_eq!((found.uid(), found.gid()), owner, "{}", path.display())
            }
            Owners::Noted => {
                let noted = (owner != (0, 0) && !found.is_symlink()).then(|| format!("{}:{}", owner.0, owner.1));
                assert_eq!(attribute(&path, "user.sandpen.owner"), noted, "{}", path.display());
                assert_eq!(found.uid(), rustix::process::geteuid().as_raw());
            }
        }
    }
    assert_eq!(fs::metadata(tree.join("home/file")).unwrap().mode() & 0o7777, 0o400);
    assert_eq!(fs::metadata(tree.join("home/other")).unwrap().nlink(), 2);
}

#[test]
fn owners_that_there_cannot_be_are_refused() {
    for owner in [(u64::from(u32::MAX), 0), (0, 1 << 32), (1 << 40, 1)] {
        let place = Place::new();
        let layer = Archive::new().owned_by(owner.0, owner.1).file("file", "x").bytes();
        let imported = place.import(&Layout::new(&[layer]).tar());
        assert!(matches!(imported, Err(images::Error::Refused(_))), "{owner:?}: {imported:?}");
        place.assert_nothing_came();
    }
}

/// As `tar` writes a link that has two names. The second name is the link, not what it leads to.
#[test]
fn a_link_may_have_several_names() {
    let (_place, tree) = tree(Archive::new().symlink("link", "/etc/passwd").hard_link("other", "link"));
    assert_eq!(fs::read_link(tree.join("other")).unwrap(), Path::new("/etc/passwd"));
    let place = Place::new();
    let through = Archive::new().symlink("link", "/etc").hard_link("other", "link/passwd").bytes();
    assert!(matches!(place.import(&Layout::new(&[through]).tar()), Err(images::Error::Refused(_))));
    place.assert_nothing_came();
}

/// A directory without rights for its owner keeps its mode for root, and can be removed by everybody.
#[test]
fn closed_directories_do_not_get_in_the_way() {
    let (place, tree) = tree(Archive::new().directory("closed", 0o055).file("closed/file", "x"));
    let mode = fs::metadata(tree.join("closed")).unwrap().mode() & 0o7777;
    assert_eq!(mode, if Owners::for_caller() == Owners::Kept { 0o055 } else { 0o755 });
    place.store.remove_name(&crate::place::reference("test:1")).unwrap();
    assert_eq!(place.store.collect().unwrap().layers, 1);
    assert!(!tree.exists());
}

/// The layers below it are not part of the image, as an overlay cannot know it of its own root.
#[test]
fn a_layer_that_hides_everything_is_the_lowest() {
    let place = Place::new();
    let layers = [
        Archive::new().file("old", "x").bytes(),
        Archive::new().file(".wh..wh..opq", "").file("new", "x").bytes(),
        Archive::new().file("newest", "x").bytes(),
    ];
    place.import(&Layout::new(&layers).tar()).unwrap();
    let image = place.image();
    assert_eq!(image.layers.len(), 3);
    let shown: Vec<_> = image.directories().flat_map(|path| names(path)).collect();
    assert_eq!(shown, ["new", "newest"]);
}
