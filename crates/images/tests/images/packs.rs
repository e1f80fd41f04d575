//! Layers that are packed again.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use images::pack::{PackedOwners, Rules, Shift, pack};
use images::{Digest, Directory, Error, ImageConfig, ImageLimits, Limits, Writing};
use tar::EntryType;
use tokio_util::sync::CancellationToken;

use crate::archive::{Archive, Layout};
use crate::place::{Place, names, reference};

fn layer() -> Archive {
    let long = format!("{}/{}", "d".repeat(90), "f".repeat(9));
    Archive::new()
        .directory("etc", 0o755)
        .file("etc/.wh.gone", "")
        .file("etc/kept", "contents")
        .hard_link("etc/other", "etc/kept")
        .symlink("etc/link", "/etc/kept")
        .directory("var", 0o1777)
        .file("var/.wh..wh..opq", "")
        .owned_by(1234, 5678)
        .entry(EntryType::Regular, "var/mine", "", b"x", 0o640)
        .file(&long, "long")
}

fn packed(tree: &Path, shift: Shift) -> (Vec<u8>, images::pack::Packed) {
    let mut bytes = Vec::new();
    let done = pack(&Directory::open(tree).unwrap(), shift, &mut bytes, &CancellationToken::new()).unwrap();
    assert_eq!((done.digest, done.size), (Digest::of(&bytes), bytes.len() as u64));
    (bytes, done)
}

/// Path, mode, user and group of each entry.
fn list(archive: &[u8]) -> Vec<(String, u32, u64, u64)> {
    let mut listed = Vec::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        let path = entry.path().unwrap().display().to_string();
        listed.push((path, header.mode().unwrap(), header.uid().unwrap(), header.gid().unwrap()));
    }
    listed
}

#[test]
fn what_is_packed_unpacks_to_the_same() {
    let place = Place::new();
    place.import(&Layout::new(&[layer().bytes()]).tar()).unwrap();
    let tree = place.image().layers[0].path.clone();
    let (bytes, done) = packed(&tree, Shift::of_layers());
    assert_eq!((done.entries, done.left_out), (10, 0));
    assert_eq!(packed(&tree, Shift::of_layers()).0, bytes, "the same tree gives the same bytes");
    let listed = list(&bytes);
    assert!(listed.contains(&("etc/.wh.gone".to_owned(), 0o600, 0, 0)), "{listed:?}");
    assert!(listed.contains(&("var/.wh..wh..opq".to_owned(), 0o600, 0, 0)), "{listed:?}");
    assert!(listed.contains(&("var/mine".to_owned(), 0o640, 1234, 5678)), "{listed:?}");
    assert!(listed.contains(&("var/".to_owned(), 0o1777, 0, 0)), "{listed:?}");

    let again = Place::new();
    again.import(&Layout::new(std::slice::from_ref(&bytes)).tar()).unwrap();
    let second = again.image().layers[0].path.clone();
    assert_eq!(list(&packed(&second, Shift::of_layers()).0), listed, "and so does what it unpacks to");
    assert_eq!(fs::metadata(second.join("etc/kept")).unwrap().nlink(), 2);
}

#[test]
fn owners_are_those_inside() {
    if !rustix::process::geteuid().is_root() {
        _ = writeln!(std::io::stdout(), "SKIPPED: only root can give files away");
        return;
    }
    let tree = tempfile::tempdir().unwrap();
    for (name, owner) in [("root", 100_000), ("user", 101_000), ("stranger", 5), ("beyond", 165_536)] {
        fs::write(tree.path().join(name), "").unwrap();
        std::os::unix::fs::chown(tree.path().join(name), Some(owner), Some(owner)).unwrap();
    }
    let (bytes, _) = packed(tree.path(), Shift { first_user: 100_000, first_group: 100_000, count: 65_536 });
    let mut archive = tar::Archive::new(&bytes[..]);
    let owners: Vec<(String, u64)> = archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.path().unwrap().display().to_string(), entry.header().uid().unwrap())
        })
        .collect();
    let expected = [("beyond", 0), ("root", 0), ("stranger", 0), ("user", 1000)];
    assert_eq!(owners, expected.map(|(name, owner)| (name.to_owned(), owner)));
}

