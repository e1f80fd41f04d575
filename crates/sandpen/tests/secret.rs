//! `sandpen secret` on the real binary: values go in and never come out.

mod support;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::json;
use support::World;

const VALUE: &str = "sk-canary-\"\\value";

fn keep(world: &World, name: &str, arguments: &[&str]) -> support::Done {
    let line = [&["secret", "set", name], arguments].concat();
    world.run_with_stdin(&line, &format!("{VALUE}\n"))
}

fn file(world: &World) -> std::path::PathBuf {
    world.state_dir().join("secrets.toml")
}

#[test]
fn a_secret_is_kept_listed_and_forgotten() {
    let world = World::new();
    world.run(&["secret", "ls"]).expect(0, "").says("you keep no secrets");
    keep(&world, "API_KEY", &["--host", "api.example.com", "--host", "*.example.org:8443"]).expect(0, "API_KEY\n");
    keep(&world, "OTHER", &["--host", "b.example", "--header", "X-Api-Key: {}"]).expect(0, "OTHER\n");
    world.run(&["secret", "ls"]).expect(
        0,
        "NAME     HOSTS                                HEADER\n\
         API_KEY  api.example.com, *.example.org:8443  –\n\
         OTHER    b.example                            X-Api-Key: {}\n",
    );
    world.run(&["secret", "ls", "--quiet"]).expect(0, "API_KEY\nOTHER\n");
    let listed = world.run(&["secret", "ls", "--json"]);
    assert_eq!(
        listed.json(),
        json!({ "secrets": [
            { "name": "API_KEY", "hosts": ["api.example.com", "*.example.org:8443"], "header": null },
            { "name": "OTHER", "hosts": ["b.example"], "header": "X-Api-Key: {}" },
        ]})
    );
    world.run(&["secret", "rm", "API_KEY", "NOT_THERE"]).expect(1, "").says("there is no secret NOT_THERE");
    world.run(&["secret", "ls", "--quiet"]).expect(0, "API_KEY\nOTHER\n");
    world.run(&["secret", "rm", "API_KEY"]).expect(0, "API_KEY\n");
    assert_eq!(world.run(&["secret", "rm", "OTHER", "--json"]).json(), json!({ "removed": ["OTHER"] }));
    assert!(!std::fs::read_to_string(file(&world)).unwrap().contains("canary"));
}

