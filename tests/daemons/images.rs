//! Images are in the daemon, and never silently the embedded engine's.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sandpen_tests::program::Program;
use sandpen_tests::{Result, images, processes};
use serde_json::json;

use crate::scene::Scene;

pub(crate) fn of_the_daemon(scene: &mut Scene) -> Result<()> {
    let listed = scene.run(&["image", "ls", "--quiet"])?;
    // Podman shows the registry that a short name means.
    let has = |name: &str| listed.lines().any(|line| line.trim_start_matches("docker.io/library/") == name);
    if !has(images::DEBIAN) || !has(images::SCRATCH) {
        return Err(format!("the images are\n{listed}").into());
    }
    let ran = scene.ran(&["image", "prune"])?;
    let engine = scene.daemon.flavour().as_str();
    if ran.status.success() || !ran.stderr.contains(engine) {
        return Err(ran.told("the embedded engine's images were pruned"));
    }
    fetched(scene)
}

/// When it is asked for, and when a sandbox wants it.
fn fetched(scene: &mut Scene) -> Result<()> {
    let name = format!("{}/tool:1", scene.registry.host);
    scene.daemon.run(&["tag", images::SCRATCH, &name])?;
    scene.daemon.run(&["push", "--quiet", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    scene.run(&["image", "pull", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    let id = scene.run(&["create", "--image", &name])?;
    let said = scene.run(&["exec", id.trim(), "--", "/program"]);
    scene.run(&["stop", id.trim()])?;
    scene.remove_image(&name)?;
    if said? == "hello\n" { Ok(()) } else { Err("the image that was fetched does not run".into()) }
}

/// Nothing that we do in a sandbox is done by programs of its image.
pub(crate) fn without_a_shell(scene: &mut Scene) -> Result<()> {
    let refused = scene.ran(&["run", "bash", "--image", images::SCRATCH, "echo ran"])?;
    if refused.status.code() != Some(127) || !refused.stderr.contains("Bash is not in this sandbox's image") {
        return Err(refused.told("a language that the image does not have"));
    }
    let id = scene.run(&["create", "--image", images::SCRATCH])?.trim().to_owned();
    let tried = copied(scene, &id)
        .and_then(|()| timed_out(scene, &id))
        .and_then(|()| at_a_terminal(scene, &id))
        .and_then(|()| branched(scene, &id))
        .and_then(|()| stopped(scene, &id));
    scene.run(&["stop", &id])?;
    tried
}

fn copied(scene: &Scene, id: &str) -> Result<()> {
    let place = scene.path().join("copied");
    fs::create_dir_all(place.join("tree/below/empty"))?;
    fs::write(place.join("file"), "a file\n")?;
    fs::write(place.join("tree/below/file"), "below\n")?;
    let at = |name: &str| place.join(name).display().to_string();
    for name in ["file", "tree"] {
        scene.run(&["cp", &at(name), &format!("{id}:{name}")])?;
    }
    scene.expect(&["exec", id, "--", "/program", "cat", "file"], "a file\n")?;
    scene.expect(&["exec", id, "--", "/program", "cat", "tree/below/file"], "below\n")?;
    scene.run(&["exec", id, "--", "/program", "tree/made", "inside"])?;
    for name in ["file", "tree"] {
        scene.run(&["cp", &format!("{id}:{name}"), &at(&format!("back-{name}"))])?;
    }
    let back: Vec<String> = ["back-file", "back-tree/below/file", "back-tree/made"]
        .into_iter()
        .map(|name| fs::read_to_string(place.join(name)).unwrap_or_else(|error| error.to_string()))
        .collect();
    if back != ["a file\n", "below\n", "inside"] || !place.join("back-tree/below/empty").is_dir() {
        return Err(format!("what came back is {back:?}").into());
    }
    let listed = scene.run(&["diff", id])?;
    let names = listed.lines().map(|line| line.split(" (").next().unwrap_or_default());
    let expected = ["file", "tree/", "tree/below/", "tree/below/empty/", "tree/below/file", "tree/made"];
    let expected = expected.map(|name| format!("A /workspace/{name}"));
    if names.eq(expected.iter().map(String::as_str)) { Ok(()) } else { Err(format!("it differs by\n{listed}").into()) }
}

/// As the host sees it: nothing is left of what a command has started when it is told that its time is over.
fn timed_out(scene: &Scene, id: &str) -> Result<()> {
    let mark = format!("without-a-shell-{}", std::process::id());
    let inside = || -> Vec<_> {
        let found = processes::marked(&mark).into_iter();
        found.filter(|process| process.command_line.starts_with("/program ") && !process.is_zombie()).collect()
    };
    let mut command = scene.command("state", &["exec", "--timeout", "4s", id, "--", "/program", "fork", "600", &mark]);
    let mut running = Program::start(&mut command, &scene.path().join("timed-out"))?;
    let started = Instant::now();
    let mut most = 0;
    while running.child.try_wait()?.is_none() && started.elapsed() < Duration::from_secs(60) {
        most = most.max(inside().len());
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = running.wait_within(Duration::ZERO)?;
    let left = inside();
    if most < 3 || status.code() != Some(124) || !left.is_empty() {
        return Err(running.tell(&format!("of {most} processes {left:?} are left; it ended with {status}")));
    }
    Ok(())
}

fn at_a_terminal(scene: &Scene, id: &str) -> Result<()> {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).map_err(io::Error::from)?;
    grantpt(&person).and_then(|()| unlockpt(&person)).map_err(io::Error::from)?;
    let name = ptsname(&person, Vec::new()).map_err(io::Error::from)?;
    let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).map_err(io::Error::from)?;
    let size = Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).map_err(io::Error::from)?;
    let mut command = scene.command("state", &["exec", "--tty", id, "--", "/program", "talk"]);
    command.stdin(terminal.try_clone()?).stdout(terminal);
    let mut talking = Program::start(&mut command, &scene.path().join("talking"))?;
    drop(command);
    let mut person = File::from(person);
    let shown = shows(&mut person, "33 111").and_then(|()| {
        person.write_all(b"typed\r")?;
        shows(&mut person, "got typed")
    });
    shown.map_err(|trouble| talking.tell(&trouble.0))?;
    let status = talking.wait_within(Duration::from_secs(30))?;
    if status.success() { Ok(()) } else { Err(talking.tell(&status.to_string())) }
}

fn shows(person: &mut File, text: &str) -> Result<()> {
    let started = Instant::now();
    let mut seen = String::new();
    while !seen.contains(text) {
        if started.elapsed() > Duration::from_secs(30) {
            return Err(format!("the terminal shows {seen:?} instead of {text:?}").into());
        }
        let mut question = [PollFd::new(person, PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if poll(&mut question, Some(&moment)).map_err(io::Error::from)? > 0 {
            let mut buffer = [0; 4096];
            // At the end of the other side there is an error, and what was shown last stays the last.
            let count = person.read(&mut buffer).unwrap_or(0);
            seen += &String::from_utf8_lossy(&buffer[..count]);
        }
    }
    Ok(())
}

/// Saves and forks have the files.
fn branched(scene: &Scene, id: &str) -> Result<()> {
    scene.run(&["save", id, "without-a-shell"])?;
    let saved = ["run", "--entrypoint", "--image", "saved:without-a-shell", "--", "cat", "/workspace/tree/below/file"];
    let said = scene.expect(&saved, "below\n");
    let mut server = scene.server("state")?;
    server.good("delete_image", &json!({"image": "saved:without-a-shell"}))?;
    server.close();
    server.end_within(Duration::from_secs(30))?;
    said?;
    let branch = scene.run(&["fork", id])?.trim().to_owned();
    let said = scene
        .run(&["exec", &branch, "--", "/program", "file", "another"])
        .and_then(|_| scene.expect(&["exec", &branch, "--", "/program", "cat", "file"], "another"))
        .and_then(|()| scene.expect(&["exec", id, "--", "/program", "cat", "file"], "a file\n"));
    scene.run(&["stop", &branch])?;
    said
}

/// By the daemon's own tools, and started again by whoever uses it.
fn stopped(scene: &Scene, id: &str) -> Result<()> {
    let container = format!("sandpen-{id}");
    scene.daemon.run(&["stop", &container])?;
    scene.expect(&["exec", id, "--", "/program", "cat", "file"], "a file\n")?;
    scene.daemon.run(&["stop", &container])?;
    scene.daemon.run(&["start", &container])?;
    scene.expect(&["exec", id, "--", "/program", "cat", "tree/made"], "inside")
}
