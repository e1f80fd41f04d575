//! Older servers on a daemon: its images are their runners, its limits theirs, and its other containers nobody's.

use std::time::{Duration, Instant};

use sandpen_tests::wire::{PATIENCE, Wire};
use sandpen_tests::{Result, Trouble, images, processes};
use serde_json::{Value, json};

use crate::runners::{build, here};
use crate::scene::{LIMIT, Scene};

/// The text of an answer, whatever it says.
fn said(server: &mut Wire, tool: &str, arguments: &Value) -> Result<String> {
    let id = server.call(tool, arguments)?;
    let answer = server.answer(id)?;
    let text = answer["content"][0]["text"].as_str().map(str::to_owned);
    text.ok_or_else(|| Trouble(format!("{tool} says {answer}")))
}

fn parsed(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| Trouble(format!("{error} in {text}")))
}

fn end(mut server: Wire) -> Result<()> {
    server.close();
    server.end_within(LIMIT).map(drop)
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

/// A language that nothing else knows, by the labels that its users have on their images.
pub(crate) fn runners(scene: &mut Scene) -> Result<()> {
    let own = scene.path().join("older-runner");
    std::fs::create_dir_all(&own)?;
    let dockerfile = "ARG BASE\nFROM ${BASE}\nLABEL sandbox.runner=true sandbox.language=whisper\n\
                      ENTRYPOINT [\"sh\", \"-c\", \"tr A-Z a-z; pwd; id -u; cat note; echo kept > made\"]\n";
    std::fs::write(own.join("Dockerfile"), dockerfile)?;
    let image = here(scene, "whisper");
    build(scene, &own, &image)?;
    let tried = scene.older_server("code-runner", &[]).and_then(|mut server| {
        let listed = parsed(&said(&mut server, "list_runners", &json!({}))?)?;
        let languages = listed["languages"].as_array().cloned().unwrap_or_default();
        let is_there =
            languages.iter().any(|one| one["language"] == "whisper" && one["image"].to_string().contains("whisper"));
        ensure(is_there, || format!("the runners are {listed}"))?;
        let asked = server.request("tools/list", &json!({}))?;
        let tools = server.answer(asked)?["tools"].as_array().cloned().unwrap_or_default();
        let run = tools.iter().find(|tool| tool["name"] == "run_code").cloned().unwrap_or_default();
        let offered = &run["inputSchema"]["properties"]["language"]["enum"];
        let is_offered = offered.as_array().is_some_and(|languages| languages.contains(&json!("whisper")));
        ensure(is_offered, || format!("run_code offers {offered}"))?;
        let upload = json!({ "conversationId": "c", "filename": "note", "content": "bm90ZWQK" });
        said(&mut server, "upload_file", &upload)?;
        let run = json!({ "conversationId": "c", "language": "whisper", "code": "QUIET\n" });
        let ran = parsed(&said(&mut server, "run_code", &run)?)?;
        ensure(ran["success"] == true && ran["stdout"] == "quiet\n/data\n1000\nnoted\n", || format!("the run: {ran}"))?;
        let files = ran["files"].as_array().cloned().unwrap_or_default();
        ensure(files.iter().any(|file| file["name"] == "made"), || format!("what it made is not kept: {ran}"))?;
        let unknown = json!({ "conversationId": "c", "language": "mumble", "code": "x" });
        let ran = parsed(&said(&mut server, "run_code", &unknown)?)?;
        ensure(ran["stderr"] == "Unsupported language: mumble", || format!("another: {ran}"))?;
        end(server)
    });
    scene.remove_image(&image)?;
    tried
}

/// As the daemon has them, while code runs.
pub(crate) fn limits(scene: &mut Scene) -> Result<()> {
    // A conversation of its own: files that one has already are lent to its runs, beside their memory.
    let mut server = scene.older_server("code-runner", &["--image", images::DEBIAN])?;
    let run = json!({ "conversationId": "limits", "language": "bash", "code": "exec -a marked-by-this-test sleep 25" });
    let asked = server.call("run_code", &run)?;
    let started = Instant::now();
    let container = loop {
        // The groups of a container's processes are called by it.
        let groups = processes::marked("marked-by-this-test").into_iter();
        let groups = groups.filter_map(|process| std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok());
        let groups: Vec<String> = groups.collect();
        let is_it = |id: &&String| groups.iter().any(|group| group.contains(id.as_str()));
        if let Some(found) = scene.containers()?.iter().find(is_it) {
            break found.clone();
        }
        ensure(started.elapsed() < Duration::from_secs(20), || "the code runs in no container".to_owned())?;
        std::thread::sleep(Duration::from_millis(200));
    };
    let format = "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.CpuQuota}}/{{.HostConfig.CpuPeriod}}";
    let limits = scene.daemon.run(&["inspect", "--format", format, &container])?;
    // Either is half a processor.
    let is_half = limits.contains(" 500000000 ") || limits.trim().ends_with(" 50000/100000");
    ensure(limits.starts_with("268435456 ") && is_half, || format!("the limits are {limits}"))?;
    let ran = server.reply(asked, PATIENCE)?;
    ensure(ran["result"]["content"][0]["text"].to_string().contains("success"), || format!("the run: {ran}"))?;
    let hungry =
        json!({ "conversationId": "limits", "language": "python", "code": "x = bytearray(300 << 20); print(len(x))" });
    let ran = parsed(&said(&mut server, "run_code", &hungry)?)?;
    ensure(ran["success"] == false && ran["stderr"].to_string().contains("memory ran out"), || {
        format!("the run: {ran}")
    })?;
    end(server)
}

/// By its own id, which is as good as those that are given out, and by the daemon's name for it.
pub(crate) fn foreign(scene: &mut Scene) -> Result<()> {
    let run = ["run", "--detach", "--network", "none", "--name", "somebody-elses", images::DEBIAN, "sleep", "1000"];
    let id = scene.daemon.run(&run)?.trim().to_owned();
    let tried = ["automata", "sandbox-server"].iter().try_for_each(|profile| is_not_there(scene, profile, &id));
    let state = scene.daemon.run(&["inspect", "--format", "{{.State.Running}} {{.RestartCount}}", &id]);
    let changes = scene.daemon.run(&["diff", &id]);
    let images = scene.daemon.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
    scene.daemon.run(&["rm", "--force", &id])?;
    tried?;
    let (state, changes, images) = (state?, changes?, images?);
    ensure(state.trim() == "true 0", || format!("it was touched: {state}"))?;
    ensure(!changes.contains("planted"), || format!("it has {changes}"))?;
    ensure(!images.contains("stolen"), || format!("it was saved: {images}"))
}

fn is_not_there(scene: &Scene, profile: &str, id: &str) -> Result<()> {
    let mut server = scene.older_server(profile, &["--image", images::DEBIAN])?;
    for id in [id, &id[..12], "somebody-elses"] {
        let calls = match profile {
            "automata" => vec![
                ("sandbox_exec", json!({ "container_id": id, "commands": "touch /planted" })),
                (
                    "write_file",
                    json!({ "container_id": id, "file_name": "planted", "file_contents": "x", "dest_dir": "/" }),
                ),
                ("sandbox_stop", json!({ "container_id": id })),
            ],
            _ => vec![
                ("execute_command_in_container", json!({ "container_id": id, "command": "touch /planted" })),
                ("create_file_in_container", json!({ "container_id": id, "filename": "planted", "content": "x" })),
                ("save_container_state", json!({ "container_id": id, "name": "stolen:v1" })),
                ("export_dockerfile", json!({ "container_id": id })),
                ("exit_container", json!({ "container_id": id, "force": true })),
            ],
        };
        for (tool, arguments) in calls {
            let told = said(&mut server, tool, &arguments)?;
            let is_unknown = told.contains("not found") || told.contains("there is no container");
            ensure(is_unknown, || format!("{tool} of {id} says {told}"))?;
        }
    }
    end(server)
}

/// In place of the embedded engine, which has no such image.
pub(crate) fn backend(scene: &mut Scene) -> Result<()> {
    let place = tempfile::tempdir_in(scene.path())?;
    let mut command = scene.command("backend", &["mcp", "--profile", "philschmid"]);
    for name in ["SANDPEN_ENGINE", "SANDPEN_DAEMON_HOST", "SANDPEN_CONTAINER_IMAGE"] {
        command.env_remove(name);
    }
    command.env("BACKEND", scene.daemon.flavour().as_str());
    command.env("DOCKER_HOST", scene.daemon.host()).env("CONTAINER_HOST", scene.daemon.host());
    command.env("CONTAINER_IMAGE", images::DEBIAN).env("CONTAINER_LANGUAGE", "Python");
    let before = scene.containers()?;
    let mut server = Wire::by(&mut command, place)?;
    let told = said(&mut server, "run_python_code", &json!({ "code": "print(6 * 7)" }))?;
    ensure(told == "42", || format!("it says {told}"))?;
    let asked = server.call("run_python_code", &json!({ "code": "import time; time.sleep(10); print('slept')" }))?;
    let started = Instant::now();
    while scene.containers()?.is_subset(&before) {
        ensure(started.elapsed() < Duration::from_secs(9), || "it runs in no container of the daemon".to_owned())?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let ran = server.answer(asked)?;
    ensure(ran["content"][0]["text"] == "slept", || format!("it says {ran}"))?;
    end(server)?;
    scene.settles_to(&before, Duration::from_secs(60))
}
