//! Sandboxes that stay: `create`, `exec`, `cp`, `ps`, `stop` with the real engine.

mod support;

use std::time::{Duration, Instant};

use support::{Engine, World, names, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[test]
fn a_sandbox_lives_from_create_to_stop() {
    needs_sandboxes!();
    let world = World::new();
    let created = world.run(&["create", "--name", "lab"]);
    let id = created.stdout.trim_end().to_owned();
    assert!(created.code == Some(0) && id.starts_with("sb-"), "{created:?}");

    world.run(&["exec", &id, "--", "sh", "-c", "echo kept > note"]).expect(0, "");
    world.run(&["exec", "lab", "cat", "note"]).expect(0, "kept\n");
    world.run(&["ps", "-q"]).expect(0, &format!("{id}\n"));
    let table = world.run(&["ps"]);
    assert!(table.stdout.starts_with("ID ") && table.stdout.contains(&format!("{id}  lab ")), "{}", table.stdout);
    let object = world.run(&["ps", "--json"]).json();
    assert_eq!(object["sandboxes"][0]["sandbox_id"], id.as_str());
    assert_eq!(object["sandboxes"][0]["state"], "live");

    world.run(&["stop", "lab"]).expect(0, "lab\n");
    world.run(&["exec", &id, "true"]).expect(125, "");
    world.run(&["ps"]).expect(0, "").says("you have no sandboxes");
}

#[test]
fn exec_tells_what_could_not_be_run() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["create", "--name", "lab"]);
    world.run(&["exec", "lab", "no-such-program"]).expect(127, "").says("no-such-program");
    world.run(&["exec", "lab", "/etc"]).expect(126, "");
    world.run(&["exec", "lab", "--", "sh", "-c", "exit 42"]).expect(42, "");
    world.run(&["exec", "nobody", "true"]).expect(125, "");
}

#[test]
fn exec_reads_stdin_only_when_asked() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["create", "--name", "lab"]);
    world.run_with_stdin(&["exec", "-i", "lab", "wc", "-c"], "12345").expect(0, "5\n");
    world.run_with_stdin(&["exec", "lab", "wc", "-c"], "12345").expect(0, "0\n");
    world.run(&["exec", "-w", "/tmp", "-e", "A=b", "lab", "sh", "-c", "pwd; echo $A"]).expect(0, "/tmp\nb\n");
}

#[test]
fn files_and_directories_are_copied_both_ways() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["create", "--name", "lab"]);
    world.write("file", "hello");
    world.write("tree/sub/leaf", "leaf");
    std::os::unix::fs::symlink("sub/leaf", world.work().join("tree/link")).unwrap();

    world.run(&["cp", "file", "lab:"]).expect(0, "");
    world.run(&["cp", "tree", "lab:/workspace/copy"]).expect(0, "");
    world.run(&["exec", "lab", "cat", "file", "copy/link"]).expect(0, "helloleaf");

    world.run(&["cp", "lab:file", "back"]).expect(0, "");
    assert_eq!(world.read("back"), "hello");
    let object = world.run(&["cp", "--json", "lab:copy", "."]).json();
    assert_eq!(object["files"], 1);
    assert_eq!(world.read("copy/link"), "leaf");
    assert_eq!(names(&world.work().join("copy")), ["link", "sub"]);

    world.run(&["cp", "lab:absent", "."]).expect(1, "").says("absent");
    world.run(&["cp", "absent", "lab:"]).expect(1, "").says("absent: no such file or directory");
    world.run(&["cp", "a", "b"]).expect(1, "").says("neither path is in a sandbox");
}

#[test]
fn a_copy_cannot_be_led_astray_by_links_in_the_sandbox() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["create", "--name", "lab"]);
    world.write("outside/victim", "good");
    let outside = world.work().join("outside");
    let script = format!("mkdir d && ln -s {0} d/x && ln -s {0}/victim d/y", outside.display());
    world.run(&["exec", "lab", "sh", "-c", &script]).expect(0, "");
    world.run(&["cp", "lab:d", "to"]).expect(0, "");
    world.run(&["exec", "lab", "sh", "-c", "rm d/x d/y; mkdir d/x; echo bad > d/x/planted; echo bad > d/y"]);
    world.run(&["cp", "lab:d", "to2"]).expect(0, "");
    let tree = world.run(&["exec", "lab", "ls", "d"]);
    assert_eq!(tree.stdout, "x\ny\n");
    std::fs::rename(world.work().join("to"), world.work().join("d")).unwrap();
    assert_eq!(world.run(&["cp", "lab:d", "."]).code, Some(1));
    assert_eq!(names(&outside), ["victim"]);
    assert_eq!(world.read("outside/victim"), "good");
}

#[test]
fn stop_goes_on_after_one_that_is_not_there() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["create", "--name", "a"]);
    world.run(&["create", "--name", "b"]);
    let done = world.run(&["stop", "a", "nobody", "b"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), "a\nb\n"));
    let object = world.run(&["stop", "--json", "nobody"]).json();
    assert_eq!(object["failed"][0]["sandbox"], "nobody");
}

