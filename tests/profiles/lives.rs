//! Containers and the servers that they belong to: what outlives one, what two share, and what is left of one that is killed.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandpen_tests::daemon::Given;
use sandpen_tests::processes::descendants;
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, Trouble};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{product, told};

/// How long a container may take to go after its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// One state directory, and the servers of one user on it.
struct Home {
    place: TempDir,
    daemon: Option<Given>,
}

impl Home {
    fn new() -> Result<Self> {
        let place = tempfile::Builder::new().prefix("sandpen-lives-").tempdir()?;
        Ok(Self { place, daemon: Given::of_environment()? })
    }

    fn image(&self) -> &str {
        self.daemon.as_ref().map_or("host", |daemon| &daemon.image)
    }

    fn server(&self, profile: &str, flags: &[&str]) -> Result<Wire> {
        let mut command = product(self.place.path(), self.daemon.as_ref())?;
        command.args(["mcp", "--profile", profile, "--image", self.image()]).args(flags);
        Wire::by(&mut command, tempfile::tempdir_in(self.place.path())?)
    }

    /// The id of one that `sandbox-server` makes.
    fn container(&self, server: &mut Wire, persist: bool) -> Result<String> {
        let arguments = json!({ "image": self.image(), "persist": persist });
        let created = said(server, "create_container_environment", &arguments)?;
        let id = created.lines().next().and_then(|line| line.strip_prefix("Container created with ID: "));
        id.map(str::to_owned).ok_or_else(|| Trouble(format!("no container was made: {created}")))
    }

    fn sandboxes(&self) -> Result<Vec<Value>> {
        let listed = self.told(&["ps", "--json"])?;
        let listed: Value = serde_json::from_str(&listed).map_err(|error| Trouble(format!("{error} in {listed}")))?;
        Ok(listed["sandboxes"].as_array().cloned().unwrap_or_default())
    }

    fn told(&self, words: &[&str]) -> Result<String> {
        told(self.place.path(), self.daemon.as_ref(), words)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(trouble) = self.told(&["stop", "--all"]) {
            eprintln!("what was started is not stopped: {trouble}");
        }
    }
}

fn said(server: &mut Wire, tool: &str, arguments: &Value) -> Result<String> {
    let id = server.call(tool, arguments)?;
    text(server, id)
}

fn text(server: &mut Wire, id: u64) -> Result<String> {
    let answer = server.answer(id)?;
    let text = answer["content"][0]["text"].as_str().map(str::to_owned);
    text.ok_or_else(|| Trouble(format!("it says {answer}")))
}

