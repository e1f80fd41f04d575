use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::*;

/// An archive made entry by entry, with names that a well-behaved writer would refuse.
struct Archive(Builder<Vec<u8>>);

impl Archive {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn entry(mut self, kind: EntryType, path: &[u8], link: &[u8], contents: &[u8], mode: u32) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(contents.len() as u64);
        header.set_mode(mode);
        header.set_mtime(1_000_000_000);
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path);
        old.linkname[..link.len()].copy_from_slice(link);
        header.set_cksum();
        self.0.append(&header, contents).unwrap();
        self
    }

    fn file(self, path: &str, contents: &str) -> Self {
        self.entry(EntryType::Regular, path.as_bytes(), b"", contents.as_bytes(), 0o644)
    }

    fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path.as_bytes(), b"", b"", mode)
    }

    fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path.as_bytes(), target.as_bytes(), b"", 0o777)
    }

    fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path.as_bytes(), target.as_bytes(), b"", 0o644)
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// A directory to unpack into, next to one that must not change.
struct Place {
    inside: tempfile::TempDir,
    outside: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("canary"), "untouched").unwrap();
        fs::set_permissions(outside.path().join("canary"), fs::Permissions::from_mode(0o604)).unwrap();
        Self { inside, outside }
    }

    fn unpack(&self, archive: &[u8]) -> Result<Summary> {
        self.unpack_within(archive, &Limits::default(), Links::Any)
    }

    fn unpack_within(&self, archive: &[u8], limits: &Limits, links: Links) -> Result<Summary> {
        let result = unpack(archive, &Directory::open(self.inside.path()).unwrap(), limits, links);
        self.check_outside();
        result
    }

    fn check_outside(&self) {
        let canary = self.outside.path().join("canary");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        let found = canary.metadata().unwrap();
        assert_eq!((found.mode() & 0o777, found.nlink()), (0o604, 1));
        assert_eq!(fs::read_dir(self.outside.path()).unwrap().count(), 1, "something was made outside");
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.inside.path().join(path)).unwrap()
    }

    fn mode(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.inside.path().join(path)).unwrap().mode() & 0o7777
    }
}

fn outside_name(place: &Place) -> String {
    place.outside.path().to_str().unwrap().to_owned()
}

#[track_caller]
fn refused(archive: Archive) {
    let result = Place::new().unpack(&archive.bytes());
    assert!(matches!(result, Err(Error::Refused(_))), "{result:?}");
}

