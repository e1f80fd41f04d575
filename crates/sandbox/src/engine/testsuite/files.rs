use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::subject::{Subject, kind, path, spec};
use super::suite;
use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::file::{ByteRange, FileKind, ListOptions, Overwrite, WriteOptions};
use crate::path::GuestPath;
use crate::spec::ByteSize;

suite! { "files", Nothing:
    bytes_come_back_as_they_went,
    many_bytes_come_back_as_they_went,
    ranges_are_parts,
    commands_and_calls_see_the_same_files,
    modes_are_kept_without_set_id_bits,
    a_file_is_replaced_in_one_step,
    replacing_can_be_refused,
    parents_are_made_when_asked,
    a_dropped_write_leaves_no_trace,
    listings_are_sorted,
    listings_go_deep_and_end_early,
    what_is_not_there_is_not_found,
    a_directory_is_not_a_file,
    directories_are_made_with_their_parents,
    removing_takes_everything_below,
    renaming_moves_and_replaces_files_only,
    odd_names_are_names,
    the_image_cannot_be_changed,
    a_full_disk_is_said,
}

async fn bytes_come_back_as_they_went(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let bytes: Vec<u8> = (0..=255).collect();
    for (name, content) in [("all", bytes.as_slice()), ("empty", b""), ("lines", b"a\r\nb\n\0")] {
        sandbox.write(name, content).await;
        assert_eq!(sandbox.read(name).await, content, "{name}");
        let stat = sandbox.files.stat(&path(name)).await.unwrap();
        assert_eq!((stat.kind, stat.bytes), (FileKind::Regular, content.len() as u64));
        assert!(stat.modified_ns > 1_600_000_000_000_000_000, "{stat:?}");
    }
    sandbox.destroy().await;
}

