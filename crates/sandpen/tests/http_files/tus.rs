//! Uploads that go on: tus 1.0.0 with creation, termination and expiration.

use std::io::Write;

use crate::client::{self, Headers, Reply, begin};
use crate::scene::{Scene, needs_sandboxes, token};
use crate::support::server::Server;
use crate::support::wait_until;

const VERSION: (&str, &str) = ("tus-resumable", "1.0.0");
const PART: (&str, &str) = ("content-type", "application/offset+octet-stream");

fn ask(scene: &Scene, method: &str, address: &str, headers: Headers<'_>, body: &[u8]) -> Reply {
    scene.send(method, address, &[&[VERSION], headers].concat(), body)
}

/// `big.bin` in base64.
const NAME: (&str, &str) = ("upload-metadata", "filename YmlnLmJpbg==,is_confidential");

#[track_caller]
fn begun(scene: &Scene, length: usize) -> String {
    let length = length.to_string();
    let made = ask(scene, "POST", &format!("{}/uploads", scene.base()), &[("upload-length", &length), NAME], b"");
    let made = made.expect(201);
    assert!(made.header("upload-expires").unwrap().ends_with(" GMT"));
    assert_eq!(made.header("tus-resumable"), Some("1.0.0"));
    made.header("location").unwrap().to_owned()
}

fn part(scene: &Scene, address: &str, offset: usize, body: &[u8]) -> Reply {
    ask(scene, "PATCH", address, &[PART, ("upload-offset", &offset.to_string())], body)
}

#[track_caller]
fn offset(scene: &Scene, address: &str) -> usize {
    let head = ask(scene, "HEAD", address, &[], b"").expect(200);
    assert_eq!(head.header("cache-control"), Some("no-store"));
    head.header("upload-offset").unwrap().parse().unwrap()
}

fn contents(length: usize) -> Vec<u8> {
    (0..length).map(|number| (number / 7 % 251) as u8).collect()
}

#[test]
fn an_upload_goes_on_after_its_connection_was_cut() {
    needs_sandboxes!();
    let scene = Scene::new();
    let whole = contents(5 << 20);
    scene.put("/workspace/big.bin", b"old").expect(201);
    let address = begun(&scene, whole.len());
    assert_eq!(offset(&scene, &address), 0);
    part(&scene, &address, 0, &whole[..1000]).expect(204);

    // The connection ends in the middle, and nobody says so.
    let rest = (whole.len() - 1000).to_string();
    let headers =
        [("authorization", scene.token.as_str()), VERSION, PART, ("upload-offset", "1000"), ("content-length", &rest)];
    let mut stream = begin(scene.server.address, "PATCH", &address, &headers);
    stream.write_all(&whole[1000..3 << 20]).unwrap();
    let mut reached = 0;
    wait_until("some of it has come", || {
        reached = offset(&scene, &address);
        reached > 1000
    });
    assert!(reached <= 3 << 20);
    assert_eq!(scene.get("/workspace/big.bin").body, b"old");
    part(&scene, &address, 1000, b"again").expect(409);
    let last = part(&scene, &address, reached, &whole[reached..]).expect(204);
    assert_eq!(last.header("upload-offset"), Some(whole.len().to_string().as_str()));
    assert_eq!(scene.get("/workspace/big.bin").body, whole);
    drop(stream);
    // A sender that did not hear of the end learns of it.
    assert_eq!(offset(&scene, &address), whole.len());
    part(&scene, &address, whole.len(), b"").expect(204);
    assert_eq!(scene.names("/workspace"), ["big.bin"]);
}

