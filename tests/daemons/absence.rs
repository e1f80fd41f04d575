//! What is said of a daemon, and what when there is none.

use std::path::Path;
use std::time::{Duration, Instant};

use sandpen_tests::daemon::{Daemon, Flavour};
use sandpen_tests::program::Program;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};

use crate::scene::Scene;

/// What is promised for a daemon that does not answer.
const PROMISED: Duration = Duration::from_secs(30);

pub(crate) fn doctor(scene: &mut Scene) -> Result<()> {
    let text = scene.run(&["doctor", "--json"])?;
    let found: Value = serde_json::from_str(&text).map_err(|error| Trouble(format!("{error}: {text}")))?;
    let is_on = |layer: &Value| layer["state"] == "on";
    let layers = found["layers"].as_array().ok_or("there are no layers")?;
    let standing = layers.iter().filter(|layer| is_on(layer)).count();
    if found["trial"]["works"] != true
        || found["daemon"]["place"].as_str() != scene.daemon.socket().to_str()
        || standing < 12
    {
        return Err(format!("the doctor found {found}").into());
    }
    Ok(())
}

/// It says where it looked, does not take long, and takes no other engine.
pub(crate) fn nowhere(scene: &mut Scene) -> Result<()> {
    let started = Instant::now();
    let ran = scene.ran(&["run", "bash", "echo ran", "--daemon-host", "unix:///nowhere/socket"])?;
    if ran.status.code() != Some(125) || !ran.stderr.contains("/nowhere/socket") || ran.stdout.contains("ran") {
        return Err(ran.told("a daemon that is not there"));
    }
    if started.elapsed() > PROMISED { Err("it took too long to say so".into()) } else { Ok(()) }
}

/// Nothing is named, and nobody is where one would be looked for.
pub(crate) fn at_no_usual_place(scene: &mut Scene) -> Result<()> {
    let (system, of_runtime, of_home, how) = match scene.daemon.flavour() {
        Flavour::Docker => ("/var/run/docker.sock", "docker.sock", ".docker/run/docker.sock", "systemctl start docker"),
        Flavour::Podman => (
            "/run/podman/podman.sock",
            "podman/podman.sock",
            ".local/share/containers/podman/machine/podman.sock",
            "systemctl --user start podman.socket",
        ),
    };
    if Path::new(system).exists() {
        return scene.skip(format!("this machine has a daemon at {system}"));
    }
    let (home, runtime) = (scene.path().join("nobodys-home"), scene.path().join("nobodys-runtime"));
    std::fs::create_dir_all(&home)?;
    std::fs::create_dir_all(&runtime)?;
    let (home, runtime) = (home.display().to_string(), runtime.display().to_string());
    let variables = [("SANDPEN_DAEMON_HOST", ""), ("HOME", &*home), ("XDG_RUNTIME_DIR", &*runtime)];
    let ran = scene.ran_with(&variables, &["run", "bash", "echo ran"])?;
    let wanted = [system.to_owned(), format!("{runtime}/{of_runtime}"), format!("{home}/{of_home}"), how.to_owned()];
    let missing: Vec<&String> = wanted.iter().filter(|words| !ran.stderr.contains(*words)).collect();
    if ran.status.code() == Some(125) && ran.stdout.is_empty() && missing.is_empty() {
        Ok(())
    } else {
        Err(ran.told(&format!("it does not say {missing:?}")))
    }
}

/// A server whose daemon stops and comes back says so, and goes on. Docker's still answers while it ends its containers, and then
/// it is known how a command ended that ran in one.
pub(crate) fn for_a_while(scene: &mut Scene) -> Result<()> {
    away(scene, "for-a-while", Daemon::stop_for_now, |answer| answer["structuredContent"]["status"] == "killed")
}

/// The same without a word.
pub(crate) fn killed(scene: &mut Scene) -> Result<()> {
    away(scene, "killed", Daemon::kill_for_now, |_| false)
}