async fn many_bytes_come_back_as_they_went(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let bytes: Vec<u8> = (0..8_000_003u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    sandbox.write("big", &bytes).await;
    assert!(sandbox.read("big").await == bytes);
    sandbox.destroy().await;
}

async fn ranges_are_parts(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("ten", b"0123456789").await;
    for (offset, length, expected) in [
        (0, None, "0123456789"),
        (3, None, "3456789"),
        (3, Some(4), "3456"),
        (8, Some(100), "89"),
        (10, None, ""),
        (1000, Some(5), ""),
        (0, Some(0), ""),
        (u64::MAX, Some(u64::MAX), ""),
    ] {
        let found = sandbox.read_range("ten", ByteRange { offset, length }).await;
        // An offset that no file can have may be refused instead.
        match found {
            Ok(bytes) => assert_eq!(bytes, expected.as_bytes(), "{offset} {length:?}"),
            Err(error) => assert!(offset == u64::MAX && error.kind() == ErrorKind::InvalidInput, "{error:?}"),
        }
    }
    let file = sandbox.files.read(&path("ten"), ByteRange { offset: 2, length: Some(3) }).await.unwrap();
    assert_eq!(file.stat.bytes, 10, "the stat is of the whole file");
    sandbox.destroy().await;
}

async fn commands_and_calls_see_the_same_files(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("note", b"from outside\n").await;
    assert_eq!(sandbox.says("cat note").await, "from outside\n");
    sandbox.says("echo from inside >> note").await;
    assert_eq!(sandbox.read("note").await, b"from outside\nfrom inside\n");
    sandbox.says("rm note").await;
    assert!(!sandbox.exists("note").await);
    sandbox.destroy().await;
}

async fn modes_are_kept_without_set_id_bits(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for (asked, expected) in [(0o644, 0o644), (0o755, 0o755), (0o600, 0o600), (0o4755, 0o755), (0o2755, 0o755)] {
        let options = WriteOptions { mode: asked, ..WriteOptions::default() };
        sandbox.write_with("file", b"x", options).await.unwrap();
        assert_eq!(sandbox.files.stat(&path("file")).await.unwrap().mode, expected, "{asked:o}");
    }
    sandbox.destroy().await;
}

async fn a_file_is_replaced_in_one_step(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("file", b"the old content").await;
    let mut open = sandbox.files.read(&path("file"), ByteRange::default()).await.unwrap();
    let mut writing = sandbox.files.write(&path("file"), WriteOptions::default()).await.unwrap();
    writing.write_all(b"new").await.unwrap();
    writing.flush().await.unwrap();
    assert_eq!(sandbox.read("file").await, b"the old content", "half a file was seen");
    writing.commit().await.unwrap();
    assert_eq!(sandbox.read("file").await, b"new");
    let mut old = Vec::new();
    open.stream.read_to_end(&mut old).await.unwrap();
    assert_eq!(old, b"the old content", "who has the old one open keeps it");
    sandbox.destroy().await;
}

async fn replacing_can_be_refused(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let options = WriteOptions { overwrite: Overwrite::Refuse, ..WriteOptions::default() };
    sandbox.write_with("file", b"first", options).await.unwrap();
    assert_eq!(kind(sandbox.write_with("file", b"second", options).await), ErrorKind::AlreadyExists);
    assert_eq!(sandbox.read("file").await, b"first");

    let mut late = sandbox.files.write(&path("race"), options).await.unwrap();
    late.write_all(b"late").await.unwrap();
    sandbox.write_with("race", b"early", options).await.unwrap();
    assert_eq!(kind(late.commit().await), ErrorKind::AlreadyExists, "what counts is the moment of the commit");
    assert_eq!(sandbox.read("race").await, b"early");
    assert_eq!(sandbox.tree("/workspace").await, ["/workspace/file", "/workspace/race"]);
    sandbox.destroy().await;
}

async fn parents_are_made_when_asked(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let alone = WriteOptions { parents: false, ..WriteOptions::default() };
    assert_eq!(kind(sandbox.write_with("a/b/c", b"x", alone).await), ErrorKind::NotFound);
    assert!(!sandbox.exists("a").await);
    sandbox.write("a/b/c", b"x").await;
    assert_eq!(sandbox.read("a/b/c").await, b"x");
    assert_eq!(sandbox.says("echo y > a/b/d; cat a/b/d").await, "y\n", "the command's user may write there");
    sandbox.destroy().await;
}

async fn a_dropped_write_leaves_no_trace(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("kept", b"old").await;
    for name in ["kept", "new"] {
        let mut writing = sandbox.files.write(&path(name), WriteOptions::default()).await.unwrap();
        writing.write_all(&[1; 100_000]).await.unwrap();
        drop(writing);
    }
    let alone = ["/workspace/kept"];
    super::subject::eventually("the dropped writes are gone", super::subject::seconds(5), || async {
        sandbox.tree("/workspace").await == alone
    })
    .await;
    assert_eq!(sandbox.read("kept").await, b"old");
    sandbox.destroy().await;
}

async fn listings_are_sorted(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for name in ["b", "a", "C", "a.b", "a-b", "ab", "é", "10", "9"] {
        sandbox.write(name, b"x").await;
    }
    sandbox.files.make_directory(&path("aa")).await.unwrap();
    let found = sandbox.tree("/workspace").await;
    let expected = ["10", "9", "C", "a", "a-b", "a.b", "aa", "ab", "b", "é"].map(|name| format!("/workspace/{name}"));
    assert_eq!(found, expected);
    sandbox.destroy().await;
}

async fn listings_go_deep_and_end_early(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for directory in ["a", "b"] {
        for file in ["1", "2"] {
            sandbox.write(&format!("{directory}/{file}"), b"xyz").await;
        }
    }
    let list = async |recursive, max_entries| {
        let listing = sandbox.files.list(&path("/workspace"), ListOptions { recursive, max_entries }).await.unwrap();
        (listing.entries.iter().map(|entry| entry.path.to_string()).collect::<Vec<_>>(), listing.truncated)
    };
    assert_eq!(list(false, 10).await, (vec!["/workspace/a".to_owned(), "/workspace/b".to_owned()], false));
    let (whole, truncated) = list(true, 6).await;
    assert!(!truncated);
    assert_eq!(whole, ["a", "a/1", "a/2", "b", "b/1", "b/2"].map(|name| format!("/workspace/{name}")));
    let (part, truncated) = list(true, 5).await;
    assert!(truncated && part == whole[..5], "{part:?}");
    let (none, truncated) = list(false, 0).await;
    assert!(none.is_empty() && truncated);
    let listing = sandbox.files.list(&path("a"), ListOptions { recursive: false, max_entries: 9 }).await.unwrap();
    assert_eq!((listing.entries[0].stat.kind, listing.entries[0].stat.bytes), (FileKind::Regular, 3));
    sandbox.destroy().await;
}

async fn what_is_not_there_is_not_found(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let none = path("none");
    let options = ListOptions { recursive: false, max_entries: 9 };
    let kinds = [
        kind(sandbox.files.stat(&none).await),
        kind(sandbox.files.list(&none, options).await),
        kind(sandbox.try_read("none").await),
        kind(sandbox.try_read("none/deeper").await),
        kind(sandbox.files.remove(&none).await),
        kind(sandbox.files.rename(&none, &path("other")).await),
        kind(sandbox.files.pack(&none).await),
    ];
    assert_eq!(kinds, [ErrorKind::NotFound; 7]);
    sandbox.destroy().await;
}

async fn a_directory_is_not_a_file(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("directory/file", b"x").await;
    assert_eq!(kind(sandbox.try_read("directory").await), ErrorKind::InvalidInput);
    let refused = kind(sandbox.write_with("directory", b"x", WriteOptions::default()).await);
    assert!(matches!(refused, ErrorKind::InvalidInput | ErrorKind::AlreadyExists), "{refused:?}");
    let options = ListOptions { recursive: false, max_entries: 9 };
    assert_eq!(kind(sandbox.files.list(&path("directory/file"), options).await), ErrorKind::InvalidInput);
    let refused = kind(sandbox.try_read("directory/file/below").await);
    assert!(matches!(refused, ErrorKind::InvalidInput | ErrorKind::NotFound), "{refused:?}");
    assert_eq!(sandbox.files.stat(&path("directory")).await.unwrap().kind, FileKind::Directory);
    assert_eq!(sandbox.read("directory/file").await, b"x");
    sandbox.destroy().await;
}

async fn directories_are_made_with_their_parents(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for _ in 0..2 {
        sandbox.files.make_directory(&path("a/b/c")).await.unwrap();
    }
    assert_eq!(sandbox.files.stat(&path("a/b/c")).await.unwrap().kind, FileKind::Directory);
    sandbox.write("file", b"x").await;
    for place in ["file", "file/below"] {
        let refused = kind(sandbox.files.make_directory(&path(place)).await);
        assert!(matches!(refused, ErrorKind::AlreadyExists | ErrorKind::InvalidInput), "{place}: {refused:?}");
    }
    sandbox.destroy().await;
}

async fn removing_takes_everything_below(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("a/b/c", b"x").await;
    sandbox.write("a/d", b"x").await;
    sandbox.write("e", b"x").await;
    sandbox.files.remove(&path("a")).await.unwrap();
    sandbox.files.remove(&path("e")).await.unwrap();
    assert!(sandbox.tree("/workspace").await.is_empty());
    sandbox.destroy().await;
}

async fn renaming_moves_and_replaces_files_only(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("a", b"1").await;
    sandbox.write("b", b"2").await;
    sandbox.files.rename(&path("a"), &path("b")).await.unwrap();
    assert_eq!(sandbox.read("b").await, b"1");
    sandbox.write("directory/file", b"3").await;
    let refused = kind(sandbox.files.rename(&path("b"), &path("directory")).await);
    assert!(matches!(refused, ErrorKind::AlreadyExists | ErrorKind::InvalidInput), "{refused:?}");
    sandbox.files.make_directory(&path("empty")).await.unwrap();
    let refused = kind(sandbox.files.rename(&path("directory"), &path("empty")).await);
    assert!(matches!(refused, ErrorKind::AlreadyExists | ErrorKind::InvalidInput), "{refused:?}");
    sandbox.files.rename(&path("directory"), &path("moved")).await.unwrap();
    assert_eq!(sandbox.read("moved/file").await, b"3");
    assert_eq!(kind(sandbox.files.rename(&path("b"), &path("none/b")).await), ErrorKind::NotFound);
    assert_eq!(sandbox.read("b").await, b"1", "a refused rename loses nothing");
    let refused = kind(sandbox.files.rename(&path("moved"), &path("moved/inside")).await);
    assert_eq!(refused, ErrorKind::InvalidInput);
    sandbox.destroy().await;
}

async fn odd_names_are_names(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let long = "x".repeat(255).into_bytes();
    let names: [&[u8]; 9] =
        [b" ", b"-rf", b"a b", b"line\nfeed", b"\xff\xfe", b"...", b"$HOME", b"quote'\"", long.as_slice()];
    for name in names {
        let place = GuestPath::workspace().join(name).unwrap();
        let mut file = sandbox.files.write(&place, WriteOptions::default()).await.unwrap();
        file.write_all(name).await.unwrap();
        file.commit().await.unwrap();
        let mut bytes = Vec::new();
        let mut file = sandbox.files.read(&place, ByteRange::default()).await.unwrap();
        file.stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, name);
    }
    let options = ListOptions { recursive: true, max_entries: 100 };
    let listing = sandbox.files.list(&GuestPath::workspace(), options).await.unwrap();
    let mut sorted = names.to_vec();
    sorted.sort();
    let found: Vec<&[u8]> = listing.entries.iter().filter_map(|entry| entry.path.file_name()).collect();
    assert_eq!(found, sorted);
    for name in names {
        sandbox.files.remove(&GuestPath::workspace().join(name).unwrap()).await.unwrap();
    }
    sandbox.destroy().await;
}

async fn the_image_cannot_be_changed(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for place in ["/etc/passwd", "/etc/new", "/usr/new", "/new"] {
        let refused = kind(sandbox.write_with(place, b"x", WriteOptions::default()).await);
        assert_eq!(refused, ErrorKind::Denied, "{place}");
    }
    assert_eq!(kind(sandbox.files.remove(&path("/etc/passwd")).await), ErrorKind::Denied);
    assert_eq!(kind(sandbox.files.make_directory(&path("/usr/new")).await), ErrorKind::Denied);
    assert!(!sandbox.read("/etc/passwd").await.is_empty());
    sandbox.destroy().await;
}

async fn a_full_disk_is_said(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.limits.disk = ByteSize::mebibytes(4);
    let sandbox = Subject::with(engine, wanted).await;
    let refused = kind(sandbox.write_with("big", &vec![1; 16 << 20], WriteOptions::default()).await);
    assert_eq!(refused, ErrorKind::LimitExceeded);
    super::subject::eventually("the failed write is gone", super::subject::seconds(5), || async {
        sandbox.tree("/workspace").await.is_empty()
    })
    .await;
    sandbox.write("small", b"fits").await;
    assert_eq!(sandbox.says("cat small").await, "fits");
    sandbox.destroy().await;
}
