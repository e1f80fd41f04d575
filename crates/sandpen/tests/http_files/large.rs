//! Large files in and out: whatever their size, the server's memory is the same.

use std::io::{Read, Write};

use crate::client::{begin, finish};
use crate::scene::{Scene, needs_sandboxes};

const PIECE: usize = 1 << 20;

/// How many bytes: a quarter of a gibibyte, or a whole one with `SANDPEN_TEST_LARGE`.
fn size() -> usize {
    if std::env::var_os("SANDPEN_TEST_LARGE").is_some() { 1 << 30 } else { 256 << 20 }
}

/// More than any buffer of one transfer, and far less than a file.
const ALLOWED: u64 = 32 << 20;

/// Another one for each number, so that no piece stands for another.
fn piece(number: usize) -> Vec<u8> {
    let mut piece = vec![(number % 251) as u8; PIECE];
    piece[..8].copy_from_slice(&(number as u64).to_le_bytes());
    piece
}

/// A line of what the kernel tells of a process, in bytes.
fn memory(process: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    found.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// How much more memory the server had meanwhile than before.
fn growth(scene: &Scene, work: impl FnOnce()) -> u64 {
    let process = scene.server.process();
    let before = memory(process, "VmRSS");
    // The most that it ever had counts from here.
    std::fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
    work();
    memory(process, "VmHWM").saturating_sub(before)
}

fn upload(scene: &Scene, path: &str) {
    let length = size().to_string();
    let headers = [("authorization", scene.token.as_str()), ("content-length", &length)];
    let mut stream = begin(scene.server.address, "PUT", &scene.at(path), &headers);
    for number in 0..size() / PIECE {
        stream.write_all(&piece(number)).unwrap();
    }
    finish(stream, false).expect(201);
}

/// The body of an answer, a piece at a time; returns what is left over of the head.
fn download(scene: &Scene, address: &str, mut each: impl FnMut(usize, &[u8])) {
    let headers = [("authorization", scene.token.as_str())];
    let mut stream = begin(scene.server.address, "GET", address, &headers);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    let mut bytes = vec![0; PIECE];
    for number in 0..size() / PIECE {
        stream.read_exact(&mut bytes).unwrap();
        each(number, &bytes);
    }
    std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
}

#[test]
fn memory_is_flat_whatever_goes_in_or_out() {
    needs_sandboxes!();
    let scene = Scene::with(&["--max-upload", "4G"], &["--memory", "3G", "--disk", "3G"]);
    let up = growth(&scene, || upload(&scene, "/workspace/large"));
    let down = growth(&scene, || {
        download(&scene, &scene.at("/workspace/large"), |number, bytes| {
            assert_eq!(bytes, piece(number), "piece {number}");
        });
    });
    let archives = growth(&scene, || {
        download(&scene, &scene.at("/workspace?archive=tar"), |_, _| {});
        // It shrinks, so it is only read to its end.
        let headers = [("authorization", scene.token.as_str())];
        let mut zip = begin(scene.server.address, "GET", &scene.at("/workspace?archive=zip"), &headers);
        assert!(std::io::copy(&mut zip, &mut std::io::sink()).unwrap() > 1000);
    });
    eprintln!("{} MiB: up {up}, down {down}, archives {archives} bytes of memory", size() >> 20);
    assert!(up < ALLOWED && down < ALLOWED && archives < ALLOWED, "{up} {down} {archives}");

    // The same measure sees a server that keeps what it reads: a body for a tool is read as a whole.
    let kept = growth(&scene, || {
        let length = (32_usize << 20).to_string();
        let headers = [
            ("authorization", scene.token.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("content-length", &length),
        ];
        let mut stream = begin(scene.server.address, "POST", "/mcp", &headers);
        stream.write_all(&vec![b' '; 32 << 20]).unwrap();
        finish(stream, false);
    });
    assert!(kept >= ALLOWED, "{kept}");
}
