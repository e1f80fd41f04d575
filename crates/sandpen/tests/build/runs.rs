//! RUN, in real sandboxes.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::place::Place;
use crate::support::sandboxes_work;

/// A place with a base image, where RUN can be done.
fn place() -> Option<Place> {
    if !sandboxes_work() {
        return None;
    }
    if !engine_native::can_build() {
        crate::support::skip("there are no ids for the owners of an image's files");
        return None;
    }
    let place = Place::new();
    place.import_base();
    Some(place)
}

#[test]
fn what_a_command_changes_is_the_layer() {
    let Some(place) = place() else { return };
    place.file("script", "#!/bin/sh\necho \"script $1\" > /from-script\n").mode("script", 0o755);
    let built = place.build(
        "FROM base:1\nRUN mkdir -m 711 /made && echo one > /made/file && chown 33:50 /made/file && chmod 640 /made/file\n\
         RUN rm /etc/group && ln -s made/file /link && rm -r /usr/share/real\nCOPY script /made/run\n\
         RUN [\"/made/run\", \"$HOME\"]\nRUN true\nSHELL [\"/bin/sh\", \"-ec\"]\nRUN false || echo shell > /shell\n",
    );
    assert_eq!(Place::made(&built), ["layer", "layer", "layer", "layer", "no_change", "metadata", "layer"]);
    let tree = place.tree("made:1");
    let numbers = |path: &str| (tree[path].1, tree[path].2, tree[path].3);
    assert_eq!(numbers("made"), (0o711, 0, 0), "copying into a directory leaves it as it is");
    assert_eq!((numbers("made/file"), &*tree["made/file"].4), ((0o640, 33, 50), "one\n"));
    assert_eq!((tree["link"].0, &*tree["link"].4), ('l', "made/file"));
    assert_eq!((&*tree["from-script"].4, &*tree["shell"].4), ("script $HOME\n", "shell\n"));
    for gone in ["etc/group", "usr/share/real", "proc", "sys", "dev", "run", "workspace", "home", "etc/resolv.conf"] {
        assert!(!tree.contains_key(gone), "{gone} is there");
    }
    let done = place.0.run(&["run", "--image", "made:1", "bash", "cat /shell; cat /etc/group"]);
    assert!(done.stdout.starts_with("shell\n"), "{}{}", done.stdout, done.stderr);
}

#[test]
fn a_command_has_the_user_the_directory_and_the_variables_of_its_place() {
    let Some(place) = place() else { return };
    place.build_with(
        "FROM base:1\nARG GIVEN\nARG NOT_GIVEN=default\nENV FIXED=1 GIVEN_TOO=$GIVEN\n\
         RUN mkdir -m 777 /out && env > /out/env && id -u > /out/user\nWORKDIR /out/deep\nUSER web\n\
         RUN pwd > /tmp/where; id -u > /tmp/user; id -g >> /tmp/user; echo $HOME >> /tmp/user\nUSER 4242:staff\n\
         RUN id -u > /tmp/number; id -g >> /tmp/number; echo $HOME >> /tmp/number\nENV HOME=/mine\nRUN echo $HOME > /tmp/home\n",
        &["--build-arg", "GIVEN=mine"],
    );
    let tree = place.tree("made:1");
    let variables: Vec<&str> = tree["out/env"].4.lines().collect();
    for expected in ["GIVEN=mine", "NOT_GIVEN=default", "FIXED=1", "GIVEN_TOO=mine", "HOME=/root"] {
        assert!(variables.contains(&expected), "{expected} is not in {variables:?}");
    }
    assert!(variables.iter().all(|line| !line.starts_with("USER=")), "{variables:?}");
    assert_eq!(tree["out/user"].4, "0\n");
    assert_eq!((&*tree["tmp/where"].4, &*tree["tmp/user"].4), ("/out/deep\n", "33\n34\n/var/www\n"));
    assert_eq!((tree["tmp/user"].2, tree["tmp/user"].3), (33, 34));
    assert_eq!((&*tree["tmp/number"].4, &*tree["tmp/home"].4), ("4242\n50\n/\n", "/mine\n"));
    let environment = place.config("made:1")["config"]["Env"].to_string();
    assert!(environment.contains("FIXED=1") && !environment.contains("NOT_GIVEN"), "{environment}");
}