fn expect(server: &mut Wire, tool: &str, arguments: &Value, expected: &str) -> Result<()> {
    let found = said(server, tool, arguments)?;
    ensure(found == expected, || format!("{tool} with {arguments} says {found:?} instead of {expected:?}"))
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

fn end(mut server: Wire) -> Result<()> {
    server.close();
    server.end_within(PATIENCE).map(drop)
}

/// Without a word to it, so that it ends nothing.
fn kill(mut server: Wire) -> Result<()> {
    let process = Pid::from_raw(server.pid().cast_signed()).ok_or("the server has no number")?;
    kill_process(process, Signal::KILL).map_err(std::io::Error::from)?;
    server.end_within(PATIENCE).map(drop)
}

fn in_container(command: &str) -> Value {
    json!({ "args": { "args": command } })
}

/// A container is its user's, and no server's: two that begin at once have the same one, and so has who comes later.
pub(crate) fn shared() -> Result<()> {
    let home = Home::new()?;
    let mut servers = [home.server("cloudflare", &[])?, home.server("cloudflare", &[])?];
    let asked =
        [servers[0].call("container_initialize", &json!({}))?, servers[1].call("container_initialize", &json!({}))?];
    for (server, id) in servers.iter_mut().zip(asked) {
        let created = text(server, id)?;
        ensure(created == "Created new container", || format!("it says {created}"))?;
        // It can be used at once, whoever made it.
        expect(server, "container_ping", &json!({}), "pong!")?;
    }
    let [mut first, mut second] = servers;
    expect(&mut first, "container_exec", &in_container("echo one > note"), "Process exited with code: 0")?;
    expect(&mut second, "container_exec", &in_container("cat note"), "one\nProcess exited with code: 0")?;
    end(first)?;
    expect(&mut second, "container_exec", &in_container("cat note"), "one\nProcess exited with code: 0")?;
    kill(second)?;
    let mut third = home.server("cloudflare", &[])?;
    expect(&mut third, "container_initialize", &json!({}), "Created new container")?;
    expect(&mut third, "container_exec", &in_container("cat note"), "one\nProcess exited with code: 0")?;
    end(third)?;
    let left = home.sandboxes()?;
    ensure(left.len() == 1 && left[0]["name"] == "cloudflare-container", || format!("there are {left:?}"))?;
    let mut alone = home.server("cloudflare", &["--profile-option", "end-containers"])?;
    home.told(&["stop", "--all"])?;
    expect(&mut alone, "container_initialize", &json!({}), "Created new container")?;
    end(alone)?;
    let left = home.sandboxes()?;
    ensure(left.is_empty(), || format!("this one ends with its server: {left:?}"))
}

/// As the documents of the older server promised it, for those who want that.
pub(crate) fn temporary() -> Result<()> {
    let home = Home::new()?;
    let mut server = home.server("sandbox-server", &["--profile-option", "end-temporary"])?;
    let ids = [home.container(&mut server, false)?, home.container(&mut server, true)?];
    let command = |id: &str| json!({ "container_id": id, "command": "pwd" });
    for id in &ids {
        expect(&mut server, "execute_command_in_container", &command(id), "/workspace\n")?;
    }
    end(server)?;
    let left = home.sandboxes()?;
    ensure(left.len() == 1, || format!("there are {left:?}"))?;
    let [passing, kept] = ids;
    let mut server = home.server("sandbox-server", &[])?;
    expect(&mut server, "execute_command_in_container", &command(&kept), "/workspace\n")?;
    expect(&mut server, "execute_command_in_container", &command(&passing), &format!("Container {passing} not found"))?;
    end(server)
}

/// What was left behind ends with its time, though nobody is there any more who could end it.
pub(crate) fn left_behind() -> Result<()> {
    let home = Home::new()?;
    // Longer than it takes to start another server.
    let flags = ["--idle", if home.daemon.is_some() { "20s" } else { "8s" }];
    let mut server = home.server("sandbox-server", &flags)?;
    let ids = [home.container(&mut server, false)?, home.container(&mut server, true)?];
    for id in &ids {
        let file = json!({ "container_id": id, "filename": "note", "content": "kept" });
        expect(&mut server, "create_file_in_container", &file, "File note has been created in /workspace")?;
    }
    let inside = descendants(server.pid());
    kill(server)?;
    let mut server = home.server("sandbox-server", &flags)?;
    for id in &ids {
        let command = json!({ "container_id": id, "command": "cat note" });
        expect(&mut server, "execute_command_in_container", &command, "kept")?;
    }
    kill(server)?;
    let started = Instant::now();
    loop {
        // On the machine itself nobody is asked: the sandboxes go by their own clocks. A daemon's are asked for.
        let left: Vec<String> = match &home.daemon {
            None => inside.iter().filter(|process| process.is_alive()).map(|process| format!("{process:?}")).collect(),
            Some(_) => home.sandboxes()?.iter().map(ToString::to_string).collect(),
        };
        if left.is_empty() {
            break;
        }
        ensure(started.elapsed() < PATIENCE, || format!("there is still {left:?}"))?;
        std::thread::sleep(Duration::from_millis(500));
    }
    let left = home.sandboxes()?;
    ensure(left.is_empty(), || format!("there is still {left:?}"))
}
