//! FU-10, and archives on their way out.

use std::process::{Command, Stdio};

use tar::{Builder, EntryType, Header};

use crate::careless::Careless;
use crate::scene::{CANARY, Scene, Store, needs_sandboxes};
use crate::support::wait_until;

/// An archive of entries as they are given, whatever they are called.
fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, name, contents) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o6755);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if is_link {
            header.as_old_mut().linkname[..contents.len()].copy_from_slice(contents.as_bytes());
        }
        let contents = if is_link { "" } else { contents };
        header.set_size(contents.len() as u64);
        header.set_cksum();
        archive.append(&header, contents.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

const FILE: EntryType = EntryType::Regular;

/// Archives of which nothing may be taken.
fn offending(outside: &str) -> Vec<(&'static str, Vec<u8>)> {
    let good = (FILE, "good", "x");
    let directory = outside.rsplit_once('/').unwrap().0;
    let with = |entries: &[(EntryType, &str, &str)]| archive(&[&[good], entries].concat());
    let mut torn = with(&[(FILE, "large", &"x".repeat(100_000))]);
    torn.truncate(50_000);
    let mut longer = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(100_000);
    header.set_path("longer").unwrap();
    header.set_cksum();
    longer.append(&header, &b"not so much"[..]).unwrap();
    vec![
        ("up", with(&[(FILE, "../canary", "evil")])),
        ("up from below", with(&[(FILE, "a/../../canary", "evil")])),
        ("absolute", with(&[(FILE, outside, "evil")])),
        ("a link and what is behind it", with(&[(EntryType::Symlink, "d", directory), (FILE, "d/canary", "evil")])),
        ("a hard link out", with(&[(EntryType::Link, "h", "../canary"), (FILE, "h", "evil")])),
        ("a hard link to all", with(&[(EntryType::Link, "h", outside)])),
        ("a device", with(&[(EntryType::Char, "null", "")])),
        ("a block device", with(&[(EntryType::Block, "disk", "")])),
        ("a FIFO", with(&[(EntryType::Fifo, "fifo", "")])),
        ("torn", torn),
        ("sizes disagree", longer.into_inner().unwrap()),
        ("no archive", b"this is no archive".repeat(100)),
    ]
}

/// What of an archive that must be refused was taken.
fn breaches(store: &Store, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let outside = store.outside.to_str().unwrap().to_owned();
    for (number, (what, archive)) in offending(&outside).into_iter().enumerate() {
        let put = store.send("PUT", &format!("/new-{number}?archive=tar"), &[], &archive);
        if put.status != 400 {
            found.push(format!("{what} was answered with {put}"));
        }
        if is_there(&format!("new-{number}")) {
            found.push(format!("{what} left something"));
        }
        if std::fs::read_to_string(&store.outside).unwrap_or_default() != CANARY {
            found.push(format!("{what} got outside"));
            std::fs::write(&store.outside, CANARY).unwrap();
        }
    }
    found
}

#[test]
fn an_archive_that_offends_is_refused_as_a_whole() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.run("mkdir /workspace/in; echo kept > /workspace/canary; echo kept > /tmp/canary");
    let mut store = scene.store();
    store.base = scene.at("/workspace/in");
    let is_there = |name: &str| scene.names("/workspace/in").iter().any(|known| known == name);
    assert_eq!(breaches(&store, is_there), Vec::<String>::new());
    assert_eq!(scene.run("cat /workspace/canary /tmp/canary"), "kept\nkept\n");
    wait_until("what was unpacked is removed", || scene.names("/workspace/in").is_empty());
}

#[test]
fn a_careless_server_is_found_out_by_archives() {
    let careless = Careless::start();
    let found = breaches(&careless.store, |name| careless.path(name).exists());
    assert!(found.iter().any(|breach| breach.ends_with("got outside")), "{found:?}");
    assert!(found.iter().any(|breach| breach.ends_with("left something")), "{found:?}");
}

