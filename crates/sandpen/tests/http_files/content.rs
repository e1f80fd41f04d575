//! FU-04, as far as headers tell: what code has made can do nothing with our origin. What a browser makes of them is tried in
//! one elsewhere.

use crate::careless::Careless;
use crate::client::{self, Reply};
use crate::scene::{Scene, needs_sandboxes};

const SCRIPT: &str = "<script>fetch('/api/sandboxes')</script>";

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let svg = format!("<svg xmlns='http://www.w3.org/2000/svg'>{SCRIPT}</svg>");
    vec![
        ("page.html", SCRIPT.into()),
        ("page.HTM", SCRIPT.into()),
        ("page.xhtml", SCRIPT.into()),
        ("picture.svg", svg.clone().into_bytes()),
        ("feed.xml", format!("<?xml version='1.0'?>{svg}").into_bytes()),
        ("paper.pdf", b"%PDF-1.7 /OpenAction /JavaScript".to_vec()),
        ("code.js", b"alert(1)".to_vec()),
        ("style.css", b"@import '/api/sandboxes'".to_vec()),
        ("nothing", SCRIPT.into()),
        ("wrong.png", SCRIPT.into()),
        ("wrong.txt", SCRIPT.into()),
        ("polyglot.gif", format!("GIF89a/*{SCRIPT}*/=1").into_bytes()),
        ("odd.html%0d%0aset-cookie:%20a=b", SCRIPT.into()),
    ]
}

/// What a browser would be let do with an answer.
fn breaches(reply: &Reply) -> Vec<String> {
    let mut found = Vec::new();
    let mut must = |name: &str, holds: &dyn Fn(&str) -> bool| {
        if !reply.header(name).is_some_and(holds) {
            found.push(format!("{name}: {:?}", reply.header(name)));
        }
    };
    let active = ["html", "svg", "xml", "pdf", "javascript", "css"];
    must("content-type", &|value| !active.iter().any(|word| value.contains(word)));
    must("x-content-type-options", &|value| value == "nosniff");
    must("content-security-policy", &|value| value == "sandbox; default-src 'none'");
    must("referrer-policy", &|value| value == "no-referrer");
    must("cache-control", &|value| value == "no-store");
    must("cross-origin-resource-policy", &|value| value == "same-origin");
    // A picture or a text can do nothing where it is shown.
    let is_plain = |value: &str| value.starts_with("image/") || value == "text/plain; charset=utf-8";
    let may_be_shown = reply.header("content-type").is_some_and(is_plain);
    must("content-disposition", &|value| value.starts_with("attachment") || may_be_shown && value == "inline");
    if reply.header("set-cookie").is_some() {
        found.push("a cookie".to_owned());
    }
    found
}

#[test]
fn what_code_has_made_is_served_as_a_file_that_can_do_nothing() {
    needs_sandboxes!();
    let scene = Scene::new();
    for (name, contents) in samples() {
        scene.put(&format!("/workspace/{name}"), &contents).expect(201);
        let api = scene.at(&format!("/workspace/{name}"));
        for address in [api.clone(), format!("{api}?inline")] {
            let got = scene.send("GET", &address, &[], b"").expect(200);
            assert_eq!(got.body, contents);
            assert_eq!(breaches(&got), Vec::<String>::new(), "{address}");
        }
        if name.contains('%') {
            continue;
        }
        let link = scene.link_to(name);
        for address in [link.clone(), format!("{link}?inline")] {
            let got = client::send(scene.server.address, "GET", &address, &[], b"").expect(200);
            assert_eq!(breaches(&got), Vec::<String>::new(), "{address}");
        }
    }
    let plain = |address: &str| scene.get(address).header("content-disposition").unwrap().to_owned();
    assert!(plain("/workspace/wrong.txt").starts_with("attachment; "), "unless it is asked for");
    assert_eq!(plain("/workspace/wrong.txt?inline"), "inline");
    assert!(plain("/workspace/page.html?inline").starts_with("attachment; "));
    // Listings, archives and refusals are of the same origin.
    for (address, status) in [("/workspace", 200), ("/workspace?archive=tar", 200), ("/missing", 404), ("/%00", 400)] {
        let got = scene.get(address).expect(status);
        for name in ["x-content-type-options", "content-security-policy", "referrer-policy"] {
            assert!(got.header(name).is_some(), "{name} of {address}");
        }
    }
}

#[test]
fn a_careless_server_is_found_out_by_what_it_serves() {
    let careless = Careless::start();
    for (name, contents) in samples().into_iter().filter(|(name, _)| !name.contains('%')) {
        std::fs::write(careless.path(name), contents).unwrap();
        let got = client::send(careless.store.address, "GET", &format!("/{name}"), &[], b"");
        assert!(breaches(&got).len() >= 5, "{name}: {:?}", breaches(&got));
    }
}