#[test]
fn a_detached_command_goes_on_and_its_output_is_kept() {
    needs_sandboxes!();
    let world = World::new();
    assert_eq!(world.run(&["create", "--name", "lab"]).code, Some(0));
    let script = "echo early; sleep 0.5; echo late >&2; exit 4";
    world.run(&["exec", "--detach", "lab", "--", "sh", "-c", script]).expect(0, "");
    wait_until("the command has ended", || world.run(&["logs", "--json", "lab"]).json()[0]["status"] == "exited");
    world.run(&["logs", "--last", "lab"]).expect(0, "early\nlate\n");
    let object = world.run(&["logs", "--json", "lab"]).json();
    assert_eq!((object[0]["exit_code"].as_i64(), object[0]["output"].as_str()), (Some(4), Some("early\nlate\n")));
    let log = world.run(&["logs", "lab"]);
    assert!(log.stdout.contains("exit code 4") && log.stdout.ends_with("early\nlate\n"), "{}", log.stdout);
    world.run(&["stop", "lab"]).expect(0, "lab\n");
}

/// Seconds. A daemon takes its time for each command.
fn unit() -> u64 {
    match Engine::of_test() {
        Engine::Embedded => 1,
        Engine::OfDaemon { .. } => 4,
    }
}

#[test]
fn a_detached_command_outlives_the_idle_time_of_its_sandbox() {
    needs_sandboxes!();
    let world = World::new();
    let unit = unit();
    let idle = format!("{}s", 2 * unit);
    world.run(&["create", "--name", "lab", "--idle", &idle]);
    world.run(&["create", "--name", "unused", "--idle", &idle]);
    // It ends when it is told to, because nobody knows how long the commands below take.
    let script = "echo early; until [ -e enough ]; do sleep 0.1; done; echo late";
    world.run(&["exec", "--detach", "lab", "--", "sh", "-c", script]).expect(0, "");
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5 * unit) {
        let object = world.run(&["ps", "--json"]).json();
        let names: Vec<_> = object["sandboxes"].as_array().unwrap().iter().map(|each| &each["name"]).collect();
        assert!(names.iter().any(|name| *name == "lab"), "{object} after {:?}", started.elapsed());
        std::thread::sleep(Duration::from_millis(500));
    }
    world.run(&["exec", "unused", "true"]).expect(125, "");
    world.run(&["logs", "--last", "lab"]).expect(0, "early\n");
    world.run(&["exec", "lab", "touch", "enough"]).expect(0, "");
    wait_until("the sandbox has expired", || world.run(&["ps", "-q"]).stdout.is_empty());
}

#[test]
fn limits_are_shown_as_enforced() {
    needs_sandboxes!();
    let world = World::new();
    let created = world.run(&["create", "--name", "lab", "--memory", "64M", "--disk", "1G", "--json"]).json();
    let listed = world.run(&["ps", "--json"]).json();
    let blocks = world.run(&["exec", "lab", "stat", "-f", "-c", "%b %S", "/workspace"]).stdout;
    let bytes: u64 = blocks.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product();
    assert!(bytes < 64 << 20, "files are in memory");
    for shown in [&created, &listed["sandboxes"][0]] {
        assert_eq!(shown["disk_limit_bytes"], bytes);
        assert_eq!(shown["memory_limit_bytes"], 64 << 20);
    }
    world.run(&["stop", "lab"]).expect(0, "lab\n");
}

#[test]
fn the_idle_time_begins_when_a_detached_command_has_ended() {
    needs_sandboxes!();
    let world = World::new();
    let unit = unit();
    world.run(&["create", "--name", "lab", "--idle", &format!("{}s", 5 * unit)]);
    let script = format!("sleep {}; echo late", 4 * unit);
    world.run(&["exec", "--detach", "lab", "--", "sh", "-c", &script]).expect(0, "");
    std::thread::sleep(Duration::from_secs(6 * unit));
    assert_ne!(world.run(&["ps", "-q"]).stdout, "", "it was not idle for more than {} seconds", 2 * unit);
    world.run(&["logs", "--last", "lab"]).expect(0, "late\n");
    wait_until("the sandbox has expired", || world.run(&["ps", "-q"]).stdout.is_empty());
}

/// What only its record said of it is lost; the sandbox itself must not be.
#[test]
fn a_sandbox_whose_record_cannot_be_read_is_reached_by_its_id() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let id = world.run(&["create", "--name", "lab"]).succeeds();
    let id = id.trim();
    world.run(&["exec", id, "--", "sh", "-c", "echo kept > note"]).expect(0, "");
    let ledger = world.state_dir().join("ledger");
    let is_record = |name: &String| name.starts_with(&format!("{id}.")) && name.ends_with(".json");
    let record = ledger.join(names(&ledger).into_iter().find(is_record).unwrap());
    for _ in 0..2 {
        std::fs::write(&record, "{").unwrap();
        world.run(&["exec", id, "--", "cat", "note"]).expect(0, "kept\n");
    }
    std::fs::write(&record, "{").unwrap();
    world.run(&["stop", id]).expect(0, &format!("{id}\n"));
    assert_eq!(world.run(&["stop", id]).code, Some(1));
}
