//! What files are asked for and given, day by day.

use serde_json::json;

use crate::client;
use crate::scene::{Scene, needs_sandboxes, token};

#[test]
fn a_file_is_put_and_got_and_deleted() {
    needs_sandboxes!();
    let scene = Scene::new();
    let put = scene.put("/workspace/new/dir/a.txt", b"0123456789").expect(201);
    assert_eq!(put.json(), json!({ "path": "/workspace/new/dir/a.txt", "bytes": 10 }));
    scene.put("/workspace/new/dir/a.txt", b"0123456789").expect(200);
    let got = scene.get("/workspace/new/dir/a.txt").expect(200);
    assert_eq!((got.body.as_slice(), got.header("content-length")), (&b"0123456789"[..], Some("10")));
    assert_eq!(got.header("accept-ranges"), Some("bytes"));
    let tag = got.header("etag").unwrap().to_owned();
    let head = scene.send("HEAD", &scene.at("/workspace/new/dir/a.txt"), &[], b"").expect(200);
    assert_eq!((head.header("content-length"), head.header("etag")), (Some("10"), Some(tag.as_str())));

    let part = |headers: client::Headers<'_>| scene.send("GET", &scene.at("/workspace/new/dir/a.txt"), headers, b"");
    let middle = part(&[("range", "bytes=2-4")]).expect(206);
    assert_eq!((middle.body.as_slice(), middle.header("content-range")), (&b"234"[..], Some("bytes 2-4/10")));
    assert_eq!(part(&[("range", "bytes=-3"), ("if-range", &tag)]).expect(206).body, b"789");
    assert_eq!(part(&[("range", "bytes=-3"), ("if-range", "\"other\"")]).expect(200).body, b"0123456789");
    assert_eq!(part(&[("range", "bytes=10-")]).expect(416).header("content-range"), Some("bytes */10"));
    part(&[("if-none-match", &tag)]).expect(304);
    part(&[("if-match", "\"other\"")]).expect(412);
    scene.run("printf changed > new/dir/a.txt");
    assert_eq!(part(&[("range", "bytes=0-0"), ("if-range", &tag)]).expect(200).body, b"changed");

    let delete = |path: &str| scene.send("DELETE", &scene.at(path), &[], b"");
    delete("/workspace/new/dir/a.txt").expect(204);
    delete("/workspace/new/dir/a.txt").expect(404);
    delete("/workspace/new").expect(204);
    delete("/usr/bin").expect(403);
    scene.get("/workspace/new").expect(404);
}

#[test]
fn directories_are_made_and_listed() {
    needs_sandboxes!();
    let scene = Scene::new();
    let make = |path: &str| scene.send("POST", &scene.at(path), &[], b"");
    make("/workspace/a/b?directory").expect(201);
    make("/workspace/a/b?directory").expect(201);
    scene.run("ln -s a link; ln -s a/b/c file-link; printf 12345 > a/b/c; touch -d @1000000000 a/b/c");
    let listing = scene.get("/workspace/a/b").expect(200).json();
    let expected = json!({
        "path": "/workspace/a/b",
        "entries": [{ "name": "c", "href": "c", "kind": "file", "bytes": 5, "modified": "2001-09-09T01:46:40Z" }],
        "truncated": false,
    });
    assert_eq!(listing, expected);
    assert_eq!(scene.names("/workspace"), ["a", "file-link", "link"]);
    assert_eq!(scene.names("/workspace/link"), ["b"], "links are followed inside");
    assert_eq!(scene.get("/workspace/file-link").expect(200).body, b"12345");
    assert!(scene.names("/").contains(&"workspace".to_owned()) && scene.names("").contains(&"tmp".to_owned()));
    make("/workspace/a/b/c?directory").expect(409);
    make("/workspace/a").expect(415);
    scene.send("PATCH", &scene.at("/workspace/a"), &[], b"").expect(405);
}