#[track_caller]
fn too_much(archive: &[u8], limits: Limits) {
    let result = Place::new().unpack_within(archive, &limits, Links::Any);
    assert!(matches!(result, Err(Error::LimitExceeded(_))), "{result:?}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn an_ordinary_tree_arrives_whole() {
    let archive = Archive::new()
        .directory("./", 0o755)
        .directory("./usr/", 0o755)
        .directory("./usr/bin/", 0o555)
        .entry(EntryType::Regular, b"./usr/bin/tool", b"", b"#!/bin/sh\n", 0o755)
        .hard_link("./usr/bin/alias", "./usr/bin/tool")
        .symlink("./bin", "usr/bin")
        .symlink("./absolute", "/usr/bin/tool")
        .directory("./tmp/", 0o1777)
        .file("late/parent/file", "x")
        .bytes();
    for bytes in [archive.clone(), gzip(&archive)] {
        let place = Place::new();
        let summary = place.unpack(&bytes).unwrap();
        assert_eq!((summary.entries, summary.bytes, summary.left_out), (9, 11, 0));
        assert_eq!(place.read("bin/alias"), "#!/bin/sh\n");
        assert_eq!(place.mode("usr/bin/tool"), 0o755);
        assert_eq!(place.mode("usr/bin"), 0o755, "open to its owner");
        assert_eq!(place.mode("tmp"), 0o1777);
        assert_eq!(place.mode("late/parent"), 0o755);
        assert_eq!(fs::read_link(place.inside.path().join("absolute")).unwrap(), Path::new("/usr/bin/tool"));
        let modified = fs::metadata(place.inside.path().join("usr/bin/tool")).unwrap().mtime();
        assert_eq!(modified, 1_000_000_000);
    }
}

#[test]
fn no_name_leads_outside() {
    refused(Archive::new().file("../escape", "x"));
    refused(Archive::new().file("a/../../escape", "x"));
    refused(Archive::new().file("a/..", "x"));
    refused(Archive::new().file("/absolute", "x"));
    refused(Archive::new().directory("..", 0o777));
    refused(Archive::new().directory("/", 0o777));
    refused(Archive::new().symlink("../link", "x"));
    refused(Archive::new().hard_link("../link", "x"));
}

#[test]
fn no_link_is_gone_through() {
    let place = Place::new();
    let outside = outside_name(&place);
    for archive in [
        Archive::new().symlink("link", &outside).file("link/file", "x"),
        Archive::new().symlink("link", &outside).directory("link/directory", 0o777),
        Archive::new().symlink("link", &outside).directory("link", 0o777),
        Archive::new().symlink("link", &outside).symlink("link/link", "x"),
        Archive::new().symlink("link", &outside).hard_link("stolen", "link/canary"),
        Archive::new().symlink("a", "b").symlink("b", &outside).file("a/file", "x"),
        Archive::new().symlink("magic", "/proc/self/cwd").file("magic/file", "x"),
        Archive::new().file("file", "x").file("file/below", "x"),
    ] {
        refused(archive);
        place.check_outside();
    }
}

/// CVE-2026-33056: changing the mode of a directory entry went through a link of the same name.
#[test]
fn a_link_is_replaced_and_not_written_through() {
    let place = Place::new();
    let canary = format!("{}/canary", outside_name(&place));
    let archive = Archive::new().symlink("file", &canary).file("file", "mine").bytes();
    place.unpack(&archive).unwrap();
    assert_eq!(place.read("file"), "mine");
    assert!(!fs::symlink_metadata(place.inside.path().join("file")).unwrap().is_symlink());
}

#[test]
fn hard_links_lead_only_to_what_the_archive_made() {
    let place = Place::new();
    fs::write(place.inside.path().join("already-there"), "private").unwrap();
    let result = place.unpack(&Archive::new().hard_link("link", "already-there").bytes());
    assert!(matches!(result, Err(Error::Refused(_))), "{result:?}");

    refused(Archive::new().hard_link("link", "missing"));
    refused(Archive::new().hard_link("link", "/etc/passwd"));
    refused(Archive::new().hard_link("link", "../canary"));
    refused(Archive::new().directory("directory", 0o755).hard_link("link", "directory"));
    refused(Archive::new().symlink("symlink", "/etc/passwd").hard_link("link", "symlink"));

    let place = Place::new();
    place.unpack(&Archive::new().file("file", "x").hard_link("file", "file").bytes()).unwrap();
    assert_eq!(place.read("file"), "x");
}

#[test]
fn the_root_is_a_directory() {
    refused(Archive::new().symlink(".", "/etc"));
    refused(Archive::new().symlink("./", "/etc"));
    refused(Archive::new().file(".", "x"));
    refused(Archive::new().hard_link(".", "x"));
    let place = Place::new();
    place.unpack(&Archive::new().directory(".", 0o000).bytes()).unwrap();
    assert_ne!(fs::metadata(place.inside.path()).unwrap().mode() & 0o700, 0);
}

#[test]
fn devices_and_set_id_bits_do_not_arrive() {
    let place = Place::new();
    let summary = place
        .unpack(
            &Archive::new()
                .entry(EntryType::Char, b"dev/mem", b"", b"", 0o666)
                .entry(EntryType::Block, b"dev/sda", b"", b"", 0o666)
                .entry(EntryType::Fifo, b"fifo", b"", b"", 0o666)
                .entry(EntryType::Regular, b"su", b"", b"x", 0o6755)
                .entry(EntryType::Directory, b"directory", b"", b"", 0o2777)
                .bytes(),
        )
        .unwrap();
    assert_eq!(summary.left_out, 3);
    assert_eq!(place.mode("su"), 0o755);
    assert_eq!(place.mode("directory"), 0o777);
    assert!(!place.inside.path().join("dev").exists());
    refused(Archive::new().entry(EntryType::new(b'Z'), b"odd", b"", b"", 0o644));
}

#[test]
fn the_last_of_several_entries_counts() {
    let place = Place::new();
    let archive = Archive::new()
        .file("file", "one")
        .hard_link("other", "file")
        .file("file", "two")
        .symlink("link", "one")
        .symlink("link", "two")
        .directory("directory", 0o700)
        .directory("directory", 0o711);
    place.unpack(&archive.bytes()).unwrap();
    assert_eq!(place.read("file"), "two");
    assert_eq!(place.read("other"), "one", "a file is replaced, not overwritten");
    assert_eq!(fs::read_link(place.inside.path().join("link")).unwrap(), Path::new("two"));
    assert_eq!(place.mode("directory"), 0o711);
    refused(Archive::new().directory("both", 0o755).file("both", "x"));
    refused(Archive::new().file("both", "x").directory("both", 0o755));
}

#[test]
fn too_much_of_anything_is_refused() {
    let default = Limits::default();
    let four = || Archive::new().file("a", "1234").file("b", "1234").file("c", "1234").file("d", "1234").bytes();
    too_much(&four(), Limits { entries: 3, ..default });
    too_much(&four(), Limits { bytes: 15, ..default });
    too_much(&four(), Limits { path_bytes: 0, ..default });
    too_much(&Archive::new().file("a/b/c", "").bytes(), Limits { depth: 2, ..default });
    assert!(Place::new().unpack_within(&four(), &Limits { bytes: 16, entries: 4, ..default }, Links::Any).is_ok());
    refused(
        Archive::new()
            .file(&"x".repeat(90), "")
            .entry(EntryType::GNULongName, b"././@LongLink", b"", &[b'y'; 300], 0)
            .file("z", ""),
    );
}

/// The size in the header is believed before the contents come, so nothing is written for this one.
#[test]
fn a_size_that_is_only_announced_is_refused_at_once() {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_path("huge").unwrap();
    header.set_mode(0o644);
    header.set_size(1 << 50);
    header.set_cksum();
    let place = Place::new();
    let result = place.unpack(header.as_bytes());
    assert!(matches!(result, Err(Error::LimitExceeded(_))), "{result:?}");
    assert!(!place.inside.path().join("huge").exists());
}

#[test]
fn bombs_go_off_outside() {
    let zeros = "\0".repeat(20 << 20);
    let bomb = gzip(&Archive::new().file("zeros", &zeros).bytes());
    assert!(bomb.len() < 100_000);
    too_much(&bomb, Limits::default());

    let name = gzip(
        &Archive::new().entry(EntryType::GNULongName, b"././@LongLink", b"", zeros.as_bytes(), 0).file("x", "").bytes(),
    );
    too_much(&name, Limits { ratio: u64::MAX, ..Limits::default() });
    let extension =
        gzip(&Archive::new().entry(EntryType::XHeader, b"pax", b"", zeros.as_bytes(), 0).file("x", "").bytes());
    too_much(&extension, Limits { ratio: u64::MAX, ..Limits::default() });
    let directory = gzip(&Archive::new().entry(EntryType::Directory, b"d", b"", zeros.as_bytes(), 0o755).bytes());
    let result = Place::new().unpack(&directory);
    assert!(matches!(result, Err(Error::Refused(_))), "contents of a directory: {result:?}");

    let honest = gzip(&Archive::new().file("zeros", &zeros).bytes());
    assert!(Place::new().unpack_within(&honest, &Limits { ratio: 10_000, ..Limits::default() }, Links::Any).is_ok());
}

#[test]
fn long_names_within_the_limits_arrive() {
    let mut builder = Builder::new(Vec::new());
    let path = format!("{0}/{0}/{0}", "n".repeat(200));
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o644);
    builder.append_data(&mut header, &path, &b"x"[..]).unwrap();
    let place = Place::new();
    place.unpack(&builder.into_inner().unwrap()).unwrap();
    assert_eq!(place.read(&path), "x");
}

