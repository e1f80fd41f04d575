//! FU-07: an upload is there as a whole or not at all.

use std::io::Write;

use crate::careless::Careless;
use crate::client::{self, begin};
use crate::scene::{Scene, Store, needs_sandboxes};
use crate::support::server::Server;
use crate::support::wait_until;

const OLD: usize = 1 << 20;
const NEW: usize = 4 << 20;

/// Send half of what was announced, and go away.
fn abort(store: &Store, name: &str) {
    let length = NEW.to_string();
    let headers = [("authorization", store.authorization.as_str()), ("content-length", &length)];
    let mut stream = begin(store.address, "PUT", &format!("{}/{name}", store.base), &headers);
    stream.write_all(&vec![b'n'; NEW / 2]).unwrap();
    // Closed with what it has not read: the other side must not take the rest for an end.
    drop(stream);
}

/// What is neither the old file nor the new one after uploads were given up and came at once.
fn breaches(store: &Store) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |what: &str, allowed: &[(u8, usize)]| {
        let got = store.send("GET", "/file", &[], b"").body;
        let is_one = |&(byte, length): &(u8, usize)| got.len() == length && got.iter().all(|other| *other == byte);
        if !allowed.iter().any(is_one) {
            found.push(format!("{what}: {} bytes", got.len()));
        }
    };
    assert!(matches!(store.send("PUT", "/file", &[], &vec![b'o'; OLD]).status, 200 | 201));
    abort(store, "file");
    // However long it takes to be noticed: the old file is there, before and after.
    for _ in 0..20 {
        look("given up half-way", &[(b'o', OLD)]);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::scope(|scope| {
        for (byte, length) in [(b'x', NEW), (b'y', NEW / 2)] {
            scope.spawn(move || store.send("PUT", "/file", &[], &vec![byte; length]));
        }
    });
    look("two at once", &[(b'x', NEW), (b'y', NEW / 2)]);
    found
}

#[test]
fn an_upload_is_whole_or_not_there() {
    needs_sandboxes!();
    let scene = Scene::new();
    assert_eq!(breaches(&scene.store()), Vec::<String>::new());
    assert_eq!(scene.names("/workspace"), ["file"], "nothing is left beside it");
}

#[test]
fn a_careless_server_is_found_out_by_half_a_file() {
    let found = breaches(&Careless::start().store);
    assert!(found.iter().any(|breach| breach.starts_with("given up half-way")), "{found:?}");
}

#[test]
fn an_upload_does_not_replace_what_is_no_file() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.run("mkdir d; echo target > t; ln -s t link; ln -s /nowhere/at/all dangling; mkfifo fifo");
    scene.put("/workspace/d", b"new").expect(400);
    scene.put("/workspace/fifo", b"new").expect(400);
    scene.put("/usr/bin/sh", b"new").expect(403);
    scene.put("/workspace/t/x", b"new").expect(400);
    scene.put("/workspace/link", b"new").expect(200);
    assert_eq!(scene.run("cat t; readlink link; ls"), "newt\nd\ndangling\nfifo\nlink\nt\n");
    let only_new = [("if-none-match", "*")];
    scene.send("PUT", &scene.at("/workspace/t"), &only_new, b"newer").expect(412);
    scene.send("PUT", &scene.at("/workspace/u"), &only_new, b"first").expect(201);
    scene.send("PUT", &scene.at("/workspace/t"), &[("if-match", "\"x\"")], b"newer").expect(400);
    assert_eq!(scene.run("cat t u"), "newfirst");
    for method in ["GET", "HEAD"] {
        scene.send(method, &scene.at("/workspace/fifo"), &[], b"").expect(400);
    }
}

#[test]
fn a_server_that_is_killed_leaves_the_old_file_and_nothing_else() {
    needs_sandboxes!();
    let mut scene = Scene::new();
    scene.put("/workspace/file", &vec![b'o'; OLD]).expect(201);
    let length = NEW.to_string();
    let headers = [("authorization", scene.token.as_str()), ("content-length", &length)];
    let mut stream = begin(scene.server.address, "PUT", &scene.at("/workspace/file"), &headers);
    stream.write_all(&vec![b'n'; NEW / 2]).unwrap();
    // The new file has no name yet, but takes room.
    let used = || scene.run("df --output=used -B1 /workspace | tail -n 1").trim().parse::<usize>().unwrap();
    wait_until("some of it is in the sandbox", || used() > OLD + (256 << 10));
    scene.server.signal(rustix::process::Signal::KILL);
    scene.server.wait();
    scene.server = Server::guarded(&scene.world, &[]);
    let got = scene.get("/workspace/file").expect(200).body;
    assert!(got.len() == OLD && got.iter().all(|byte| *byte == b'o'));
    assert_eq!(scene.names("/workspace"), ["file"]);
    client::send(scene.server.address, "GET", "/healthz", &[], b"").expect(200);
}