#[test]
fn a_form_brings_several_files() {
    needs_sandboxes!();
    let scene = Scene::new();
    let form = "--X\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\na field\r\n\
                --X\r\ncontent-disposition: form-data; name=\"f\"; filename=\"one.txt\"\r\n\r\n1\r\n\
                --X\r\ncontent-disposition: form-data; name=\"f\"; filename=\"two.txt\"\r\ncontent-type: text/html\r\n\r\n22\r\n--X--";
    let headers = [("content-type", "multipart/form-data; boundary=X")];
    let post = |form: &str| scene.send("POST", &scene.at("/workspace/d"), &headers, form.as_bytes());
    let posted = post(form).expect(201).json();
    let files = json!([
        { "path": "/workspace/d/one.txt", "bytes": 1 },
        { "path": "/workspace/d/two.txt", "bytes": 2 },
    ]);
    assert_eq!(posted["files"], files);
    assert_eq!(scene.run("cat d/one.txt d/two.txt"), "122");
    post(&form.replace("two.txt", "one.txt")).expect(400);
    post(&form[..form.len() - 6]).expect(400);
    scene.send("POST", &scene.at("/workspace/d"), &[("content-type", "text/plain")], b"x").expect(415);
}

#[test]
fn files_are_their_owners_and_rights_are_kept() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.put("/workspace/a", b"mine").expect(201);
    let (bob, reader) = (token(&scene.world, &["--owner", "bob"]), token(&scene.world, &["--scope", "read"]));
    let by = |authorization: &str, method: &str, path: &str| {
        client::send(scene.server.address, method, path, &[("authorization", authorization)], b"")
    };
    for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
        let foreign = by(&bob, method, &scene.at("/workspace/a")).expect(404);
        let unknown = by(&bob, method, &scene.at("/workspace/a").replace(&scene.sandbox, "sb-7k2m9x4bqhtw3ecd"));
        let told =
            |reply: &client::Reply| String::from_utf8_lossy(&reply.body).replace(&scene.sandbox, "sb-7k2m9x4bqhtw3ecd");
        assert_eq!((unknown.status, told(&unknown)), (404, told(&foreign)), "{method}");
        by("Bearer wrong", method, &scene.at("/workspace/a")).expect(401);
        let status = if matches!(method, "GET" | "HEAD") { 200 } else { 403 };
        by(&reader, method, &scene.at("/workspace/a")).expect(status);
    }
    assert_eq!(scene.get("/workspace/a").body, b"mine");
}

#[test]
fn what_was_taken_from_the_tools_is_not_given_back() {
    needs_sandboxes!();
    let scene = Scene::with(&["--read-only"], &[]);
    scene.get("/workspace").expect(200);
    scene.put("/workspace/a", b"x").expect(403);
    scene.send("DELETE", &scene.at("/workspace"), &[], b"").expect(403);
    let uploads = format!("{}/uploads", scene.base());
    scene.send("POST", &uploads, &[("tus-resumable", "1.0.0"), ("upload-length", "1")], b"").expect(403);
    let links = format!("{}/links", scene.base());
    scene.send("POST", &links, &[], br#"{"path":"a","method":"PUT"}"#).expect(403);
}

#[test]
fn what_is_done_with_files_is_written_down() {
    needs_sandboxes!();
    let mut scene = Scene::with(&["--audit-log", "audit.jsonl"], &[]);
    scene.put("/workspace/a", b"s3cret-contents").expect(201);
    scene.get("/workspace/a").expect(200);
    let link = scene.link_to("a");
    client::send(scene.server.address, "GET", &link, &[], b"").expect(200);
    client::send(scene.server.address, "GET", &link.replace("/a", "/b"), &[], b"").expect(404);
    scene.put("/usr/a", b"x").expect(403);
    scene.server.signal(rustix::process::Signal::TERM);
    assert!(scene.server.wait().0.success());
    let text = scene.world.read("audit.jsonl");
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).cloned().collect::<Vec<_>>();
    let told: Vec<_> = of("files")
        .iter()
        .map(|line| format!("{} {} {} {}", line["action"], line["by"], line["path"], line["status"]).replace('"', ""))
        .collect();
    let expected = [
        "upload token /workspace/a 201",
        "download token /workspace/a 200",
        "link token /workspace/a 201",
        "download link /workspace/a 200",
        "upload token /usr/a 403",
    ];
    assert_eq!(told, expected);
    assert!(of("files").iter().all(|line| line["owner"] == "local" && line["sandbox"] == scene.sandbox.as_str()));
    assert_eq!(of("turned_away")[0]["why"], "wrong_link");
    assert_eq!(of("file_read").last().unwrap()["bytes"], 15);
    assert!(!text.contains("s3cret-contents") && !text.contains(link.split('/').nth(2).unwrap()));
}
