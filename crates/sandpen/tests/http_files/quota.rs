//! FU-08: what is too much is refused early, and no more gets in than there is room for.

use std::io::Write;

use crate::careless::Careless;
use crate::client::{Reply, begin, finish};
use crate::scene::{Scene, Store, needs_sandboxes};
use crate::support::Engine;

const MEBIBYTE: usize = 1 << 20;

/// A body that is only announced.
fn announce(store: &Store, length: usize) -> Reply {
    let length = length.to_string();
    let headers =
        [("authorization", store.authorization.as_str()), ("content-length", &length), ("expect", "100-continue")];
    let mut stream = begin(store.address, "PUT", &format!("{}/announced", store.base), &headers);
    // Whoever does not answer by itself is helped to.
    let _ = stream.set_read_timeout(Some(std::time::Duration::from_secs(2)));
    let mut first = [0];
    if stream.peek(&mut first).is_err() {
        let _ = stream.write_all(&vec![b'x'; length.parse().unwrap()]);
    }
    finish(stream, false)
}

/// One whose length nobody says.
fn trickle(store: &Store, pieces: usize) -> Reply {
    let headers = [("authorization", store.authorization.as_str()), ("transfer-encoding", "chunked")];
    let mut stream = begin(store.address, "PUT", &format!("{}/trickled", store.base), &headers);
    let piece = [format!("{MEBIBYTE:x}\r\n").as_bytes(), &vec![b'x'; MEBIBYTE], b"\r\n"].concat();
    for _ in 0..pieces {
        if stream.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = stream.write_all(b"0\r\n\r\n");
    finish(stream, false)
}

/// What was taken that is more than 4 MiB.
fn breaches(store: &Store) -> Vec<String> {
    let announced = announce(store, 5 * MEBIBYTE);
    let replies = [("announced", announced.status, 413), ("trickled", trickle(store, 6).status, 413)];
    let wrong = replies.into_iter().filter(|(_, status, expected)| status != expected);
    wrong.map(|(what, status, _)| format!("{what} was answered with {status}")).collect()
}

#[test]
fn what_is_too_large_is_refused_before_it_is_read() {
    needs_sandboxes!();
    let scene = Scene::with(&["--max-upload", "4M"], &[]);
    assert_eq!(breaches(&scene.store()), Vec::<String>::new());
    assert_eq!(scene.names("/workspace"), Vec::<String>::new());
    assert_eq!(trickle(&scene.store(), 4).status, 201, "as much as is allowed");
    scene.put("/workspace/a", &vec![b'x'; 4 * MEBIBYTE]).expect(201);
    scene.put("/workspace/b", &vec![b'x'; 4 * MEBIBYTE + 1]).expect(413);
    let form =
        [&b"--X\r\ncontent-disposition: form-data; name=f; filename=c\r\n\r\n"[..], &vec![b'x'; 5 * MEBIBYTE]].concat();
    let headers = [("content-type", "multipart/form-data; boundary=X")];
    scene.send("POST", &scene.at("/workspace"), &headers, &form).expect(413);
    assert_eq!(scene.names("/workspace"), ["a", "trickled"]);
}

#[test]
fn a_careless_server_is_found_out_by_what_it_takes() {
    let found = breaches(&Careless::start().store);
    assert!(found.iter().any(|breach| breach.starts_with("announced")), "{found:?}");
}

#[test]
fn no_more_gets_in_than_the_sandbox_has_room_for() {
    needs_sandboxes!();
    let scene = Scene::with(&[], &["--disk", "16M"]);
    scene.put("/workspace/whole", &vec![b'x'; 17 * MEBIBYTE]).expect(507);
    let store = scene.store();
    assert_eq!(trickle(&store, 17).status, 507);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let put = |number: usize| {
            let store = &store;
            scope.spawn(move || store.send("PUT", &format!("/{number}"), &[], &vec![b'x'; 800 << 10]).status)
        };
        let all: Vec<_> = (0..50).map(put).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let taken = statuses.iter().filter(|status| **status == 201).count();
    assert!(statuses.iter().all(|status| matches!(status, 201 | 507)), "{statuses:?}");
    assert!((1..=20).contains(&taken), "{statuses:?}");
    assert_eq!(scene.names("/workspace").len(), taken, "those that were taken, and no others");
    let used: usize = scene.run("du -s --block-size=1 /workspace | cut -f1").trim().parse().unwrap();
    assert!(used <= 16 * MEBIBYTE, "{used}");
}

#[test]
fn no_more_files_get_in_than_the_sandbox_may_have() {
    needs_sandboxes!();
    let scene = Scene::with(&[], &["--inodes", "1500"]);
    let post = |round: usize, count: usize| {
        let mut form = String::new();
        for number in 0..count {
            form += &format!("--X\r\ncontent-disposition: form-data; name=f; filename={round}-{number}\r\n\r\n.\r\n");
        }
        let headers = [("content-type", "multipart/form-data; boundary=X")];
        scene.send("POST", &scene.at("/workspace"), &headers, (form + "--X--").as_bytes()).status
    };
    assert_eq!(post(0, 1001), 413, "a form brings 1000");
    if matches!(Engine::of_test(), Engine::OfDaemon { name, .. } if name == "podman") {
        crate::support::skip("on podman: it has no way to bound the number of files");
        return;
    }
    assert_eq!(post(1, 1000), 507);
    let count: usize = scene.run("find /workspace -type f | wc -l").trim().parse().unwrap();
    assert!((1000..=1500).contains(&count), "{count}");
}
