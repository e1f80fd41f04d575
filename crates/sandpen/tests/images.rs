//! `sandpen image` from the shell's side.

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::client::Client;
use support::{Done, World, sandboxes_work};

/// A root tree in an archive, as `tar` makes it.
fn write_tree(world: &World, name: &str, contents: &str) {
    world.write("tree/etc/motd", contents);
    let status = Command::new("tar").args(["-C", "tree", "-cf", name, "."]).current_dir(world.work()).status();
    assert!(status.unwrap().success());
}

/// A root tree that a shell runs in, with the libraries that it is linked with.
fn write_system(world: &World, name: &str) {
    let linked = Command::new("ldd").arg("/bin/sh").output().unwrap();
    let linked = String::from_utf8(linked.stdout).unwrap();
    for file in linked.split_whitespace().filter(|word| word.starts_with('/')).chain(["/bin/sh"]) {
        let copy = world.work().join("tree").join(&file[1..]);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(file, copy).unwrap();
    }
    write_tree(world, name, "from the image");
}

const READ_MOTD: &str = "read -r line < /etc/motd; echo $line";

#[track_caller]
fn object(done: &Done) -> Value {
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn an_image_comes_is_listed_gets_names_leaves_and_goes() {
    let world = World::new();
    write_tree(&world, "root.tar", "hello");
    assert!(world.run(&["image", "ls"]).stderr.contains("no images"));

    let imported = object(&world.run(&["--json", "image", "import", "root.tar", "tool:1"]));
    assert_eq!((&imported["image"], &imported["layers"]), (&"tool:1".into(), &1.into()));
    assert_eq!(imported["unpacked_bytes"], 5);
    let digest = imported["digest"].as_str().unwrap().to_owned();

    let short = &digest["sha256:".len()..][..12];
    assert_eq!(world.run(&["image", "tag", short, "localhost:5000/other:2"]).code, Some(0));
    let listed = object(&world.run(&["--json", "image", "ls"]));
    let names: Vec<&str> =
        listed["images"].as_array().unwrap().iter().filter_map(|one| one["image"].as_str()).collect();
    assert_eq!(names, ["tool:1", "localhost:5000/other:2"]);
    assert!(listed["store_bytes"].as_u64().unwrap() > 5);
    let table = world.run(&["image", "ls"]).stdout;
    assert!(table.contains("tool:1") && table.contains(short), "{table}");
    assert_eq!(world.run(&["image", "ls", "-q"]).stdout, "tool:1\nlocalhost:5000/other:2\n");

    object(&world.run(&["--json", "image", "export", "tool:1", "out.tar"]));
    assert_eq!(world.run(&["image", "export", "--directory", "tool:1", "layout"]).code, Some(0));
    assert!(world.work().join("layout/index.json").is_file());

    let removed = object(&world.run(&["--json", "image", "rm", "tool:1", "localhost:5000/other:2"]));
    assert_eq!(removed["removed"].as_array().unwrap().len(), 2);
    assert!(removed["freed_bytes"].as_u64().unwrap() > 5);
    assert_eq!(object(&world.run(&["--json", "image", "ls"]))["store_bytes"], 0);

    let back = object(&world.run(&["--json", "image", "import", "out.tar"]));
    assert_eq!((back["image"].as_str(), back["digest"].as_str()), (Some("tool:1"), Some(digest.as_str())));
}

#[test]
fn what_cannot_be_done_is_said_with_what_helps() {
    let world = World::new();
    world.write("no.tar", "this is not an archive");
    for (line, kind) in [
        (&["image", "rm", "missing"][..], "not_found"),
        (&["image", "export", "missing", "x"], "not_found"),
        (&["image", "pull", "No Name"], "invalid_input"),
        (&["image", "pull", "127.0.0.1:1/tool"], "unavailable"),
        (&["image", "import", "no.tar", "tool:1"], "invalid_input"),
        (&["image", "import", "absent.tar", "tool:1"], "unavailable"),
        (&["image", "pull", "tool", "--insecure-registry", "http://x"], "invalid_input"),
    ] {
        let done = world.run(&[&["--json"], line].concat());
        let error: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((done.code, error["error"]["kind"].as_str()), (Some(1), Some(kind)), "{line:?}: {}", done.stdout);
    }
    assert!(world.run(&["image", "pull", "127.0.0.1:1/tool"]).stderr.contains("--insecure-registry"));
}

struct Registry(Child, u16);

impl Registry {
    fn start(directory: &Path) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = directory.join("data");
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            data.display()
        );
        fs::write(directory.join("registry.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(directory.join("registry.yml")).stdin(Stdio::null());
        let Ok(child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            crate::support::skip("docker-registry is not installed: pull and push are not tested");
            return None;
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self(child, port))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_image_goes_to_a_registry_and_comes_back() {
    let (world, other) = (World::new(), World::new());
    let Some(registry) = Registry::start(&world.work()) else { return };
    let (host, name) = (format!("127.0.0.1:{}", registry.1), format!("127.0.0.1:{}/team/tool:1", registry.1));
    write_tree(&world, "root.tar", "hello");
    let imported = object(&world.run(&["--json", "image", "import", "root.tar", "tool:1"]));
    let pushed = object(&world.run(&["--json", "image", "push", "--insecure-registry", &host, "tool:1", &name]));
    assert_eq!(pushed["digest"], imported["digest"]);

    let refused = other.run(&["image", "pull", &name]);
    assert_eq!(refused.code, Some(1), "plain HTTP to a registry that is not named");
    let mut pull = other.command(&["image", "pull", &name]);
    let pulled = Done::from(pull.env("SANDPEN_INSECURE_REGISTRY", &host).output().unwrap());
    assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
    assert!(pulled.stdout.starts_with(&format!("pulled {name} (")), "{}", pulled.stdout);
    assert_eq!(pulled.stderr, "", "a bar is for terminals");

    let mirrored = World::new();
    let mirror = format!("registry.example={host}");
    let line =
        ["image", "pull", "registry.example/team/tool:1", "--registry-mirror", &mirror, "--insecure-registry", &host];
    assert_eq!(mirrored.run(&line).code, Some(0));
    assert_eq!(mirrored.run(&["image", "ls", "-q"]).stdout, "registry.example/team/tool:1\n");
}

#[test]
fn a_build_fetches_what_it_starts_from() {
    let (world, other) = (World::new(), World::new());
    let Some(registry) = Registry::start(&world.work()) else { return };
    let (host, name) = (format!("127.0.0.1:{}", registry.1), format!("127.0.0.1:{}/team/tool:1", registry.1));
    let push = |contents: &str| {
        write_tree(&world, "root.tar", contents);
        assert_eq!(world.run(&["image", "import", "root.tar", &name]).code, Some(0));
        assert_eq!(world.run(&["image", "push", "--insecure-registry", &host, &name]).code, Some(0));
    };
    push("first");
    other.write(
        "context/Dockerfile",
        &format!("FROM scratch\nCOPY --from={name} /etc/motd /motd\nFROM {name}\nCOPY --from=0 /motd /\n"),
    );
    let line = ["--json", "image", "build", "-t", "made", "context", "--insecure-registry", &host];
    let never = Done::from(other.command(&line).env("SANDPEN_PULL", "never").output().unwrap());
    assert_eq!(never.json()["error"]["kind"], "not_found", "{}", never.stdout);
    let first = object(&other.run(&line));
    push("second");
    let same = object(&other.run(&line));
    assert_eq!(first["digest"], same["digest"], "what is here is used");
    let newer = object(&other.run(&[&line[..], &["--pull"]].concat()));
    assert_ne!(first["digest"], newer["digest"]);
}

#[test]
fn sandboxes_start_from_an_image_by_its_name() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    write_system(&world, "root.tar");
    assert_eq!(world.run(&["image", "import", "root.tar", "tool:1"]).code, Some(0));
    let run = ["run", "bash", READ_MOTD, "--image", "tool:1"];
    // The one that is here is not asked for anywhere.
    for more in [&[][..], &["--pull", "never"]] {
        let done = world.run(&[&run, more].concat()).expect(0, "from the image\n");
        assert_eq!(done.stderr, "");
    }
    let id = world.run(&["create", "--image", "tool:1"]).stdout;
    let command = ["exec", id.trim(), "--", "sh", "-c", READ_MOTD];
    world.run(&command).expect(0, "from the image\n");

    let forbidden = ["run", "bash", "true", "--image", "127.0.0.1:1/tool", "--pull", "never"];
    let done = world.run(&forbidden).expect(125, "");
    assert!(done.stderr.contains("sandpen image pull 127.0.0.1:1/tool"), "{}", done.stderr);
    for line in [&["run", "bash", "true"][..], &["create"]] {
        let done = world.run(&[line, &["--image", "127.0.0.1:1/tool"]].concat());
        assert!(done.stderr.contains("--insecure-registry"), "as image pull says it: {}", done.stderr);
    }
}

#[test]
fn an_image_that_is_not_here_is_pulled_for_a_sandbox() {
    if !sandboxes_work() {
        return;
    }
    let (world, other) = (World::new(), World::new());
    let Some(registry) = Registry::start(&world.work()) else { return };
    let (host, name) = (format!("127.0.0.1:{}", registry.1), format!("127.0.0.1:{}/team/tool:1", registry.1));
    write_system(&world, "root.tar");
    assert_eq!(world.run(&["image", "import", "root.tar", &name]).code, Some(0));
    assert_eq!(world.run(&["image", "push", "--insecure-registry", &host, &name]).code, Some(0));

    let run = ["run", "bash", READ_MOTD, "--image", &name, "--insecure-registry", &host];
    other.run(&run).expect(0, "from the image\n").says(&format!("pulled {name} ("));
    let allowed = ["--allow-image", &format!("{host}/team/*"), "--insecure-registry", &host];
    let asked = json!({ "language": "bash", "code": READ_MOTD, "image": name });
    let third = World::new();
    let mut client = Client::hello(&third, &allowed, "2025-11-25");
    let denied = client.call("run_code", json!({ "language": "bash", "code": "true", "image": "tool:1" }));
    assert!(denied.to_string().contains("(denied)"), "{denied}");
    let params = json!({ "name": "run_code", "arguments": asked, "_meta": { "progressToken": "p" } });
    let id = client.begin("tools/call", params);
    let told = client.next();
    assert!(told["params"]["message"].as_str().unwrap().contains(&format!("the image {name}")), "{told}");
    let answer = client.answer(&id);
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "from the image\n", "{answer}");
    let never = World::new();
    let mut client = Client::hello(&never, &[&allowed[..], &["--pull", "never"]].concat(), "2025-11-25");
    let absent = client.call("run_code", asked);
    assert!(absent.to_string().contains(&format!("sandpen image pull {name}")), "{absent}");

    drop(registry);
    let again = other.run(&run).expect(0, "from the image\n");
    assert_eq!(again.stderr, "", "it is here now");
}

/// In the older servers it failed: nobody waited for the image.
#[test]
fn the_first_container_of_an_older_server_is_of_an_image_that_is_not_here() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let Some(registry) = Registry::start(&world.work()) else { return };
    let (host, name) = (format!("127.0.0.1:{}", registry.1), format!("127.0.0.1:{}/team/tool:1", registry.1));
    write_system(&world, "root.tar");
    assert_eq!(world.run(&["image", "import", "root.tar", &name]).code, Some(0));
    assert_eq!(world.run(&["image", "push", "--insecure-registry", &host, &name]).code, Some(0));
    let line = format!("sh -c '{READ_MOTD}'");
    for (profile, create, arguments, execute) in [
        ("automata", "sandbox_initialize", json!({ "image": name }), "sandbox_exec"),
        (
            "sandbox-server",
            "create_container_environment",
            json!({ "image": name, "persist": true }),
            "execute_command_in_container",
        ),
    ] {
        let other = World::new();
        assert_eq!(other.run(&["image", "ls", "-q"]).stdout, "");
        let flags = ["--profile", profile, "--insecure-registry", &host];
        let mut client = Client::hello(&other, &flags, "2024-11-05");
        let said = |answer: Value| answer["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        let made = said(client.call(create, arguments));
        let id = made.lines().next().and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{profile}: {made}");
        let ran = said(client.call(execute, json!({ "container_id": id, "commands": line, "command": line })));
        assert!(ran.ends_with("from the image\n"), "{profile}: {ran}");
        assert_eq!(other.run(&["image", "ls", "-q"]).stdout, format!("{name}\n"));
        assert_eq!(other.run(&["stop", "--all"]).code, Some(0));
    }
}

#[test]
fn ctrl_c_ends_a_pull_and_leaves_nothing() {
    for command in [&["image", "pull"][..], &["run", "bash", "true", "--image"], &["create", "--image"]] {
        interrupted(command);
    }
}

fn interrupted(command: &[&str]) {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("127.0.0.1:{}", silent.local_addr().unwrap().port());
    let name = format!("{host}/tool:1");
    let line = [command, &[&name, "--insecure-registry", &host]].concat();
    let mut child = world.command(&line).spawn().unwrap();
    let (_connection, _) = silent.accept().unwrap();
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(130), "{command:?}");
    assert_eq!(world.run(&["image", "ls", "-q"]).stdout, "");
}