fn away(
    scene: &mut Scene,
    state: &str,
    end: fn(&mut Daemon) -> Result<()>,
    may_have_ended: fn(&Value) -> bool,
) -> Result<()> {
    let mut server = scene.server(state)?;
    let run = json!({"command": "echo here"});
    expect_here(&mut server, &run)?;
    let sandbox = server.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    let amid = server.call("run_command", &json!({"command": "sleep 600", "sandbox_id": sandbox}))?;
    server.listen(Duration::from_secs(1))?;
    end(&mut scene.daemon)?;
    let started = Instant::now();
    let answer = server.answer(amid)?;
    if !may_have_ended(&answer) {
        told_unavailable(&answer, started)?;
    }
    for arguments in [run.clone(), json!({"command": "echo here", "sandbox_id": sandbox})] {
        let started = Instant::now();
        let asked = server.call("run_command", &arguments)?;
        is_unavailable(&mut server, asked, started)?;
    }
    scene.daemon.start_again()?;
    expect_here(&mut server, &run)
}

/// One that takes connections and says nothing. What runs in sandboxes goes on meanwhile.
pub(crate) fn hung(scene: &mut Scene) -> Result<()> {
    let mut server = scene.server("hung")?;
    let sandbox = server.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    let lasting = server.good("create_sandbox", &json!({"persist": true}))?["sandbox_id"].take();
    let here = [&sandbox, &lasting].map(|id| json!({"command": "echo here", "sandbox_id": id}));
    here.iter().try_for_each(|here| expect_here(&mut server, here))?;
    scene.daemon.hang()?;
    let started = Instant::now();
    // Commands become jobs when a daemon takes its time; these are answered.
    let file = |id: &Value| json!({"sandbox_id": id, "path": "/etc/os-release"});
    let other = json!({"memory_mb": 300});
    let asked = [
        server.call("read_file", &file(&sandbox))?,
        server.call("read_file", &file(&lasting))?,
        server.call("create_sandbox", &other)?,
    ];
    let told = asked.into_iter().try_for_each(|asked| is_unavailable(&mut server, asked, started));
    scene.daemon.go_on()?;
    told?;
    here.iter().try_for_each(|here| expect_here(&mut server, here))?;
    server.good("stop_sandbox", &json!({"sandbox_id": lasting})).map(drop)
}

/// The same while much is under way: nobody waits for those before it, and what moves files does not wait for ever.
pub(crate) fn hung_amid_work(scene: &mut Scene) -> Result<()> {
    let mut server = scene.server("hung-amid-work")?;
    let sandbox = server.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    let run = |command: &str| json!({"command": command, "sandbox_id": sandbox});
    server.good("run_command", &run("head -c 200000000 /dev/urandom > large"))?;
    let save = json!({"sandbox_id": sandbox, "name": "amid"});
    let saving = server.call("save_sandbox", &save)?;
    std::thread::sleep(Duration::from_millis(300));
    scene.daemon.hang()?;
    let started = Instant::now();
    let told = all_are_told(&mut server, saving, started);
    scene.daemon.go_on()?;
    told?;
    expect_here(&mut server, &run("echo here"))?;
    expect_here(&mut server, &json!({"command": "echo here"}))?;
    server.good("save_sandbox", &save)?;
    let copy = server.good("run_command", &json!({"command": "wc -c < large", "image": "saved:amid"}))?;
    if copy["stdout"] != "200000000\n" {
        return Err(format!("what was saved has {copy}").into());
    }
    server.good("delete_image", &json!({"image": "saved:amid"})).map(drop)
}

/// Who waits already, and those who come now.
fn all_are_told(server: &mut Wire, saving: u64, started: Instant) -> Result<()> {
    let code = json!({"language": "python", "code": "print(6 * 7)"});
    let mut asked = vec![saving];
    for _ in 0..3 {
        asked.push(server.call("run_code", &code)?);
    }
    let listing = server.request("tools/list", &json!({}))?;
    asked.push(server.call("create_sandbox", &json!({"memory_mb": 300}))?);
    asked.into_iter().try_for_each(|asked| is_unavailable(server, asked, started))?;
    // Its languages are the daemon's to say: with or without them, it is answered.
    let listed = server.answer(listing);
    let waited = started.elapsed();
    if waited > PROMISED {
        return Err(format!("tools/list took {} s without a daemon: {listed:?}", waited.as_secs()).into());
    }
    Ok(())
}

