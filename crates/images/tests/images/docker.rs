//! Docker itself, where there is one that answers.

use std::process::Command;

use images::import::{self, Request};
use images::{Work, export};
use serde_json::Value;

use crate::archive::{Archive, Layout};
use crate::place::{Place, reference};
use crate::registries::pull;
use crate::server::Registry;
use crate::tools;

const LOSS: &str = "images are not given to Docker and taken from it";

fn docker() -> Option<Command> {
    let program = tools::find("docker", LOSS)?;
    let answers = Command::new(&program).args(["version", "--format", "{{.Server.Version}}"]).output();
    if !answers.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no Docker daemon answers: {LOSS}");
        return None;
    }
    Some(Command::new(program))
}

fn layout() -> Layout {
    let layers = [
        Archive::new().directory("etc", 0o755).file("etc/one", "1").owned_by(1234, 5678).file("etc/two", "2").bytes(),
        Archive::new().directory("etc", 0o755).file("etc/.wh.one", "").symlink("etc/three", "two").bytes(),
    ];
    let mut layout = Layout::new(&layers);
    layout.config["config"] = serde_json::json!({"Cmd": ["/etc/two"], "Env": ["A=b"], "User": "1234"});
    layout
}

/// What Docker says it has under a name, with what it was built from.
fn inspect(name: &str) -> Value {
    let text = tools::run(docker().unwrap().args(["image", "inspect", name]));
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

#[test]
fn docker_loads_what_was_exported_and_what_it_saves_comes_back() {
    let Some(_) = docker() else { return };
    let place = Place::new();
    let name = format!("sandpen-test-{}:1", std::process::id());
    let path = place.top.path().join("offered");
    std::fs::write(&path, layout().tar()).unwrap();
    let request = Request { name: Some(reference(&name)), pick: None };
    import::import(&place.store, &path, &request, &Work::default()).unwrap();
    let original = place.store.resolve(&reference(&name)).unwrap().unwrap();
    let file = place.top.path().join("export.tar");
    export::to_file(&place.store, &original, &file, &Work::default()).unwrap();
    tools::run(docker().unwrap().args(["load", "--quiet", "--input"]).arg(&file));

    let loaded = inspect(&name);
    let diff_ids: Vec<String> = original.config.rootfs.diff_ids.iter().map(|digest| digest.qualified()).collect();
    assert_eq!(loaded["RootFS"]["Layers"], serde_json::json!(diff_ids));
    assert_eq!((&loaded["Config"]["User"], &loaded["Config"]["Cmd"][0]), (&"1234".into(), &"/etc/two".into()));

    let saved = place.top.path().join("saved.tar");
    tools::run(docker().unwrap().args(["save", "--output"]).arg(&saved).arg(&name));
    if let Some(registry) = Registry::start() {
        let there = format!("{}/{name}", registry.host());
        tools::run(docker().unwrap().args(["tag", &name, &there]));
        tools::run(docker().unwrap().args(["push", "--quiet", &there]));
        tools::run(docker().unwrap().args(["rmi", &there]));
        let other = Place::new();
        let named = pull(&other, &registry.host(), &name).unwrap();
        let image = other.store.resolve(&named.reference).unwrap().unwrap();
        assert_eq!(image.config.rootfs, original.config.rootfs, "pushed by Docker, pulled by us");
    }
    tools::run(docker().unwrap().args(["rmi", &name]));
    let other = Place::new();
    import::import(&other.store, &saved, &Request::default(), &Work::default()).unwrap();
    let back = other.store.resolve(&reference(&name)).unwrap().expect("it kept its name");
    assert_eq!(back.config.rootfs, original.config.rootfs);
    assert_eq!(back.config.config.user, "1234");
}
