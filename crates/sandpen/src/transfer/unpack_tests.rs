use std::fs;
use std::path::Path;

use sandbox::{ByteSize, ErrorKind, Limits};
use tar::{Builder, Header};

use super::*;

enum Piece {
    Directory(&'static str),
    File(&'static str, &'static str),
    Link(&'static str, &'static str),
}
use Piece::{Directory, File, Link};

/// Written by hand, because the tar library refuses to write the names that an attacker would.
fn stream(pieces: &[Piece]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for piece in pieces {
        let (kind, name, target, content) = match piece {
            Directory(name) => (EntryType::Directory, name, "", ""),
            File(name, content) => (EntryType::Regular, name, "", *content),
            Link(name, target) => (EntryType::Symlink, name, *target, ""),
        };
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o4755);
        header.set_size(content.len() as u64);
        let fields = header.as_ustar_mut().unwrap();
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn unpacked(directory: &Path, pieces: &[Piece]) -> Result<Copied> {
    unpack(stream(pieces).as_slice(), &HostTree::open(directory)?, Limits::default().into(), Links::AsTheyAre)
}

#[test]
fn a_tree_arrives_whole_and_without_set_id_bits() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("new");
    let pieces = [Directory("d"), Directory("d/sub"), File("d/sub/f", "hello"), Link("d/l", "sub/f")];
    let copied = unpacked(&to, &pieces).unwrap();
    assert_eq!(copied, Copied { files: 1, directories: 2, links: 1, bytes: 5, skipped: 0 });
    assert_eq!(fs::read_to_string(to.join("l")).unwrap(), "hello");
    assert_eq!(fs::metadata(to.join("sub/f")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_dir(to.join("sub")).unwrap().count(), 1);
}

#[test]
fn nothing_is_written_through_a_link_of_the_same_copy() {
    let directory = tempfile::tempdir().unwrap();
    let (to, outside) = (directory.path().join("to"), directory.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    let pieces = [Link("d/x", "../outside"), File("d/x/planted", "bad")];
    let result = unpacked(&to, &pieces);
    assert!(result.is_err(), "a directory was replaced by a link");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn nothing_is_written_through_a_link_of_an_earlier_copy() {
    let directory = tempfile::tempdir().unwrap();
    let (to, outside) = (directory.path().join("to"), directory.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "good").unwrap();
    unpacked(&to, &[Link("d/x", "../outside"), Link("d/y", "../outside/file")]).unwrap();

    let error = unpacked(&to, &[File("d/x/planted", "bad")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    unpacked(&to, &[File("d/y", "new")]).unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "good");
    assert_eq!(fs::read_to_string(to.join("y")).unwrap(), "new");
}

#[test]
fn of_the_links_that_are_wanted_those_come_that_lead_to_nothing_outside() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("to");
    let tree = HostTree::open(&to).unwrap();
    let paths = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect::<BTreeSet<_>>();
    let pieces = [
        Link("d/bin/tool", "../lib/tool"),
        Link("d/out", ".."),
        Link("d/bin/up", "../.."),
        Link("d/root", "/etc"),
        Link("d/around", "lib/../.."),
        Link("d/unwanted", "lib"),
        Link("d/file", "lib"),
        File("d/lib/tool", "x"),
        File("d/link", "x"),
    ];
    let links = paths(&["bin/tool", "out", "bin/up", "root", "around", "link"]);
    let wanted = Wanted { files: paths(&["lib/tool", "file"]), links };
    let received = unpack_some(stream(&pieces).as_slice(), &tree, Limits::default().into(), &wanted).unwrap();
    assert_eq!(received.paths, paths(&["bin/tool", "lib/tool"]));
    assert_eq!(fs::read_link(to.join("bin/tool")).unwrap(), Path::new("../lib/tool"));
    for name in ["out", "bin/up", "root", "around", "unwanted", "file", "link"] {
        assert!(to.join(name).symlink_metadata().is_err(), "{name}");
    }
}

#[test]
fn a_name_that_goes_up_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["d/../../planted", "../planted", "d/.."] {
        assert!(unpacked(&directory.path().join("to"), &[File(name, "bad")]).is_err(), "{name} was taken");
    }
    assert!(!directory.path().join("planted").exists());
}

#[test]
fn more_than_the_sandbox_may_hold_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { disk: ByteSize::new(8), ..Limits::default() };
    let tree = HostTree::open(directory.path()).unwrap();
    let bytes = stream(&[File("d/a", "12345"), File("d/b", "12345")]);
    let error = unpack(bytes.as_slice(), &tree, limits.into(), Links::AsTheyAre).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a"]);
}
