//! Whole directories in and out, and archives that want to go elsewhere.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::subject::{Subject, kind, path, seconds};
use super::suite;
use crate::engine::Engine;
use crate::error::{ErrorKind, Result};
use crate::file::FileKind;

suite! { "tars", Nothing:
    a_directory_goes_out_and_in,
    a_file_goes_out_and_in,
    names_start_at_the_parent,
    a_dropped_archive_does_no_harm,
    hostile_names_lead_nowhere,
    a_link_in_an_archive_is_no_way_out,
    a_link_in_the_sandbox_is_no_way_out,
    hard_links_and_devices_give_nothing,
    set_id_bits_are_dropped,
    garbage_is_refused,
}

async fn unpack(sandbox: &Subject, place: &str, bytes: &[u8]) -> Result<()> {
    let mut stream = sandbox.files.unpack(&path(place)).await?;
    let written = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    };
    let written = written.await;
    let committed = stream.commit().await;
    assert!(written.is_ok() || committed.is_err(), "half an archive was committed after {written:?}");
    committed
}

async fn pack(sandbox: &Subject, place: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    sandbox.files.pack(&path(place)).await.unwrap().read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// An archive with names and targets as they are, which a well-meaning builder would refuse.
fn archive(entries: &[(tar::EntryType, &str, &str, u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (entry_type, name, content, mode) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*entry_type);
        header.set_mode(*mode);
        header.set_mtime(1_700_000_000);
        let data: &[u8] = if *entry_type == tar::EntryType::Regular {
            content.as_bytes()
        } else {
            header.as_mut_bytes()[157..157 + content.len()].copy_from_slice(content.as_bytes());
            b""
        };
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

const FILE: tar::EntryType = tar::EntryType::Regular;
const LINK: tar::EntryType = tar::EntryType::Symlink;

async fn a_directory_goes_out_and_in(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let big: Vec<u8> = (0..300_000u32).map(|number| (number % 253) as u8).collect();
    sandbox.write("project/src/main.py", b"print(1)\n").await;
    sandbox.write("project/data.bin", &big).await;
    sandbox.write(&format!("project/{}/deep", "long-name-".repeat(15)), b"deep").await;
    sandbox.says("mkdir project/empty; ln -s src/main.py project/link").await;
    let bytes = pack(&sandbox, "project").await;
    unpack(&sandbox, "/tmp/copy", &bytes).await.unwrap();

    let shorten = |tree: Vec<String>, prefix: &str| -> Vec<String> {
        tree.into_iter().map(|path| path.strip_prefix(prefix).unwrap().to_owned()).collect()
    };
    let original = shorten(sandbox.tree("project").await, "/workspace/project");
    assert_eq!(shorten(sandbox.tree("/tmp/copy/project").await, "/tmp/copy/project"), original);
    assert!(sandbox.read("/tmp/copy/project/data.bin").await == big);
    assert_eq!(sandbox.read("/tmp/copy/project/link").await, b"print(1)\n");
    assert_eq!(sandbox.files.stat(&path("/tmp/copy/project/link")).await.unwrap().kind, FileKind::Link);
    sandbox.destroy().await;
}

async fn a_file_goes_out_and_in(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("a/file", b"content").await;
    let bytes = pack(&sandbox, "a/file").await;
    unpack(&sandbox, "b", &bytes).await.unwrap();
    assert_eq!(sandbox.read("b/file").await, b"content");
    sandbox.destroy().await;
}

async fn names_start_at_the_parent(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("a/b/file", b"content").await;
    let bytes = pack(&sandbox, "a/b").await;
    let mut archive = tar::Archive::new(bytes.as_slice());
    for entry in archive.entries().unwrap() {
        let name = entry.unwrap().path().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("b/") || name == "b", "{name}");
    }
    sandbox.destroy().await;
}

async fn a_dropped_archive_does_no_harm(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let bytes = archive(&[(FILE, "file", "content", 0o644)]);
    let mut stream = sandbox.files.unpack(&path("box")).await.unwrap();
    stream.write_all(&bytes[..600]).await.unwrap();
    drop(stream);
    unpack(&sandbox, "box", &bytes).await.unwrap();
    assert_eq!(sandbox.read("box/file").await, b"content");
    sandbox.destroy().await;
}

/// Whatever became of the archive: nothing of it is outside of the box.
async fn check_outside(sandbox: &Subject, what: &str) {
    for place in ["/workspace", "/tmp", "/workspace/in"] {
        for found in sandbox.tree(place).await {
            let inside = found.starts_with("/workspace/in/box") || found == "/workspace/in";
            let ours = ["/workspace/outside", "/workspace/outside/kept"].contains(&found.as_str());
            assert!(inside || ours, "{what}: {found} is outside");
        }
    }
    assert_eq!(sandbox.read("outside/kept").await, b"as it was", "{what}");
    assert_eq!(sandbox.says("echo alive").await, "alive\n", "{what}");
}

async fn with_box(engine: Arc<dyn Engine>) -> Subject {
    let sandbox = Subject::new(engine).await;
    sandbox.write("outside/kept", b"as it was").await;
    sandbox.files.make_directory(&path("in/box")).await.unwrap();
    sandbox
}

async fn hostile_names_lead_nowhere(engine: Arc<dyn Engine>) {
    let sandbox = with_box(engine).await;
    for name in [
        "../evil",
        "../../evil",
        "a/../../evil",
        "a/../../../tmp/evil",
        "/tmp/evil",
        "//tmp/evil",
        "/workspace/evil",
        "../../outside/kept",
        "..",
        "../..",
        ".",
        "./../../evil",
        "/etc/passwd",
    ] {
        let _ = unpack(&sandbox, "in/box", &archive(&[(FILE, name, "evil", 0o644)])).await;
        check_outside(&sandbox, name).await;
    }
    sandbox.destroy().await;
}

async fn a_link_in_an_archive_is_no_way_out(engine: Arc<dyn Engine>) {
    let sandbox = with_box(engine).await;
    let ways = [
        ("../../outside", "kept"),
        ("/workspace/outside", "kept"),
        ("/tmp", "evil"),
        ("..", "evil"),
        ("/", "tmp/evil"),
    ];
    for (number, (target, file)) in ways.into_iter().enumerate() {
        let link = format!("link{number}");
        let below = format!("{link}/{file}");
        let entries = [(LINK, link.as_str(), target, 0o777), (FILE, below.as_str(), "evil", 0o644)];
        let _ = unpack(&sandbox, "in/box", &archive(&entries)).await;
        check_outside(&sandbox, target).await;
    }
    let onto = [(LINK, "file", "../../outside/kept", 0o777), (FILE, "file", "evil", 0o644)];
    let _ = unpack(&sandbox, "in/box", &archive(&onto)).await;
    check_outside(&sandbox, "a file over a link").await;
    sandbox.destroy().await;
}

async fn a_link_in_the_sandbox_is_no_way_out(engine: Arc<dyn Engine>) {
    let sandbox = with_box(engine).await;
    sandbox.says("ln -s ../../outside in/box/planted; ln -s ../../outside/kept in/box/file").await;
    for name in ["planted/kept", "planted/evil", "file"] {
        let _ = unpack(&sandbox, "in/box", &archive(&[(FILE, name, "evil", 0o644)])).await;
        check_outside(&sandbox, name).await;
    }
    sandbox.destroy().await;
}

async fn hard_links_and_devices_give_nothing(engine: Arc<dyn Engine>) {
    let sandbox = with_box(engine).await;
    let hard = [(tar::EntryType::Link, "hard", "../../outside/kept", 0o644), (FILE, "hard", "evil", 0o644)];
    let _ = unpack(&sandbox, "in/box", &archive(&hard)).await;
    check_outside(&sandbox, "a hard link").await;
    for device in [tar::EntryType::Char, tar::EntryType::Block, tar::EntryType::Fifo] {
        let _ = unpack(&sandbox, "in/box", &archive(&[(device, "device", "", 0o666)])).await;
        assert!(!sandbox.exists("in/box/device").await, "{device:?}");
    }
    sandbox.destroy().await;
}

async fn set_id_bits_are_dropped(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    unpack(&sandbox, "box", &archive(&[(FILE, "file", "x", 0o6755)])).await.unwrap();
    assert_eq!(sandbox.files.stat(&path("box/file")).await.unwrap().mode, 0o755);
    sandbox.destroy().await;
}

async fn garbage_is_refused(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let noise: Vec<u8> = (0..100_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let whole = archive(&[(FILE, "file", &"x".repeat(5000), 0o644)]);
    for garbage in [noise.as_slice(), &whole[..1500]] {
        let unpacking = tokio::time::timeout(seconds(10), unpack(&sandbox, "box", garbage));
        assert_eq!(kind(unpacking.await.expect("it waits for more")), ErrorKind::InvalidInput);
    }
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}