#[test]
fn what_is_asked_wrongly_is_refused_and_changes_nothing() {
    needs_sandboxes!();
    let scene = Scene::with(&["--max-upload", "8M"], &[]);
    let uploads = format!("{}/uploads", scene.base());
    let spoken = scene.send("OPTIONS", &uploads, &[], b"").expect(204);
    assert_eq!(spoken.header("tus-version"), Some("1.0.0"));
    assert_eq!(spoken.header("tus-extension"), Some("creation,termination,expiration"));
    assert_eq!(spoken.header("tus-max-size"), Some("8388608"));
    let old =
        scene.send("POST", &uploads, &[("tus-resumable", "0.2.2"), ("upload-length", "1"), NAME], b"").expect(412);
    assert_eq!(old.header("tus-version"), Some("1.0.0"));
    scene.send("POST", &uploads, &[("upload-length", "1"), NAME], b"").expect(412);
    ask(&scene, "POST", &uploads, &[NAME], b"").expect(400);
    ask(&scene, "POST", &uploads, &[("upload-length", "1")], b"").expect(400);
    ask(&scene, "POST", &uploads, &[("upload-length", "8388609"), NAME], b"").expect(413);
    // ../evil
    ask(&scene, "POST", &uploads, &[("upload-length", "1"), ("upload-metadata", "filename Li4vZXZpbA==")], b"")
        .expect(400);
    ask(&scene, "POST", &uploads, &[("upload-length", "1"), ("upload-metadata", "path Li4vZXZpbA==")], b"").expect(400);

    let address = begun(&scene, 10);
    ask(&scene, "PATCH", &address, &[("upload-offset", "0")], b"x").expect(415);
    ask(&scene, "PATCH", &address, &[PART], b"x").expect(400);
    part(&scene, &address, 1, b"x").expect(409);
    part(&scene, &address, 0, b"more than ten").expect(413);
    assert_eq!(offset(&scene, &address), 0);
    for (method, authorization) in [
        ("HEAD", token(&scene.world, &["--owner", "bob"])),
        ("PATCH", token(&scene.world, &["--owner", "bob"])),
        ("DELETE", token(&scene.world, &["--owner", "bob"])),
    ] {
        let headers = [("authorization", authorization.as_str()), VERSION, PART, ("upload-offset", "0")];
        client::send(scene.server.address, method, &address, &headers, b"").expect(404);
    }
    ask(&scene, "HEAD", &format!("{uploads}/{}", "0".repeat(32)), &[], b"").expect(404);
    ask(&scene, "DELETE", &address, &[], b"").expect(204);
    ask(&scene, "HEAD", &address, &[], b"").expect(404);
    part(&scene, &address, 0, b"x").expect(404);
    assert_eq!(scene.names("/workspace"), Vec::<String>::new());
    let empty = begun(&scene, 0);
    assert_eq!((offset(&scene, &empty), scene.get("/workspace/big.bin").body.len()), (0, 0));
}

#[test]
fn unfinished_uploads_are_bounded_and_end_with_their_sandbox() {
    needs_sandboxes!();
    let scene = Scene::with(&[], &["--disk", "16M"]);
    let addresses: Vec<_> = (0..8).map(|_| begun(&scene, 4 << 20)).collect();
    let one_more = [("upload-length", "1"), NAME];
    let refused = ask(&scene, "POST", &format!("{}/uploads", scene.base()), &one_more, b"").expect(503);
    assert!(refused.header("retry-after").is_some());
    // They count as the sandbox's: eight of these do not fit.
    let body = vec![b'x'; 3 << 20];
    let statuses: Vec<_> = addresses.iter().map(|address| part(&scene, address, 0, &body).status).collect();
    assert!(statuses.starts_with(&[204, 204, 204, 204]) && statuses.contains(&507), "{statuses:?}");
    let full = statuses.iter().position(|status| *status == 507).unwrap();
    ask(&scene, "HEAD", &addresses[full], &[], b"").expect(404);
    assert_eq!(offset(&scene, &addresses[0]), body.len());
    assert_eq!(scene.names("/workspace"), Vec::<String>::new(), "none of them has a name");
    for address in &addresses {
        ask(&scene, "DELETE", address, &[], b"");
    }
    wait_until("there is room again", || scene.put("/workspace/a", &vec![b'x'; 12 << 20]).status == 201);

    let left = begun(&scene, 10);
    scene.world.run(&["stop", &scene.sandbox]).expect(0, &format!("{}\n", scene.sandbox));
    wait_until("it is gone with its sandbox", || ask(&scene, "HEAD", &left, &[], b"").status == 404);
}

/// What has come is in the sandbox, but the open end of it was the server's: as documented, such an upload begins anew.
#[test]
fn an_upload_ends_with_the_server_and_leaves_the_old_file() {
    needs_sandboxes!();
    let mut scene = Scene::new();
    scene.put("/workspace/big.bin", b"old").expect(201);
    let address = begun(&scene, 1 << 20);
    part(&scene, &address, 0, &contents(1000)).expect(204);
    scene.server.signal(rustix::process::Signal::KILL);
    scene.server.wait();
    scene.server = Server::guarded(&scene.world, &[]);
    let gone = ask(&scene, "HEAD", &address, &[], b"").expect(404);
    assert!(gone.is_whole);
    part(&scene, &address, 1000, b"x").expect(404);
    assert_eq!(scene.get("/workspace/big.bin").body, b"old");
    assert_eq!(scene.names("/workspace"), ["big.bin"]);
}
