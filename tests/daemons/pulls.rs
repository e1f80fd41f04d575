//! Images that the daemon fetches: who asks, who may, and what is said meanwhile and when they do not come.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use sandpen_tests::program::{Ran, run};
use sandpen_tests::registry::Registry;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, images};
use serde_json::json;

use crate::scene::{LIMIT, Scene};

/// The logins of Docker's client, in each of the ways in which it keeps them.
pub(crate) fn with_logins(scene: &mut Scene) -> Result<()> {
    let name = format!("{}/tool:1", scene.closed.host);
    let (user, password) = (Registry::USER, Registry::PASSWORD);
    let known = scene.path().join("known");
    fs::create_dir(&known)?;
    let kept = json!({"auths": {&scene.closed.host: {"auth": Registry::LOGIN}}}).to_string();
    fs::write(known.join("config.json"), &kept)?;
    let docker = |arguments: &[&str]| {
        let mut command = scene.daemon.docker();
        run(command.env("DOCKER_CONFIG", &known).args(arguments), scene.path(), LIMIT)?.succeeded()
    };
    docker(&["tag", images::SCRATCH, &name])?;
    docker(&["push", "--quiet", &name])?;
    docker(&["rmi", &name])?;
    let helpers = helper(scene, "known", user, password)?;
    let host = &scene.closed.host;
    for (what, config) in [
        ("auths", kept),
        ("credHelpers", json!({"credHelpers": {host: "known"}}).to_string()),
        ("credsStore", json!({"credsStore": "known"}).to_string()),
    ] {
        let pulled = pull(scene, &config, &helpers, &name)?;
        if !pulled.status.success() {
            return Err(pulled.told(what));
        }
        docker(&["rmi", &name])?;
    }
    let hint = format!("docker login {host}");
    let wrong = json!({"auths": {host: {"username": user, "password": "wrong"}}}).to_string();
    for (config, reason) in [("{}", "no login for it is known"), (wrong.as_str(), "is not taken")] {
        let pulled = pull(scene, config, &helpers, &name)?;
        told(&pulled, &[reason, &hint])?;
    }
    Ok(())
}

/// What is there is enough for a sandbox, and what is not may be forbidden to be fetched.
pub(crate) fn never(scene: &mut Scene) -> Result<()> {
    scene.expect(&["run", "--pull", "never", "bash", "--image", images::DEBIAN, "echo local"], "local\n")?;
    let name = pushed(scene, images::SCRATCH, "never:1")?;
    told(&scene.ran(&["create", "--pull", "never", "--image", &name])?, &["none is to be fetched", &name])?;
    if scene.run(&["image", "ls", "--quiet"])?.contains(&name) {
        return Err("it was fetched all the same".into());
    }
    Ok(())
}

/// A tag that moved is followed by whoever asks for it, and by nobody else.
pub(crate) fn again(scene: &mut Scene) -> Result<()> {
    let name = pushed(scene, images::SCRATCH, "moving:1")?;
    let id = || -> Result<String> {
        let pulled = scene.run(&["image", "pull", "--json", &name])?;
        let image: serde_json::Value = serde_json::from_str(&pulled).map_err(|error| format!("{error}: {pulled}"))?;
        Ok(image["id"].to_string())
    };
    let first = id()?;
    if id()? != first {
        return Err("the same image is another".into());
    }
    scene.daemon.run(&["rmi", &name])?;
    pushed(scene, images::OTHER_USER, "moving:1")?;
    let second = id()?;
    scene.daemon.run(&["rmi", &name])?;
    if first == second { Err(format!("{name} has moved and is still {first}").into()) } else { Ok(()) }
}

/// Each failure by its reason.
pub(crate) fn in_vain(scene: &mut Scene) -> Result<()> {
    let missing = format!("{}/no-such:1", scene.registry.host);
    told(&scene.ran(&["image", "pull", &missing])?, &["has no image", &missing])?;
    told(&scene.ran(&["image", "pull", "127.0.0.1:1/tool:1"])?, &["does not reach the registry 127.0.0.1:1"])
}

/// A call that waits for an image hears of it.
pub(crate) fn with_news(scene: &mut Scene) -> Result<()> {
    let name = pushed(scene, images::DEBIAN, "news:1")?;
    let place = tempfile::tempdir_in(scene.path())?;
    let mut server = Wire::by(&mut scene.command("news", &["mcp", "--image", &name]), place)?;
    let call = server.call_watched("run_command", &json!({"command": "echo fetched"}))?;
    let answer = server.answer(call)?;
    let news = server.progress;
    server.close();
    server.end_within(Duration::from_secs(60))?;
    scene.remove_image(&name)?;
    if answer["structuredContent"]["stdout"] != "fetched\n" || news == 0 {
        return Err(format!("with {news} news the answer is {answer}").into());
    }
    Ok(())
}

/// Names as people write them and as Podman writes them out.
pub(crate) fn by_any_name(scene: &mut Scene) -> Result<()> {
    for name in [images::DEBIAN, &format!("docker.io/library/{}", images::DEBIAN)] {
        scene.expect(&["run", "--pull", "never", "bash", "--image", name, "echo named"], "named\n")?;
    }
    scene.daemon.run(&["tag", images::DEBIAN, "localhost/own:1"])?;
    let ran = scene.expect(&["run", "--pull", "never", "bash", "--image", "localhost/own:1", "echo own"], "own\n");
    scene.remove_image("localhost/own:1")?;
    ran
}

/// An image in the open registry and no longer in the daemon, by its name there.
fn pushed(scene: &Scene, image: &str, tag: &str) -> Result<String> {
    let name = format!("{}/{tag}", scene.registry.host);
    scene.daemon.run(&["tag", image, &name])?;
    scene.daemon.run(&["push", "--quiet", &name])?;
    scene.daemon.run(&["rmi", &name])?;
    Ok(name)
}

fn pull(scene: &Scene, config: &str, helpers: &str, name: &str) -> Result<Ran> {
    let directory = tempfile::tempdir_in(scene.path())?;
    fs::write(directory.path().join("config.json"), config)?;
    let directory = directory.path().to_string_lossy();
    scene.ran_with(&[("DOCKER_CONFIG", &*directory), ("PATH", helpers)], &["image", "pull", name])
}

/// A program that keeps a login, and the search path that leads to it.
fn helper(scene: &Scene, name: &str, user: &str, password: &str) -> Result<String> {
    let directory: PathBuf = scene.path().join("helpers");
    fs::create_dir_all(&directory)?;
    let program = directory.join(format!("docker-credential-{name}"));
    let answer = json!({"ServerURL": scene.closed.host, "Username": user, "Secret": password});
    let script = format!(
        "#!/bin/sh\nread -r asked\n[ \"$1 $asked\" = 'get {}' ] && echo '{answer}' && exit\n\
         echo credentials not found in native keychain\nexit 1\n",
        scene.closed.host
    );
    fs::write(&program, script)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(format!("{}:/usr/bin:/bin", directory.display()))
}

fn told(ran: &Ran, words: &[&str]) -> Result<()> {
    let missing = words.iter().find(|words| !ran.stderr.contains(**words));
    match missing {
        Some(words) => Err(ran.told(&format!("it does not say {words:?}"))),
        None if ran.status.code() != Some(1) => Err(ran.told("it does not fail as commands about images do")),
        None => Ok(()),
    }
}
