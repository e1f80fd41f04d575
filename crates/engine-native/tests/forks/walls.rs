//! What a fork and its source share is closed to both: no way leads from one to files of the other.

use std::path::PathBuf;

use sandbox::Engine;

use crate::branches::fork;
use crate::place::{Place, Sandbox, is_root};
use crate::tests;

tests!(ids_of_a_fork_are_its_own, nothing_frozen_can_be_written_to, process_1_holds_layers_that_are_closed,);

/// Process 1 of a sandbox, as the host sees it, by a program that runs in it.
async fn process_1(sandbox: &Sandbox) -> i32 {
    let mark = format!("{}", sandbox.id);
    // Not last: a shell becomes the last program of its line.
    let script = format!("sleep 60; : {mark}");
    let request = sandbox::ExecRequest::shell(&script, std::time::Duration::from_secs(90)).unwrap();
    let running = sandbox.engine.start(&sandbox.id, &request).await.unwrap();
    let is_it = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(&format!(": {mark}")).then_some(pid)
    };
    let look = || std::fs::read_dir("/proc").unwrap().flatten().filter_map(is_it).min();
    let mut tries = 0;
    let mut pid = loop {
        match look() {
            Some(pid) => break pid,
            None if tries < 500 => tries += 1,
            None => panic!("the program is not seen"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    loop {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        if field("NSpid:").split_whitespace().last() == Some("1") {
            break;
        }
        pid = field("PPid:").trim().parse().unwrap();
    }
    running.control.kill().await.unwrap();
    running.control.wait().await.unwrap();
    pid
}

fn map(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap()
}

async fn ids_of_a_fork_are_its_own(place: Place) {
    let source = place.sandbox("host").await;
    source.says("echo x >file").await;
    let before = map(process_1(&source).await);
    let copy = fork(&source, |_| {}).await.unwrap();
    let (after, of_copy) = (map(process_1(&source).await), map(process_1(&copy).await));
    assert_eq!(before, after, "a restart keeps the ids");
    assert_ne!(after, of_copy, "a fork has others");
    source.destroy().await;
    copy.destroy().await;
}

async fn nothing_frozen_can_be_written_to(place: Place) {
    let source = place.sandbox("host").await;
    source.says("echo x >file; mkdir dir; chmod 777 dir file; ln file hard").await;
    let copy = fork(&source, |_| {}).await.unwrap();
    let ways = "
        exec 3<>file; echo y >&3; exec 3>&-
        echo z >>file; chmod 600 file; touch -d @1 file; mv dir other; rm hard; ln file hard; mkdir dir; echo new >dir/x
        for link in /proc/self/fd/* /proc/1/fd/* /proc/self/cwd /proc/1/cwd /proc/1/root; do echo w >$link/file; done 2>/dev/null
        setfattr -n user.overlay.opaque -v y dir 2>/dev/null; mount -o remount,rw / 2>/dev/null; true";
    copy.says(ways).await;
    assert_eq!(source.says("cat file hard; ls; ls dir; stat -c %a file").await, "x\nx\ndir\nfile\nhard\n777\n");
    source.says(ways).await;
    let second = fork(&copy, |_| {}).await.unwrap();
    assert_eq!(second.says("cat file | tail -1; ls dir").await, copy.says("cat file | tail -1; ls dir").await);
    for sandbox in [source, copy, second] {
        sandbox.destroy().await;
    }
}

/// Seen from the host, with rights that nobody inside has: the layers that process 1 holds refuse even those. The layer that
/// is its own does not, which shows that the attempt is one.
async fn process_1_holds_layers_that_are_closed(place: Place) {
    if !is_root() {
        return;
    }
    let source = place.sandbox("host").await;
    source.says("echo x >file").await;
    let copy = fork(&source, |_| {}).await.unwrap();
    for sandbox in [&source, &copy] {
        let pid = process_1(sandbox).await;
        let held = |number: i32, below: &str| PathBuf::from(format!("/proc/{pid}/fd/{number}/{below}"));
        let frozen = std::fs::OpenOptions::new().append(true).open(held(22, "workspace/file"));
        assert_eq!(frozen.unwrap_err().raw_os_error(), Some(30), "read-only");
        assert_eq!(std::fs::read_to_string(held(22, "workspace/file")).unwrap(), "x\n");
        sandbox.says("echo own >own").await;
        let own = std::fs::OpenOptions::new().append(true).open(held(5, "upper/workspace/own"));
        std::io::Write::write_all(&mut own.unwrap(), b"more\n").unwrap();
        assert_eq!(sandbox.says("cat own").await, "own\nmore\n");
    }
    source.destroy().await;
    copy.destroy().await;
}