/// The header of a long name has its beginning, which may end where a directory does.
#[test]
fn a_long_name_may_be_cut_anywhere() {
    let directory = format!("{}/", "d".repeat(99));
    let name = format!("{directory}file");
    let long = |archive: Archive| archive.entry(EntryType::GNULongName, b"././@LongLink", b"", name.as_bytes(), 0o644);
    let place = Place::new();
    place.unpack(&long(Archive::new()).file(&directory, "x").bytes()).unwrap();
    assert_eq!(place.read(&name), "x");
    // Without a mark of its own a header is of a directory to some readers and of a file to others.
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.as_old_mut().name.copy_from_slice(directory.as_bytes());
    header.as_old_mut().linkflag = [0];
    header.set_cksum();
    let mut unmarked = long(Archive::new());
    unmarked.0.append(&header, &b"x"[..]).unwrap();
    refused(unmarked);
    refused(long(Archive::new()).file("other/", "x"));
}

#[test]
fn cut_off_and_damaged_archives_are_refused() {
    let whole = Archive::new().file("a", "12345").file("b", "12345").bytes();
    for length in [0, 100, 512, 600, 1024, 1500, 2048] {
        let result = Place::new().unpack(&whole[..length]);
        assert!(matches!(result, Err(Error::Refused(_))), "{length} bytes: {result:?}");
    }
    let compressed = gzip(&whole);
    assert!(Place::new().unpack(&compressed[..compressed.len() / 2]).is_err());
    let mut damaged = whole.clone();
    damaged[0] ^= 1;
    assert!(matches!(Place::new().unpack(&damaged), Err(Error::Refused(_))));
    for magic in [&b"\xfd7zXZ\0"[..], b"BZh9", b"PK\x03\x04"] {
        assert!(matches!(Place::new().unpack(magic), Err(Error::Unsupported(_))));
    }
}

#[test]
fn sparse_files_that_cannot_be_read_are_not_taken_for_plain_ones() {
    let mut builder = Builder::new(Vec::new());
    builder.append_pax_extensions([("GNU.sparse.major", &b"1"[..])]).unwrap();
    let mut header = Header::new_ustar();
    header.set_size(1);
    header.set_mode(0o644);
    builder.append_data(&mut header, "GNUSparseFile.0/x", &b"x"[..]).unwrap();
    let result = Place::new().unpack(&builder.into_inner().unwrap());
    assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}");
}

