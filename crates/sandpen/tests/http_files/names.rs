//! FU-01: whatever a file is called, it stands inside under that very name, or is refused.

use crate::careless::Careless;
use crate::client::escaped;
use crate::scene::{CANARY, Scene, Store, needs_sandboxes};

/// What gets where it should not, or is not what it was called.
fn breaches(store: &Store) -> Vec<String> {
    let outside = store.outside.to_str().unwrap();
    let long = "n".repeat(255);
    let mut names: Vec<String> = [
        "..%2Fcanary",
        "%2e%2e/canary",
        "..%2F..%2Fcanary",
        "%252e%252e%252fcanary",
        "..%5Ccanary",
        "..%c0%afcanary",
        "a%2F..%2F..%2Fcanary",
        "C:%5Ccanary",
        "file%3A%2F%2Fcanary",
        "nul%00canary",
        "line%0D%0Aset-cookie:%20a=b",
        "dot.",
        "space%20",
        "...",
        "-rf",
        "~",
        "~root",
        "%ff%fe",
        "%ed%a0%80",
        "%ef%bc%8e%ef%bc%8e%ef%bc%8fcanary",
        "%e2%80%ae%e2%80%8bgnp.exe",
        "caf%c3%a9",
        "cafe%cc%81",
        "con",
        "%",
        "%zz",
    ]
    .map(str::to_owned)
    .into();
    names.extend([long.clone(), format!("{long}n"), format!("{}x", "d/".repeat(2048))]);
    names.extend([escaped(outside.as_bytes()), format!("{}{}", "..%2F".repeat(12), &outside[1..])]);
    let mut found = Vec::new();
    let mut kept = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let contents = format!("contents {number}");
        let put = store.send("PUT", &format!("/{name}"), &[], contents.as_bytes());
        match put.status {
            200 | 201 => kept.push((name, contents)),
            400 | 403 | 404 => {}
            other => found.push(format!("{name:.40} was answered with {other}")),
        }
        if std::fs::read_to_string(&store.outside).unwrap_or_default() != CANARY {
            found.push(format!("{name:.40} got outside"));
            std::fs::write(&store.outside, CANARY).unwrap();
        }
    }
    // Only now: no name may have taken the place of another.
    for (name, contents) in kept {
        let got = store.send("GET", &format!("/{name}"), &[], b"");
        if got.body != contents.as_bytes() {
            found.push(format!("{name:.40} is not what was put there: {got}"));
        }
    }
    found
}

#[test]
fn names_stay_inside_and_are_kept_byte_for_byte() {
    needs_sandboxes!();
    let scene = Scene::new();
    assert_eq!(breaches(&scene.store()), Vec::<String>::new());
    let inside = scene.run("ls -a /workspace | LC_ALL=C sort | od -An -c | tr -d '\\n '");
    for name in ["...", "-rf", "~root", "%2e%2e%2fcanary", "377376"] {
        assert!(inside.contains(name), "{name} is not in {inside}");
    }
    assert_eq!(scene.run("ls -d /canary /workspace/../canary 2>/dev/null; true"), "");
}

#[test]
fn a_careless_server_is_found_out_by_names() {
    let careless = Careless::start();
    let found = breaches(&careless.store);
    assert!(found.iter().any(|breach| breach.contains("got outside")), "{found:?}");
}

/// The same for the names that a form brings.
#[test]
fn a_form_brings_names_and_no_paths() {
    needs_sandboxes!();
    let scene = Scene::new();
    let post = |name: &[u8]| {
        let form = [
            b"--X\r\ncontent-disposition: form-data; name=\"f\"; filename=\"",
            name,
            b"\"\r\n\r\ncontents\r\n--X--\r\n",
        ]
        .concat();
        let headers = [("content-type", "multipart/form-data; boundary=X")];
        scene.send("POST", &scene.at("/workspace"), &headers, &form)
    };
    let kept: [&[u8]; 8] =
        [b"a.txt", b"..\\b", b"...", b"-x", "é".as_bytes(), "e\u{301}".as_bytes(), b"\xff\xfe", b"C:\\d"];
    for name in kept {
        let posted = post(name).expect(201).json();
        assert_eq!(posted["files"][0]["bytes"], 8);
        assert_eq!(scene.get(&format!("/workspace/{}", escaped(name))).expect(200).body, b"contents");
    }
    assert_eq!(scene.names("/workspace").len(), kept.len());
    let long = vec![b'x'; 256];
    for name in [&b""[..], b".", b"..", b"../a", b"/etc/passwd", b"a/b", b"a\0b", &long] {
        post(name).expect(400);
    }
    assert_eq!(scene.names("/workspace").len(), kept.len());
}
