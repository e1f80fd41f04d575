//! A person at a terminal: `run --tty` behind a real pseudo-terminal.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use support::{World, sandboxes_work};

/// The side of the keyboard and the screen.
struct Person {
    master: File,
    seen: String,
}

impl Person {
    fn sit_down() -> (Self, OwnedFd) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        (Self { master: master.into(), seen: String::new() }, terminal)
    }

    fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn waits_for(&mut self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.seen.contains(text) {
            assert!(Instant::now() < deadline, "{text:?} did not appear: {}", self.seen);
            let mut question = [PollFd::new(&self.master, PollFlags::IN)];
            if poll(&mut question, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap() > 0 {
                let mut buffer = [0; 4096];
                let count = self.master.read(&mut buffer).unwrap_or(0);
                self.seen += &String::from_utf8_lossy(&buffer[..count]);
            }
        }
    }
}

#[test]
fn keys_reach_the_program_and_the_terminal_is_put_back() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let (mut person, terminal) = Person::sit_down();
    let code = "stty size; read -r line; echo \"got $line\"; sleep 60";
    let mut child = world
        .command(&["run", "--tty", "bash", code])
        .stdin(terminal.try_clone().unwrap())
        .stdout(terminal.try_clone().unwrap())
        .stderr(terminal.try_clone().unwrap())
        .spawn()
        .unwrap();
    person.waits_for("33 111");
    assert!(!tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ICANON), "the terminal is not raw");
    person.types("hello\r");
    person.waits_for("got hello");
    person.types("\u{3}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
}
