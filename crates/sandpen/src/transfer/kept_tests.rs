use std::os::unix::fs::{PermissionsExt, symlink};

use sandbox::{FileStat, Listing, ReadFile, WriteFile, WriteOptions};

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
    assert_eq!(texts(&plan.link), ["replaced"]);
}

#[test]
fn nothing_goes_when_nothing_was_there() {
    let now = seen(&[("/data/a", FileKind::Regular, 1, SECOND)]);
    assert_eq!(Plan::new(&Seen::default(), &now), Plan { copy: vec![b"a".to_vec()], ..Plan::default() });
    assert_eq!(Plan::new(&Seen::default(), &Seen::default()), Plan::default());
}

fn kept(directory: &std::path::Path) -> Kept {
    let limits = Limits { disk: ByteSize::new(100), ..Limits::default() };
    Kept::new(HostTree::open(directory).unwrap(), (), limits).unwrap()
}

#[tokio::test]
async fn a_file_is_put_in_place_of_what_has_its_name_but_through_no_link() {
    let place = tempfile::tempdir().unwrap();
    let (directory, outside) = (place.path().join("kept"), place.path().join("outside"));
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    std::fs::write(&outside, "untouched").unwrap();
    symlink("../outside", directory.join("link")).unwrap();
    let kept = kept(&directory);
    kept.put(b"a", "one".into()).await.unwrap();
    kept.put(b"a", "two".into()).await.unwrap();
    kept.put(b"link", "mine".into()).await.unwrap();
    assert!(kept.put(b"sub", "x".into()).await.is_err());
    assert_eq!(std::fs::read_to_string(directory.join("a")).unwrap(), "two");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched");
    assert_eq!(kept.names().await.unwrap(), ["a", "link"]);
}

#[tokio::test]
async fn a_conversation_has_its_bounds() {
    let place = tempfile::tempdir().unwrap();
    let kept = kept(place.path());
    kept.put(b"a", vec![0; 60]).await.unwrap();
    assert_eq!(kept.put(b"b", vec![0; 41]).await.unwrap_err().kind(), ErrorKind::LimitExceeded);
    kept.put(b"a", vec![0; 100]).await.unwrap();
    assert_eq!(kept.names().await.unwrap(), ["a"]);
}

#[tokio::test]
async fn what_a_copy_left_behind_is_taken_away() {
    let place = tempfile::tempdir().unwrap();
    let unfinished = format!(".{}.part", SandboxId::random().unwrap());
    std::fs::create_dir(place.path().join("sub")).unwrap();
    for name in [unfinished.as_str(), &format!("sub/{unfinished}"), ".sb-mine.part", "a.part"] {
        std::fs::write(place.path().join(name), "x").unwrap();
    }
    assert_eq!(kept(place.path()).names().await.unwrap(), [".sb-mine.part", "a.part"]);
    assert_eq!(std::fs::read_dir(place.path().join("sub")).unwrap().count(), 0);
}

