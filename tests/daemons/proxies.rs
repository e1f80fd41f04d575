//! Proxies are the daemon's and its client's own: their addresses, and perhaps passwords in them, are nobody's inside.

use std::fs;
use std::path::Path;

use sandpen_tests::daemon::PROXY;
use sandpen_tests::program::run;
use sandpen_tests::{Result, images};

use crate::scene::{LIMIT, Scene};

/// What a container of Docker's client is given is seen first, because otherwise nothing would be shown.
pub(crate) fn untold(scene: &mut Scene) -> Result<()> {
    let client = scene.path().join("client-with-proxies");
    fs::create_dir_all(&client)?;
    let proxies = format!(r#"{{"proxies": {{"default": {{"httpProxy": "{PROXY}", "httpsProxy": "{PROXY}"}}}}}}"#);
    fs::write(client.join("config.json"), proxies)?;
    if !of_a_container_of_others(scene, &client)?.contains(PROXY) {
        return Err("a container of Docker's client has no proxy of its settings, so nothing is shown".into());
    }
    let variables = [("DOCKER_CONFIG", &*client.to_string_lossy()), ("HTTP_PROXY", PROXY), ("http_proxy", PROXY)];
    let sandpen =
        |arguments: &[&str]| -> Result<String> { Ok(scene.ran_with(&variables, arguments)?.succeeded()?.stdout) };
    let id = sandpen(&["create", "--image", images::DEBIAN])?.trim().to_owned();
    let inside = sandpen(&["exec", &id, "--", "sh", "-c", "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'"]);
    let told = scene.daemon.run(&["inspect", "--format", "{{json .Config.Env}}", &format!("sandpen-{id}")]);
    sandpen(&["stop", &id])?;
    for seen in [inside?, told?] {
        if seen.to_lowercase().contains("proxy") {
            return Err(format!("a sandbox is told {seen}").into());
        }
    }
    Ok(())
}

/// The variables of a container that is made without us, by a client with these settings.
fn of_a_container_of_others(scene: &Scene, settings: &Path) -> Result<String> {
    let mut command = scene.daemon.docker();
    command.env("DOCKER_CONFIG", settings);
    command.args(["run", "--rm", "--network", "none", images::DEBIAN, "env"]);
    Ok(run(&mut command, scene.path(), LIMIT)?.succeeded()?.stdout)
}