#[test]
fn commands_run_again_only_when_what_they_depend_on_has_changed() {
    let Some(place) = place() else { return };
    place.file("input", "1");
    let dockerfile = |argument: &str| {
        format!(
            "FROM base:1\nARG LEVEL\nRUN cat /proc/sys/kernel/random/uuid > /early\nARG OTHER\nCOPY input /input\nRUN {argument} > /late\n"
        )
    };
    let first = place.build(&dockerfile("cat /proc/sys/kernel/random/uuid"));
    assert_eq!(Place::made(&first), ["metadata", "layer", "metadata", "layer", "layer"]);
    let second = place.build(&dockerfile("cat /proc/sys/kernel/random/uuid"));
    assert_eq!(Place::made(&second), ["metadata", "cached", "metadata", "cached", "cached"]);
    assert_eq!(first["digest"], second["digest"]);
    let other = place.build(&dockerfile("cat /input"));
    assert_eq!(Place::made(&other), ["metadata", "cached", "metadata", "cached", "layer"]);
    place.file("input", "2");
    let changed = place.build(&dockerfile("cat /input"));
    assert_eq!(Place::made(&changed), ["metadata", "cached", "metadata", "layer", "layer"]);
    let later = place.build_with(&dockerfile("cat /input"), &["--build-arg", "OTHER=x"]);
    assert_eq!(Place::made(&later), ["metadata", "cached", "metadata", "cached", "layer"]);
    let early = place.build_with(&dockerfile("cat /input"), &["--build-arg", "LEVEL=x"]);
    assert_eq!(Place::made(&early), ["metadata", "layer", "metadata", "cached", "layer"]);
    let anew = place.build_with(&dockerfile("cat /input"), &["--no-cache"]);
    assert_eq!(Place::made(&anew), ["metadata", "layer", "metadata", "layer", "layer"]);
    // Whatever time stands in the image, it is not that of the build.
    std::thread::sleep(Duration::from_millis(1100));
    let again = place.build(&dockerfile("cat /input"));
    assert_eq!(again["digest"], anew["digest"], "what was done anew is what is kept");
}

#[test]
fn a_command_that_fails_says_which_why_and_leaves_no_image() {
    let Some(place) = place() else { return };
    let failing = "FROM base:1\nRUN echo fine > /fine\n\nRUN echo first; echo 'the last words' >&2; exit 7\n";
    place.fails(failing, "invalid_input", "line 4 of the Dockerfile: RUN ended with code 7: the last words");
    assert_eq!(place.0.run(&["image", "ls", "-q"]).stdout, "base:1\n");
    let mended = place.build("FROM base:1\nRUN echo fine > /fine\n\nRUN exit 0\n");
    assert_eq!(Place::made(&mended), ["cached", "no_change"]);
    place.fails("FROM base:1\nRUN [\"/missing\"]\n", "not_found", "line 2");
    place.fails("FROM scratch\nCOPY . /x\nRUN true\n", "not_found", "line 3");
    place.fails(
        "FROM base:1\nUSER ghost\nRUN true\n",
        "invalid_input",
        "line 3 of the Dockerfile: the image has no user",
    );
    place.fails_with("FROM base:1\nRUN sleep 600\n", &["--timeout", "1s"], "timed_out", "--timeout");
    let offline = "FROM base:1\nRUN echo 'Temporary failure in name resolution' >&2; exit 1\n";
    place.fails(offline, "invalid_input", "--network internet");
    let human = place.0.run(&["image", "build", "-f", "Dockerfile", "context"]);
    assert_eq!(human.code, Some(1));
    human.says("[1/1]").says("RUN echo").says("error:");
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    let Some(place) = place() else { return };
    place.build(
        "FROM base:1\nRUN (while true; do echo x >> /log; echo > /log; done) & sleep 1; echo started > /started\n\
         RUN cat /proc/[0-9]*/cmdline > /running\n",
    );
    let tree = place.tree("made:1");
    assert_eq!(tree["started"].4, "started\n");
    assert!(tree.contains_key("log") && !tree["running"].4.contains("while true"), "{:?}", tree["running"]);
}

#[test]
fn stages_that_are_not_needed_are_not_run() {
    let Some(place) = place() else { return };
    let dockerfile = "FROM base:1 AS build\nRUN mkdir /out && echo made > /out/file && chown 5:6 /out/file\nFROM base:1 AS never\nRUN exit 1\n\
                      FROM scratch\nCOPY --from=build /out /\n";
    place.build(dockerfile);
    let tree = place.tree("made:1");
    assert_eq!(tree.len(), 1, "{tree:?}");
    assert_eq!((tree["file"].2, tree["file"].3, &*tree["file"].4), (5, 6, "made\n"));
    place.fails_with(dockerfile, &["--target", "never"], "invalid_input", "line 4");
}

#[test]
fn an_interrupted_build_leaves_what_was_finished_and_nothing_else() {
    let Some(place) = place() else { return };
    place.0.write("Dockerfile", "FROM base:1\nRUN echo done > /done\nRUN echo under way; sleep 600\n");
    let mut child =
        place.0.command(&["image", "build", "-t", "made:1", "-f", "Dockerfile", "context"]).spawn().unwrap();
    let mut seen = Vec::new();
    let mut stderr = child.stderr.take().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !String::from_utf8_lossy(&seen).contains("\nunder way") {
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&seen));
        let mut buffer = [0; 1024];
        let count = std::io::Read::read(&mut stderr, &mut buffer).unwrap();
        seen.extend_from_slice(&buffer[..count]);
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.0.run(&["image", "ls", "-q"]).stdout, "base:1\n");
    assert_eq!(place.0.run(&["--json", "ps"]).json()["sandboxes"].as_array().map(Vec::len), Some(0));
    let after = place.build("FROM base:1\nRUN echo done > /done\n");
    assert_eq!(Place::made(&after), ["cached"]);
    let pruned = place.0.run(&["--json", "image", "prune"]).json();
    assert_eq!(pruned["removed_steps"], 1, "an image that was being built is gone");
}

