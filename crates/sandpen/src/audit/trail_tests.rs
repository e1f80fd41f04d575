use std::path::PathBuf;

use super::*;

fn line(event: &'static str) -> Line {
    Line {
        owner: Some("alice".parse().unwrap()),
        sandbox: Some("sb-7k2m9x4bqhtw3ecd".parse().unwrap()),
        event,
        details: vec![("path", "/a\n\"b\"".into()), ("bytes", 3.into())],
    }
}

fn written(count: usize) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.jsonl");
    let mut trail = Trail::open(&path).unwrap();
    assert!((0..count).all(|_| trail.add(&line("file_read"), SystemTime::now())));
    trail.close();
    (place, path)
}

#[test]
fn a_trail_goes_on_over_restarts_and_verifies() {
    let (_place, path) = written(3);
    let first = verify(&path).unwrap();
    assert_eq!(first.lines, 4, "and that it was opened");
    Trail::open(&path).unwrap().add(&line("file_read"), SystemTime::now());
    let second = verify(&path).unwrap();
    assert_eq!(second.lines, 6);
    assert_ne!(first.head, second.head);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 6, "what somebody chose makes no line");
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["owner"], "alice");
    assert_eq!(last["path"], "/a\n\"b\"");
}

#[test]
fn whatever_is_changed_is_seen() {
    let (_place, path) = written(4);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let without = |index: usize| lines.iter().enumerate().filter(move |(at, _)| *at != index).map(|(_, line)| *line);
    let joined = |lines: Vec<&str>| lines.join("\n") + "\n";
    let mut swapped = lines.clone();
    swapped.swap(1, 2);
    let mut doubled = lines.clone();
    doubled.insert(2, lines[1]);
    for (changed, at) in [
        (text.replacen("alice", "mallory", 1), "line 3"),
        (joined(without(0).collect()), "line 1"),
        (joined(without(2).collect()), "line 3"),
        (joined(swapped), "line 2"),
        (joined(doubled), "line 3"),
        (format!("{text}{{\"number\":6}}\n"), "line 6"),
        (format!("{text}half of a li"), "line 6"),
        (format!("{text}\n"), "line 6"),
    ] {
        std::fs::write(&path, &changed).unwrap();
        let error = verify(&path).unwrap_err();
        assert!(error.message().contains(at), "{at}: {error}");
    }
    // What only its keeper can see: the head is another.
    std::fs::write(&path, joined(without(4).collect())).unwrap();
    assert_eq!(verify(&path).unwrap().lines, 4);
}

#[test]
fn half_a_line_of_a_process_that_died_is_cut_off_and_told() {
    let (_place, path) = written(2);
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"number\":4,").unwrap();
    Trail::open(&path).unwrap().close();
    assert_eq!(verify(&path).unwrap().lines, 4);
    assert!(std::fs::read_to_string(&path).unwrap().lines().last().unwrap().contains("\"torn_bytes\":12"));
}

#[test]
fn a_file_of_something_else_is_not_written_to() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("notes.txt");
    std::fs::write(&path, "my notes\n").unwrap();
    assert!(Trail::open(&path).unwrap_err().message().contains("does not end as an audit trail does"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes\n");
    std::os::unix::fs::symlink(&path, place.path().join("link")).unwrap();
    assert!(Trail::open(&place.path().join("link")).is_err());
    assert!(Trail::open(place.path()).is_err());
}

#[test]
fn two_processes_do_not_share_a_trail() {
    let (_place, path) = written(0);
    let held = Trail::open(&path).unwrap();
    assert!(Trail::open(&path).unwrap_err().message().contains("another process"));
    drop(held);
    Trail::open(&path).unwrap();
}