/// While it is idle, while a command runs in it and while files go to it.
pub(crate) fn removed(scene: &mut Scene) -> Result<()> {
    let mut server = scene.server("state")?;
    let large = scene.path().join("large");
    std::fs::File::create(&large)?.set_len(1 << 30)?;
    let run = |command: &str, id: &str| json!({"command": command, "sandbox_id": id});
    for what in ["nothing", "a command", "an upload"] {
        let id = scene.run(&["create", "--memory", "2g", "--disk", "2g"])?.trim().to_owned();
        expect_here(&mut server, &run("echo here", &id))?;
        let started = Instant::now();
        let container = format!("sandpen-{id}");
        let ended = match what {
            "a command" => {
                let asked = server.call("run_command", &run("sleep 600", &id))?;
                std::thread::sleep(Duration::from_secs(1));
                scene.daemon.run(&["rm", "--force", &container])?;
                let answer = server.answer(asked)?;
                answer["isError"] == true || answer["structuredContent"]["status"] == "killed"
            }
            "an upload" => {
                let mut copy =
                    scene.command("state", &["cp", &large.to_string_lossy(), &format!("{id}:/workspace/large")]);
                let mut copying = Program::start(&mut copy, &scene.path().join("copying"))?;
                std::thread::sleep(Duration::from_millis(700));
                scene.daemon.run(&["rm", "--force", &container])?;
                !copying.wait_within(PROMISED)?.success()
            }
            _ => {
                scene.daemon.run(&["rm", "--force", &container])?;
                true
            }
        };
        let asked = server.call("run_command", &run("echo here", &id))?;
        let answer = server.answer(asked)?.to_string();
        if !ended || !answer.contains("not_found") || started.elapsed() > PROMISED {
            let seconds = started.elapsed().as_secs();
            return Err(format!("removed during {what}, after {seconds} s: {answer}").into());
        }
    }
    Ok(())
}

fn expect_here(server: &mut Wire, arguments: &Value) -> Result<()> {
    let ran = server.good("run_command", arguments)?;
    if ran["stdout"] == "here\n" { Ok(()) } else { Err(format!("{arguments} gives {ran}").into()) }
}

/// With its kind, in the time that is promised.
fn is_unavailable(server: &mut Wire, asked: u64, started: Instant) -> Result<()> {
    told_unavailable(&server.answer(asked)?, started)
}

fn told_unavailable(answer: &Value, started: Instant) -> Result<()> {
    if answer["isError"] != true || !answer.to_string().contains("(unavailable)") {
        return Err(format!("without a daemon the answer is {answer}").into());
    }
    if started.elapsed() > PROMISED {
        return Err(format!("it took {} s to say that there is no daemon", started.elapsed().as_secs()).into());
    }
    Ok(())
}

/// Docker stops its containers before it ends, and they keep their files. Podman's are not its service's children: here they
/// are killed with everything around them, as by a host that crashes, and to go on as if nothing was lost would be wrong.
pub(crate) fn of_a_persistent_one(scene: &mut Scene) -> Result<()> {
    let id = scene.run(&["create"])?.trim().to_owned();
    scene.run(&["exec", &id, "--", "sh", "-c", "echo kept > file"])?;
    scene.daemon.stop_for_now()?;
    scene.daemon.start_again()?;
    let listed = scene.run(&["ps"])?;
    if !listed.contains("stopped") {
        return Err(format!("it is not shown as stopped: {listed}").into());
    }
    scene.expect(&["exec", &id, "--", "cat", "file"], "kept\n")?;
    scene.run(&["stop", &id]).map(drop)
}