#[test]
fn an_archive_becomes_a_directory() {
    needs_sandboxes!();
    let scene = Scene::new();
    let entries = [
        (EntryType::Directory, "d/", ""),
        (FILE, "d/f", "first"),
        (FILE, "d/f", "second"),
        (FILE, "d/F", "another"),
        (EntryType::Symlink, "out", "/etc/passwd"),
        (EntryType::Link, "hard", "d/F"),
    ];
    let put = || scene.send("PUT", &scene.at("/workspace/new?archive=tar"), &[], &archive(&entries));
    put().expect(201);
    assert_eq!(
        scene.run("cd new; cat d/f d/F hard; readlink out; stat -c %a d/f; ls -A .."),
        "secondanotheranother/etc/passwd\n755\nnew\n"
    );
    put().expect(409);
    scene.send("PUT", &scene.at("/workspace/other?archive=zip"), &[], b"").expect(400);
    assert_eq!(scene.names("/workspace"), ["new"]);
}

/// A tree with what names and kinds there are.
fn planted() -> Scene {
    let scene = Scene::new();
    scene.run(
        "mkdir -p t/deep/er t/empty; echo one > t/a; printf 'x%.0s' $(seq 100000) > t/deep/er/b; ln -s ../a t/deep/link; \
         mkfifo t/fifo; chmod 755 t/a; echo 2 > 't/back\\slash'; printf 3 > \"$(printf 't/odd\\377')\"; touch -d @1000000000 t/a; \
         long=$(printf 'n%.0s' $(seq 200)); mkdir -p t/$long; echo 4 > t/$long/$long",
    );
    scene
}

fn piped(program: &str, arguments: &[&str], input: &[u8]) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), input);
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_directory_is_a_tar_that_tar_opens() {
    needs_sandboxes!();
    let scene = planted();
    let got = scene.get("/workspace/t?archive=tar").expect(200);
    assert!(got.is_whole);
    assert_eq!(got.header("content-disposition"), Some("attachment; filename*=UTF-8''t.tar"));
    let place = tempfile::tempdir().unwrap();
    let (done, _) = piped("tar", &["-xf", "-", "-C", place.path().to_str().unwrap()], &got.body);
    assert!(done);
    let read = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
    assert_eq!(
        (read("t/a"), read("t/deep/er/b").len(), read("t/deep/link")),
        ("one\n".into(), 100_000, "one\n".into())
    );
    assert!(place.path().join("t/empty").is_dir());
    scene.get("/workspace/missing?archive=tar").expect(404);
    scene.get("/workspace/t?archive=rar").expect(400);
    let head = scene.send("HEAD", &scene.at("/workspace/t?archive=zip"), &[], b"").expect(200);
    assert_eq!((head.header("content-type"), head.body.len()), (Some("application/zip"), 0));
}

#[test]
fn a_directory_is_a_zip_that_python_opens() {
    needs_sandboxes!();
    let scene = planted();
    let got = scene.get("/workspace/t?archive=zip").expect(200);
    assert!(got.is_whole);
    let script = "
import io, sys, zipfile
z = zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()))
assert z.testzip() is None
names = z.namelist()
assert len(names) == len(set(names)), names
a = z.getinfo('t/a')
assert a.external_attr >> 16 & 0o777 == 0o755, a
assert a.date_time == (2001, 9, 9, 1, 46, 40), a.date_time
assert z.read('t/deep/er/b') == b'x' * 100000
assert z.getinfo('t/deep/er/b').compress_size < 10000
assert z.read('t/deep/link') == b'../a' and z.getinfo('t/deep/link').external_attr >> 28 == 0o12
assert z.getinfo('t/empty/').is_dir()
assert z.read('t/back\\ufffd5Cslash') == b'2\\n' and z.read('t/odd\\ufffdFF') == b'3'
long = 'n' * 200
assert z.read(f't/{long}/{long}') == b'4\\n'
assert not any('fifo' in name or chr(92) in name for name in names), names
print(len(names))
";
    let (done, said) = piped("python3", &["-c", script], &got.body);
    assert!(done);
    assert_eq!(said, "11\n");
}
