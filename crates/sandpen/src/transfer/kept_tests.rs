use std::os::unix::fs::{PermissionsExt, symlink};

use sandbox::FileStat;

use super::*;

fn entry(path: &str, kind: FileKind, bytes: u64, changed_ns: i128) -> DirectoryEntry {
    let stat = FileStat { kind, bytes, mode: 0o644, modified_ns: 0, changed_ns };
    DirectoryEntry { path: path.parse().unwrap(), stat }
}

fn seen(entries: &[(&str, FileKind, u64, i128)]) -> Seen {
    let entries = entries.iter().map(|(path, kind, bytes, changed)| entry(path, *kind, *bytes, *changed)).collect();
    Seen::new(&"/data".parse().unwrap(), entries)
}

fn texts(paths: &[Vec<u8>]) -> Vec<String> {
    paths.iter().map(|path| String::from_utf8(path.clone()).unwrap()).collect()
}

const SECOND: i128 = 1_000_000_000;

#[test]
fn only_what_differs_is_copied() {
    use FileKind::{Directory, Link, Other, Regular};
    let before = seen(&[
        ("/data/changed", Regular, 3, SECOND),
        ("/data/gone", Directory, 0, SECOND),
        ("/data/gone/a", Regular, 1, SECOND),
        ("/data/grown", Regular, 3, SECOND),
        ("/data/last", Regular, 1, 9 * SECOND),
        ("/data/replaced", Regular, 3, SECOND),
        ("/data/same", Regular, 3, SECOND),
        ("/data/turned", Regular, 3, SECOND),
    ]);
    let now = seen(&[
        ("/data/.run-abc.py", Regular, 9, 10 * SECOND),
        ("/data/changed", Regular, 3, 10 * SECOND),
        ("/data/grown", Regular, 4, SECOND),
        ("/data/last", Regular, 1, 9 * SECOND),
        ("/data/new", Directory, 0, 10 * SECOND),
        ("/data/new/deep", Regular, 1, 10 * SECOND),
        ("/data/pipe", Other, 0, 10 * SECOND),
        ("/data/replaced", Link, 3, 10 * SECOND),
        ("/data/same", Regular, 3, SECOND),
        ("/data/turned", Directory, 0, 10 * SECOND),
    ]);
    let plan = Plan::new(&before, &now);
    assert_eq!(texts(&plan.remove), ["turned", "replaced", "gone/a", "gone"]);
    assert_eq!(texts(&plan.make), ["new", "turned"]);
    // The last that was lent may have been changed in the same moment.
    assert_eq!(texts(&plan.copy), ["changed", "grown", "last", "new/deep"]);
}

#[test]
fn nothing_goes_when_nothing_was_there() {
    let now = seen(&[("/data/a", FileKind::Regular, 1, SECOND)]);
    assert_eq!(Plan::new(&Seen::default(), &now), Plan { copy: vec![b"a".to_vec()], ..Plan::default() });
    assert_eq!(Plan::new(&Seen::default(), &Seen::default()), Plan::default());
}

fn kept(directory: &std::path::Path) -> Kept {
    let limits = Limits { disk: ByteSize::new(100), ..Limits::default() };
    Kept::new(HostTree::open(directory).unwrap(), limits).unwrap()
}

#[test]
fn a_file_is_put_in_place_of_what_has_its_name_but_through_no_link() {
    let place = tempfile::tempdir().unwrap();
    let (directory, outside) = (place.path().join("kept"), place.path().join("outside"));
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    std::fs::write(&outside, "untouched").unwrap();
    symlink("../outside", directory.join("link")).unwrap();
    let kept = kept(&directory);
    kept.put(b"a", b"one").unwrap();
    kept.put(b"a", b"two").unwrap();
    kept.put(b"link", b"mine").unwrap();
    assert!(kept.put(b"sub", b"x").is_err());
    assert_eq!(std::fs::read_to_string(directory.join("a")).unwrap(), "two");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched");
    assert_eq!(kept.names().unwrap(), ["a", "link"]);
}

#[test]
fn a_conversation_has_its_bounds() {
    let place = tempfile::tempdir().unwrap();
    let kept = kept(place.path());
    kept.put(b"a", &[0; 60]).unwrap();
    assert_eq!(kept.put(b"b", &[0; 41]).unwrap_err().kind(), ErrorKind::LimitExceeded);
    kept.put(b"a", &[0; 100]).unwrap();
    assert_eq!(kept.names().unwrap(), ["a"]);
}

#[test]
fn what_a_copy_left_behind_is_taken_away() {
    let place = tempfile::tempdir().unwrap();
    let unfinished = format!(".{}.part", SandboxId::random().unwrap());
    std::fs::create_dir(place.path().join("sub")).unwrap();
    for name in [unfinished.as_str(), &format!("sub/{unfinished}"), ".sb-mine.part", "a.part"] {
        std::fs::write(place.path().join(name), "x").unwrap();
    }
    assert_eq!(kept(place.path()).names().unwrap(), [".sb-mine.part", "a.part"]);
    assert_eq!(std::fs::read_dir(place.path().join("sub")).unwrap().count(), 0);
}

#[test]
fn links_and_special_files_are_not_there() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("file"), "x").unwrap();
    std::fs::create_dir(place.path().join("directory")).unwrap();
    symlink("file", place.path().join("link")).unwrap();
    symlink(".", place.path().join("directory/up")).unwrap();
    let tree = HostTree::open(place.path()).unwrap();
    let open = |names: &[&str]| tree.open_below(names).unwrap();
    assert!(matches!(open(&["file"]), Opened::File(_)) && matches!(open(&["directory"]), Opened::Directory));
    for names in [&["link"][..], &["none"], &["file", "x"], &["directory", "up", "file"], &["link", "x"]] {
        assert!(matches!(open(names), Opened::Nothing), "{names:?}");
    }
    assert!(tree.existing("link".as_ref(), "x".as_ref()).unwrap().is_none());
    assert_eq!(kept(place.path()).names().unwrap(), ["file"]);
    let made = tree.below_private("new".as_ref(), "x".as_ref()).unwrap();
    assert!(made.names().unwrap().is_empty());
    let mode = std::fs::metadata(place.path().join("new")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