#[test]
fn extracting_keeps_links_inside_and_what_was_there_safe() {
    let place = Place::new();
    let inside = place.inside.path();
    let canary = format!("{}/canary", outside_name(&place));
    fs::create_dir(inside.join("kept")).unwrap();
    fs::set_permissions(inside.join("kept"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&canary, inside.join("report")).unwrap();
    let archive = Archive::new()
        .directory("kept", 0o777)
        .file("report", "new")
        .symlink("kept/good", "../report")
        .symlink("absolute", &canary)
        .symlink("climbs", "../canary")
        .symlink("kept/climbs", "../../canary")
        .bytes();
    let summary = place.unpack_within(&archive, &Limits::default(), Links::Inside).unwrap();
    assert_eq!(summary.left_out, 3);
    assert_eq!(place.read("kept/good"), "new");
    assert_eq!(place.mode("kept"), 0o700);
    assert!(!inside.join("absolute").exists());
}

#[test]
fn links_that_stay_inside_are_told_from_those_that_do_not() {
    let cases = BTreeMap::from([
        (("x", 0), true),
        (("./x/y", 0), true),
        (("..", 0), false),
        (("../x", 1), true),
        (("../../x", 1), false),
        (("../..", 2), true),
        (("x/..", 3), false),
        (("x/../../..", 0), false),
        (("/x", 5), false),
        ((".", 0), true),
    ]);
    for ((target, depth), expected) in cases {
        assert_eq!(stays_inside(target.as_bytes(), depth), expected, "{target} at {depth}");
    }
}

/// Seconds that this thread has had of a processor, which say nothing of what else runs on the machine.
fn worked() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec
}

#[test]
fn a_mark_that_is_repeated_costs_no_more_than_another_file() {
    const EACH: usize = 5000;
    let files =
        (0..EACH).fold(Archive::new().directory("d", 0o755), |archive, at| archive.file(&format!("d/{at}"), ""));
    let bytes = (0..EACH).fold(files, |archive, _| archive.file("d/.wh..wh..opq", "")).bytes();
    for owners in [Owners::for_caller(), Owners::Mapped] {
        let (place, started) = (Place::new(), worked());
        let directory = Directory::open(place.inside.path()).unwrap();
        unpack_layer(&bytes[..], Digest::of(&bytes), &directory, &Limits::default(), owners).unwrap();
        // Each mark going through the whole directory again would take a minute.
        assert!(worked() - started < 15, "{owners:?} {}", worked() - started);
        assert_eq!(fs::read_dir(place.inside.path().join("d")).unwrap().count(), EACH);
    }
}

#[test]
fn layers_are_put_over_each_other_in_one_directory() {
    if !rustix::process::geteuid().is_root() {
        _ = writeln!(std::io::stdout(), "SKIPPED: only root can give files away");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let layers = [
        Archive::new()
            .directory("kept", 0o700)
            .file("kept/both", "1")
            .file("kept/gone", "1")
            .directory("hidden", 0o755)
            .file("hidden/old", "1")
            .file("file", "1")
            .directory("directory", 0o755)
            .file("directory/old", "1"),
        Archive::new()
            .directory("kept", 0o750)
            .file("kept/both", "2")
            .file("kept/.wh.gone", "")
            .directory("hidden", 0o755)
            .file("hidden/.wh..wh..opq", "")
            .file("hidden/new", "2")
            .directory("file", 0o755)
            .file("file/new", "2")
            .file("directory", "2")
            .file(".wh.never", ""),
    ];
    for layer in layers {
        let bytes = layer.bytes();
        let directory = Directory::open(place.path()).unwrap();
        unpack_layer(&bytes[..], Digest::of(&bytes), &directory, &Limits::default(), Owners::Mapped).unwrap();
    }
    let read =
        |path: &str| fs::read_to_string(place.path().join(path)).unwrap_or_else(|error| error.kind().to_string());
    let found = ["kept/both", "hidden/new", "file/new", "directory"].map(read);
    assert_eq!(found, ["2"; 4]);
    assert!(!place.path().join("hidden/old").exists());
    assert_eq!(fs::metadata(place.path().join("kept")).unwrap().permissions().mode() & 0o777, 0o750);
    let root = Directory::open(place.path()).unwrap();
    assert!(root.enter(Name::new(b"hidden").unwrap()).unwrap().is_opaque());
    for whiteout in ["kept/gone", "never"] {
        assert_eq!(fs::symlink_metadata(place.path().join(whiteout)).unwrap().rdev(), 0, "{whiteout}");
    }
}