/// Code in a sandbox chooses the names of its files. None of them may remove something from an image.
#[test]
fn names_that_would_remove_something_are_left_out() {
    let place = Place::new();
    let tree = place.top.path().join("naive");
    fs::create_dir_all(tree.join("etc")).unwrap();
    for name in [".wh.passwd", ".wh..wh..opq", ".wh."] {
        fs::write(tree.join("etc").join(name), "").unwrap();
    }
    symlink(place.outside(), tree.join("link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let (bytes, done) = packed(&tree, Shift::of_layers());
    assert_eq!((done.entries, done.left_out), (2, 4));
    assert!(!bytes.windows(9).any(|window| window == b"untouched"), "no link is followed");
}

#[test]
fn a_packed_tree_becomes_the_top_of_an_image() {
    let place = Place::new();
    place.import(&Layout::new(&[Archive::new().file("base", "1").bytes()]).tar()).unwrap();
    let base = place.image();
    let upper = place.top.path().join("naive");
    fs::create_dir(&upper).unwrap();
    fs::write(upper.join("new"), "2").unwrap();
    let cancel = CancellationToken::new();
    let writing = Writing::begin(&place.store).unwrap();
    let (descriptor, packed) = writing.pack(&Directory::open(&upper).unwrap(), Shift::default(), &cancel).unwrap();
    let mut config: ImageConfig = base.config.clone();
    config.rootfs.diff_ids.push(packed.digest);
    let mut layers = base.manifest.layers.clone();
    layers.push(descriptor);
    let limits = ImageLimits::default();
    let image = writing.assemble(config, layers, &limits).unwrap();
    writing.unpack_all(&image, &limits, &cancel).unwrap();
    writing.name(&reference("saved:1"), &image).unwrap();
    let saved = place.store.resolve(&reference("saved:1")).unwrap().unwrap();
    let shown: Vec<_> = saved.directories().flat_map(|path| names(path)).collect();
    assert_eq!(shown, ["base", "new"]);

    // An overlay takes no directory twice, and the higher one says all that the lower one does.
    let mut config = saved.config.clone();
    config.rootfs.diff_ids.push(config.rootfs.diff_ids[0]);
    let layers = [&saved.manifest.layers[..], &saved.manifest.layers[..1]].concat();
    let image = writing.assemble(config, layers, &limits).unwrap();
    writing.name(&reference("twice:1"), &image).unwrap();
    let twice = place.store.resolve(&reference("twice:1")).unwrap().unwrap();
    assert_eq!(twice.directories().flat_map(|path| names(path)).collect::<Vec<_>>(), ["new", "base"]);
    assert_eq!(twice.directories_below(1).flat_map(|path| names(path)).collect::<Vec<_>>(), ["base", "new"]);
}

fn refused<'a>(tree: &Path, rules: impl Into<Rules<'a>>) -> Error {
    pack(&Directory::open(tree).unwrap(), rules, std::io::sink(), &CancellationToken::new()).unwrap_err()
}

/// What can be written down in a moment takes the reader for ever, or the disk whole.
#[test]
fn more_than_an_image_may_be_is_not_packed() {
    let tree = tempfile::tempdir().unwrap();
    let sparse = fs::File::create(tree.path().join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert!(matches!(refused(tree.path(), Shift::default()), Error::LimitExceeded(_)));
    sparse.set_len(0).unwrap();

    let limits = Limits { depth: 3, ..Limits::default() };
    fs::create_dir_all(tree.path().join("1/2/3")).unwrap();
    let rules = || Rules { limits, ..Shift::default().into() };
    pack(&Directory::open(tree.path()).unwrap(), rules(), std::io::sink(), &CancellationToken::new()).unwrap();
    fs::create_dir(tree.path().join("1/2/3/4")).unwrap();
    assert!(matches!(refused(tree.path(), rules()), Error::LimitExceeded(_)));
    let limits = Limits { entries: 4, ..Limits::default() };
    assert!(matches!(refused(tree.path(), Rules { limits, ..Shift::default().into() }), Error::LimitExceeded(_)));
}

#[test]
fn what_is_no_part_of_a_tree_is_not_in_the_layer() {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir_all(tree.path().join("etc")).unwrap();
    fs::create_dir_all(tree.path().join("run/inside")).unwrap();
    fs::create_dir_all(tree.path().join("srv/run")).unwrap();
    for name in ["hosts", "hosts.allow"] {
        fs::write(tree.path().join("etc").join(name), "").unwrap();
    }
    let mut bytes = Vec::new();
    let rules = Rules { without: &["run", "etc/hosts"], ..Shift::default().into() };
    let done = pack(&Directory::open(tree.path()).unwrap(), rules, &mut bytes, &CancellationToken::new()).unwrap();
    let paths: Vec<String> = list(&bytes).into_iter().map(|(path, ..)| path).collect();
    assert_eq!((paths, done.left_out), (["etc/", "etc/hosts.allow", "srv/", "srv/run/"].map(str::to_owned).into(), 0));
}

#[test]
fn a_tree_for_everybody_can_be_read_by_everybody() {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("closed")).unwrap();
    for (name, mode) in [("closed", 0o700), ("closed/secret", 0o600), ("closed/tool", 0o711)] {
        let path = tree.path().join(name);
        if !path.exists() {
            fs::write(&path, "").unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut bytes = Vec::new();
    let rules = Rules { owners: PackedOwners::Everybody, ..Shift::default().into() };
    pack(&Directory::open(tree.path()).unwrap(), rules, &mut bytes, &CancellationToken::new()).unwrap();
    let expected = [("closed/", 0o755), ("closed/secret", 0o644), ("closed/tool", 0o755)];
    assert_eq!(list(&bytes), expected.map(|(path, mode)| (path.to_owned(), mode, 0, 0)));
}

/// Calls what it was given with the first bytes that come.
struct Meddling<F: FnMut()>(F);

impl<F: FnMut()> std::io::Write for Meddling<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (self.0)();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_changes_while_it_is_packed_is_noticed() {
    let tree = tempfile::tempdir().unwrap();
    let (first, second) = (tree.path().join("first"), tree.path().join("second"));
    let outcome = |meddle: &dyn Fn()| {
        fs::write(&first, "1".repeat(64 << 10)).unwrap();
        fs::write(&second, "2").unwrap();
        let directory = Directory::open(tree.path()).unwrap();
        pack(&directory, Shift::default(), Meddling(meddle), &CancellationToken::new())
    };
    assert!(matches!(outcome(&|| fs::write(&first, "shorter").unwrap()), Err(Error::Unavailable(_))));
    assert!(matches!(outcome(&|| fs::write(&first, "3".repeat(64 << 10)).unwrap()), Err(Error::Unavailable(_))));
    let gone = || drop(fs::remove_file(&second));
    assert_eq!(outcome(&gone).unwrap().entries, 1, "what went away before it was looked at is not there");
    assert_eq!(outcome(&|| ()).unwrap().entries, 2);
}