#[test]
fn the_file_is_its_owners_alone_and_holds_the_value() {
    let world = World::new();
    keep(&world, "KEY", &["--host", "a.example"]).expect(0, "KEY\n");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file(&world)), 0o600);
    let text = std::fs::read_to_string(file(&world)).unwrap();
    assert!(text.contains(r#"value = "sk-canary-\"\\value""#), "{text}");
    std::fs::set_permissions(file(&world), std::fs::Permissions::from_mode(0o644)).unwrap();
    world.run(&["secret", "ls"]).expect(1, "").says("is open to other users").says("chmod 600");
}

#[test]
fn a_new_value_keeps_the_hosts() {
    let world = World::new();
    keep(&world, "KEY", &[]).expect(1, "").says("no host is named for KEY").says("--host");
    keep(&world, "KEY", &["--host", "a.example", "--header", "X-Key: {}"]).expect(0, "KEY\n");
    let again = world.run_with_stdin(&["secret", "set", "KEY", "--json"], "another-value");
    assert_eq!(again.json(), json!({ "name": "KEY", "hosts": ["a.example"], "header": "X-Key: {}" }));
    assert!(std::fs::read_to_string(file(&world)).unwrap().contains("another-value"));
}

#[test]
fn the_file_that_sandboxes_get_theirs_from_is_the_one_that_is_changed() {
    let world = World::new();
    let elsewhere = world.work().join("mine.toml");
    let mut command = world.command(&["secret", "set", "KEY", "--host", "a.example"]);
    let mut child =
        command.env("SANDPEN_SECRETS_FILE", &elsewhere).stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(VALUE.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(elsewhere.exists() && !file(&world).exists());
}

#[test]
fn a_value_as_an_argument_is_refused_and_not_repeated() {
    let world = World::new();
    let done = world.run(&["secret", "set", "KEY", VALUE, "--host", "a.example"]).expect(1, "");
    assert!(!done.stderr.contains("canary"), "{}", done.stderr);
    done.says("does not belong on the command line");
    let done = world.run(&["secret", "set", &format!("KEY={VALUE}"), "--host", "a.example"]).expect(1, "");
    assert!(!done.stderr.contains("canary"), "{}", done.stderr);
    done.says("does not belong on the command line");
    assert!(!file(&world).exists());
}

#[test]
fn values_that_cannot_be_kept_are_refused_and_not_repeated() {
    let world = World::new();
    let long = "canary".repeat(2000);
    for (value, why) in [
        ("", "the value is empty"),
        ("\n", "the value is empty"),
        ("canary", "fewer than 8 bytes"),
        ("sk-canary\nsk-canary", "a line break"),
        ("sk-canary\r\n", "a line break"),
        (&long, "more than 8192 bytes"),
    ] {
        let done = world.run_with_stdin(&["secret", "set", "KEY", "--host", "a.example"], value).expect(1, "");
        assert!(!done.stderr.contains("canary"), "{}", done.stderr);
        done.says(why);
    }
    keep(&world, "KEY", &["--host", "https://a.example/v1"])
        .expect(1, "")
        .says("hint: write the host alone: a.example");
    keep(&world, "KEY", &["--host", "a.example", "--header", "Host: {}"]).expect(1, "").says("only the proxy may set");
    keep(&world, "A-B", &["--host", "a.example"]).expect(1, "").says("cannot be the name of a secret");
}

#[test]
fn secrets_that_are_kept_at_once_are_all_kept() {
    let world = World::new();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let world = &world;
            scope.spawn(move || keep(world, &format!("KEY_{number}"), &["--host", "a.example"]).code == Some(0));
        }
    });
    assert_eq!(world.run(&["secret", "ls", "--quiet"]).stdout.lines().count(), 8);
}

/// The side of the keyboard and the screen, and the terminal.
fn sit_down() -> (std::fs::File, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    (master.into(), terminal)
}

fn set_on(world: &World, terminal: &OwnedFd) -> Child {
    world
        .command(&["secret", "set", "KEY", "--host", "a.example"])
        .stdin(terminal.try_clone().unwrap())
        .stdout(terminal.try_clone().unwrap())
        .stderr(terminal.try_clone().unwrap())
        .spawn()
        .unwrap()
}

fn read_until(screen: &mut std::fs::File, seen: &mut String, text: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !seen.contains(text) {
        assert!(Instant::now() < deadline, "{text:?} did not appear: {seen}");
        let mut question = [PollFd::new(screen, PollFlags::IN)];
        if poll(&mut question, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap() > 0 {
            let mut buffer = [0; 4096];
            let count = screen.read(&mut buffer).unwrap_or(0);
            *seen += &String::from_utf8_lossy(&buffer[..count]);
        }
    }
}

#[test]
fn a_person_types_a_value_unseen() {
    let world = World::new();
    let (mut screen, terminal) = sit_down();
    let mut child = set_on(&world, &terminal);
    let mut seen = String::new();
    read_until(&mut screen, &mut seen, "value of KEY (not shown): ");
    screen.write_all(b"sk-canary-typed\r").unwrap();
    read_until(&mut screen, &mut seen, "\r\nKEY\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!seen.contains("canary"), "{seen}");
    assert!(tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO));
    assert!(std::fs::read_to_string(file(&world)).unwrap().contains("\"sk-canary-typed\""));
}

#[test]
fn the_terminal_is_put_back_when_a_person_gives_up() {
    let world = World::new();
    let (mut screen, terminal) = sit_down();
    let mut child = set_on(&world, &terminal);
    read_until(&mut screen, &mut String::new(), "not shown");
    assert!(!tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO));
    // What Ctrl-C means to a terminal that controls its processes; this one is nobody's.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO));
    assert!(!file(&world).exists());
}