#[tokio::test]
async fn nothing_is_opened_through_a_link() {
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
    assert_eq!(kept(place.path()).names().await.unwrap(), ["file"]);
    let made = tree.below_private("new".as_ref(), "x".as_ref()).unwrap();
    assert!(made.names().unwrap().is_empty());
    let mode = std::fs::metadata(place.path().join("new")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn uploads_have_the_mode_that_files_have_which_nobody_chose_one_for() {
    let place = tempfile::tempdir().unwrap();
    let mode = |name: &str| std::fs::metadata(place.path().join(name)).unwrap().permissions().mode();
    std::fs::create_dir(place.path().join("usual")).unwrap();
    HostTree::open(place.path()).unwrap().below_private("new".as_ref(), "x".as_ref()).unwrap();
    std::fs::write(place.path().join("usual/file"), "x").unwrap();
    kept(&place.path().join("new")).put(b"file", "x".into()).await.unwrap();
    assert_eq!(mode("new/file"), mode("usual/file"));
}

/// A sandbox in which files grow between the look at them and their copy.
struct Growing {
    entries: Vec<DirectoryEntry>,
    bytes: usize,
}

fn absent<T>() -> Result<T> {
    Err(Error::unsupported("nobody asks for this"))
}

#[async_trait::async_trait]
impl Files for Growing {
    async fn list(&self, _: &GuestPath, _: ListOptions) -> Result<Listing> {
        Ok(Listing { entries: self.entries.clone(), truncated: false })
    }

    async fn read(&self, path: &GuestPath, _: ByteRange) -> Result<ReadFile> {
        let stat = FileStat { bytes: self.bytes as u64, ..entry(&path.to_string(), FileKind::Regular, 0, 0).stat };
        Ok(ReadFile { stat, stream: Box::new(std::io::Cursor::new(vec![0; self.bytes])) })
    }

    async fn pack(&self, _: &GuestPath) -> Result<Box<dyn tokio::io::AsyncRead + Send + Unpin>> {
        let mut archive = tar::Builder::new(Vec::new());
        for entry in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(self.bytes as u64);
            header.set_mode(0o644);
            let name = entry.path.to_string();
            archive.append_data(&mut header, name.trim_start_matches('/'), &vec![0; self.bytes][..]).unwrap();
        }
        Ok(Box::new(std::io::Cursor::new(archive.into_inner().unwrap())))
    }

    async fn stat(&self, _: &GuestPath) -> Result<FileStat> {
        absent()
    }

    async fn write(&self, _: &GuestPath, _: WriteOptions) -> Result<Box<dyn WriteFile>> {
        absent()
    }

    async fn make_directory(&self, _: &GuestPath) -> Result<()> {
        absent()
    }

    async fn remove(&self, _: &GuestPath) -> Result<()> {
        absent()
    }

    async fn rename(&self, _: &GuestPath, _: &GuestPath) -> Result<()> {
        absent()
    }

    async fn unpack(&self, _: &GuestPath) -> Result<Box<dyn WriteFile>> {
        absent()
    }
}

fn bytes_below(directory: &std::path::Path) -> u64 {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn files_that_grow_meanwhile_do_not_exceed_the_bounds_together() {
    // One by one, and all together: what stays as it is counts too.
    for count in [3, FEW + 1] {
        let place = tempfile::tempdir().unwrap();
        let mut kept = kept(place.path());
        let old = entry("/data/old", FileKind::Regular, 60, SECOND);
        std::fs::write(place.path().join("old"), [0; 60]).unwrap();
        let last = entry("/data/last", FileKind::Regular, 0, 9 * SECOND);
        kept.lent = Seen::new(&"/data".parse().unwrap(), vec![old.clone(), last.clone()]);
        let new = (0..count).map(|number| entry(&format!("/data/new{number}"), FileKind::Regular, 1, 10 * SECOND));
        let files = Growing { entries: [old, last].into_iter().chain(new).collect(), bytes: 30 };
        let error = kept.take_back(&files, &"/data".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(bytes_below(place.path()) <= 100, "{}", bytes_below(place.path()));
    }
}

#[tokio::test]
async fn what_is_too_deep_is_not_kept_and_the_conversation_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let mut kept = kept(place.path());
    let deep = |levels: usize| {
        let paths = (1..=levels).map(|level| format!("/data{}", "/d".repeat(level)));
        let entries = paths.map(|path| entry(&path, FileKind::Directory, 0, SECOND)).collect();
        Growing { entries, bytes: 0 }
    };
    let from: GuestPath = "/data".parse().unwrap();
    let error = kept.take_back(&deep(1200), &from).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(error.message().contains("128 within each other"), "{error}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    kept.take_back(&deep(MOST_LEVELS), &from).await.unwrap();
    assert_eq!(walk(&kept.tree).unwrap().len(), MOST_LEVELS);
    std::fs::create_dir(place.path().join(["d"; MOST_LEVELS].join("/")).join("d")).unwrap();
    assert!(walk(&kept.tree).unwrap_err().message().contains("too many directories within each other"));
}