#[test]
fn two_builds_of_the_same_commands_both_succeed() {
    let Some(place) = place() else { return };
    place
        .0
        .write("Dockerfile", "FROM base:1\nRUN mkdir /a && cat /proc/sys/kernel/random/uuid > /a/file\nRUN mv /a /b\n");
    let build = |name: &str| {
        place.0.command(&["--json", "image", "build", "-t", name, "-f", "Dockerfile", "context"]).spawn().unwrap()
    };
    let both = [build("x:1"), build("x:2")].map(|child| child.wait_with_output().unwrap());
    for output in &both {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    for image in ["x:1", "x:2"] {
        let tree = place.tree(image);
        assert!(tree.contains_key("b/file") && !tree.contains_key("a/file"), "{image}");
    }
}

#[test]
fn an_ordinary_user_copies_and_is_told_what_run_takes() {
    if !rustix::process::geteuid().is_root() {
        crate::support::skip("only root can become an ordinary user");
        return;
    }
    let home = tempfile::TempDir::with_prefix("sandpen-test-").unwrap();
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_sandpen"), home.path().join("sandpen")).unwrap();
    let script = "mkdir context && echo x > context/file
        printf 'FROM scratch\\nCOPY --chown=7:8 file /file\\n' > one; printf 'FROM one\\nRUN [\"/file\"]\\n' > two
        ./sandpen image build -t one -f one context && ./sandpen image build -t two -f two context";
    let done = Command::new("setpriv")
        .args(["--reuid=54321", "--regid=54321", "--clear-groups", "sh", "-c", script])
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("SANDPEN_STATE_DIR", home.path().join("state"))
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(stdout.starts_with("built one:latest"), "{stdout}{stderr}");
    assert_eq!(done.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stderr.contains("line 2 of the Dockerfile: RUN needs root"), "{stderr}");
    assert!(stderr.contains("usermod --add-subuids"), "what to do is not told: {stderr}");
}

/// A user of this machine who has ids to build with.
fn builder_user() -> Option<(u32, u32)> {
    let subordinate = std::fs::read_to_string("/etc/subuid").ok()?;
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let has_many = |line: &&str| line.rsplit(':').next().and_then(|count| count.parse().ok()) >= Some(4096u32);
    let names: Vec<&str> = subordinate.lines().filter(has_many).filter_map(|line| line.split(':').next()).collect();
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (user, group) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        (user != 0 && names.contains(&fields[0])).then_some((user, group))
    })
}

#[test]
fn an_ordinary_user_with_ids_builds_and_leaves_nothing() {
    let user = builder_user().filter(|_| rustix::process::geteuid().is_root() && sandboxes_work());
    let Some((user, group)) = user else {
        crate::support::skip("only root can become an ordinary user, and none has subordinate ids");
        return;
    };
    let place = Place::new();
    place.import_base();
    let home = tempfile::TempDir::with_prefix("sandpen-test-").unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_sandpen"), home.path().join("sandpen")).unwrap();
    std::fs::rename(place.0.work().join("base.tar"), home.path().join("base.tar")).unwrap();
    std::os::unix::fs::chown(home.path(), Some(user), Some(group)).unwrap();
    let script = r#"set -e
        mkdir context; echo x > context/file
        cat > Dockerfile <<'END'
FROM base:1
RUN mkdir -m 700 /closed && echo one > /closed/file && chown 33:50 /closed/file && rm /etc/group
COPY --chown=7:8 file /closed/copied
RUN stat -c '%u:%g %a' /closed /closed/file /closed/copied > /seen && id -u >> /seen
USER 33:34
RUN id -u > /tmp/who
FROM base:1
COPY --from=0 /closed /seen /tmp/who /out/
END
        ./sandpen image import base.tar base:1
        ./sandpen image build -t made:1 -f Dockerfile context
        ./sandpen run --image made:1 bash 'cat /out/seen /out/who; ls /out'
        ./sandpen image build -t made:1 -f Dockerfile context
        find state/images/v1/apart -mindepth 2 -maxdepth 2 -name 'sha256-*' | grep -c .
        ./sandpen image rm made:1 base:1
        ./sandpen image prune
        find state/images/v1/apart state/images/v1/trash -mindepth 2 -name 'sha256-*'
        rm -r state"#;
    let done = Command::new("setpriv")
        .args([format!("--reuid={user}"), format!("--regid={group}")])
        .args(["--clear-groups", "sh", "-c", script])
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("SANDPEN_STATE_DIR", home.path().join("state"))
        .env("SANDPEN_ALLOW_MISSING", "memory-limit,process-limit,cpu-limit")
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("0:0 700\n33:50 644\n7:8 644\n0\n33\n"), "{stdout}{stderr}");
    assert!(!home.path().join("state").exists(), "{stdout}{stderr}");
}
