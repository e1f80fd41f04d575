//! What users of older servers do with them, done by the same clients with the profiles that speak for them.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandpen_tests::program::run;
use sandpen_tests::{Result, Trouble, images};
use serde_json::{Value, json};

use crate::hands::Hands;
use crate::installed::Installed;
use crate::scene::Scene;
use crate::server::Server;
use crate::task::{Client, ensure, text};
use crate::{Need, Plan};

const LIMIT: Duration = Duration::from_secs(300);

/// How a PNG begins, in base64.
const PNG: &str = "iVBORw0KGgo";

type Task = fn(&Scene<'_>, Client) -> Result<()>;

const TASKS: &[(&str, &[Need], Task)] = &[
    ("cloudflare: data is drawn with matplotlib", &[Need::Matplotlib], draw),
    ("cloudflare: C is compiled and run", &[Need::Compiler], compile),
    ("sandbox-server: kept, installed, saved, made again, exported and rebuilt", &[Need::Debian], keep),
    ("code-runner: a table is uploaded, and its chart downloaded", &[], chart),
    ("automata: a project goes in, and its report comes out", &[], report),
    ("philschmid: a variable is passed through, and a plot comes back", &[], variable),
    ("philschmid: a plot that is shown and not saved comes back", &[Need::Matplotlib], show),
];

pub(crate) fn plans() -> Vec<Plan> {
    let clients = [Client::Python1, Client::Python2("auto")];
    let pairs = TASKS.iter().flat_map(|task| clients.map(|client| (task, client)));
    let plan = |(&(name, needs, task), client): (&(&'static str, &'static [Need], Task), Client)| {
        let needs: Vec<Need> = needs.iter().copied().chain([client.need()]).collect();
        Plan::new(format!("older::{name}::{}", client.name()), &needs, move |installed: &Installed| {
            let scene = Scene::new(installed)?;
            task(&scene, client)?;
            let left = scene.running();
            ensure(left.is_empty(), || format!("still running: {left:?}"))
        })
    };
    pairs.map(plan).collect()
}

/// A client of `sandpen mcp --profile …`, with variables that the server sees.
fn connect(
    scene: &Scene<'_>,
    client: Client,
    profile: &str,
    flags: &[&str],
    variables: &[(&str, &str)],
) -> Result<Hands> {
    let variables = variables.iter().map(|(name, value)| format!("{name}={value}"));
    let mut words: Vec<String> = std::iter::once("/usr/bin/env".to_owned()).chain(variables).collect();
    words.extend(scene.stdio_server());
    words.extend(["--profile", profile].iter().chain(flags).map(|word| (*word).to_owned()));
    client.start(scene, "stdio", &words)
}

/// The image of sandboxes: the machine itself, or what the daemon has.
fn image(scene: &Scene<'_>) -> String {
    scene.installed.daemon.as_ref().map_or("host", |daemon| &daemon.image).to_owned()
}

/// An image of the same with more in it, which a daemon is given the first time. Two that come at once would both make it.
fn stocked(scene: &Scene<'_>, name: &str, tree: fn() -> Result<PathBuf>) -> Result<String> {
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(daemon) = &scene.installed.daemon else { return Ok("host".to_owned()) };
    if daemon.docker(&["image", "inspect", name]).is_err() {
        daemon.docker(&["import", &tree()?.to_string_lossy(), name])?;
    }
    Ok(name.to_owned())
}

/// One that has what users draw, test and compile with.
pub(crate) fn for_work(scene: &Scene<'_>) -> Result<String> {
    stocked(scene, "debian-for-work:test", images::debian_for_work)
}

/// The text of an answer that is not flagged as an error.
fn said(hands: &mut Hands, tool: &str, arguments: &Value) -> Result<String> {
    let result = hands.call(tool, arguments)?;
    ensure(result["isError"] != true, || format!("{tool} was refused: {result}"))?;
    Ok(text(&result["content"][0]["text"]).to_owned())
}

fn expect(hands: &mut Hands, tool: &str, arguments: &Value, expected: &str) -> Result<()> {
    let found = said(hands, tool, arguments)?;
    ensure(found == expected, || format!("{tool} answers {found:?} instead of {expected:?}"))
}

fn in_container(command: &str) -> Value {
    json!({ "args": { "args": command } })
}

fn draw(scene: &Scene<'_>, client: Client) -> Result<()> {
    let mut hands = connect(scene, client, "cloudflare", &["--image", &for_work(scene)?], &[])?;
    expect(&mut hands, "container_initialize", &json!({}), "Created new container")?;
    let code = "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n\
                rows = [line.split(',') for line in open('data.csv')]\n\
                plt.plot([int(x) for x, _ in rows], [int(y) for _, y in rows])\n\
                plt.savefig('chart.png')\nprint('drawn')\n";
    for (path, content) in [("data.csv", "1,1\n2,4\n3,9\n"), ("plot.py", code)] {
        let arguments = json!({ "args": { "path": path, "text": content } });
        expect(&mut hands, "container_file_write", &arguments, &format!("Wrote file: {path}"))?;
    }
    let ran = said(&mut hands, "container_exec", &in_container("python3 plot.py"))?;
    ensure(ran.ends_with("drawn\nProcess exited with code: 0"), || format!("the plot was not drawn: {ran}"))?;
    let read = hands.call("container_file_read", &json!({ "args": { "path": "chart.png" } }))?;
    let resource = &read["content"][0]["resource"];
    let is_shown = resource["mimeType"] == "image/png" && text(&resource["blob"]).starts_with(PNG);
    ensure(is_shown, || format!("the chart is {read}"))?;
    leave(scene, hands)
}

fn compile(scene: &Scene<'_>, client: Client) -> Result<()> {
    let mut hands = connect(scene, client, "cloudflare", &["--image", &for_work(scene)?], &[])?;
    expect(&mut hands, "container_initialize", &json!({}), "Created new container")?;
    let source = "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 6 * 7); return 3; }\n";
    let arguments = json!({ "args": { "path": "answer.c", "text": source } });
    expect(&mut hands, "container_file_write", &arguments, "Wrote file: answer.c")?;
    let command = in_container("cc -o answer answer.c && ./answer");
    expect(&mut hands, "container_exec", &command, "42\nProcess exited with code: 3")?;
    leave(scene, hands)
}

/// The container stays for whoever comes next, with what is in it; ten minutes are too long for a test.
fn leave(scene: &Scene<'_>, hands: Hands) -> Result<()> {
    hands.close()?;
    let listed = parsed(&sandpen(scene, &["ps", "--json"])?)?;
    ensure(listed["sandboxes"][0]["name"] == "cloudflare-container", || format!("it was not left: {listed}"))?;
    sandpen(scene, &["stop", "--all"]).map(drop)
}

/// What a user has written: a package for pip, and one for Debian's system.
const PACKAGES: &[(&str, &str)] = &[
    ("greet/setup.py", "from setuptools import setup\nsetup(name='greet', version='1.0', py_modules=['greet'])\n"),
    ("greet/greet.py", "def hello():\n    return 'kept'\n"),
    (
        "tool/DEBIAN/control",
        "Package: greeting-tool\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.com>\nDescription: greets\n",
    ),
    ("tool/DEBIAN/postinst", "#!/bin/sh\nset -e\nchown daemon:daemon /var/lib/greeting\nchmod 750 /var/lib/greeting\n"),
    ("tool/var/lib/greeting/words", "packed\n"),
    ("tool/usr/bin/greeting-tool", "#!/bin/sh\ncat /var/lib/greeting/words\n"),
];

/// An image with pip.
const WITH_PIP: &str = "debian-with-pip:test";

/// Into the system itself, which only its root can do, and with nothing from an index or an archive: there is none here.
const INSTALL: &[&str] = &[
    "pip install --quiet --no-index --no-build-isolation --break-system-packages --root-user-action ignore /workspace/greet",
    "chmod 755 tool/DEBIAN/postinst tool/usr/bin/greeting-tool",
    "dpkg-deb --build --root-owner-group tool greeting-tool.deb",
    "dpkg --install greeting-tool.deb",
];

/// What is there once all of it is installed, and what it says.
const USE: &str = "python3 -c 'import greet; print(greet.hello())'; greeting-tool; stat -c '%U %a' /var/lib/greeting; \
                   dpkg-query --show --showformat '${Status}' greeting-tool";
const INSTALLED: &str = "kept\npacked\ndaemon 750\ninstall ok installed";

/// Through two servers, because what is kept must outlive the first.
fn keep(scene: &Scene<'_>, client: Client) -> Result<()> {
    if scene.installed.daemon.is_none() {
        sandpen(scene, &["image", "import", &images::debian_with_pip()?.to_string_lossy(), WITH_PIP])?;
    }
    stocked(scene, WITH_PIP, images::debian_with_pip)?;
    let mut hands = connect(scene, client, "sandbox-server", &[], &[])?;
    let id = create(&mut hands, WITH_PIP, true)?;
    for (name, content) in PACKAGES {
        let file = json!({ "container_id": id, "filename": name, "content": content });
        let created = format!("File {name} has been created in /workspace");
        expect(&mut hands, "create_file_in_container", &file, &created)?;
    }
    hands.close()?;

    let mut hands = connect(scene, client, "sandbox-server", &[], &[])?;
    let execute = |id: &str, command: &str| json!({ "container_id": id, "command": command });
    expect(&mut hands, "execute_command_in_container", &execute(&id, "id -u"), "0\n")?;
    let mut told = String::new();
    for command in INSTALL {
        told += &said(&mut hands, "execute_command_in_container", &execute(&id, command))?;
    }
    let use_it = format!("sh -c {}", quoted(USE));
    expect(&mut hands, "execute_command_in_container", &execute(&id, &use_it), INSTALLED)
        .map_err(|trouble| Trouble(format!("{trouble}; installing said {told}")))?;
    let saved = said(&mut hands, "save_container_state", &json!({ "container_id": id, "name": "my-env:v1" }))?;
    ensure(saved.starts_with("Environment saved as image: my-env:v1\n"), || format!("it was not saved: {saved}"))?;
    let gone = format!("Container {id} has been stopped and removed.");
    expect(&mut hands, "exit_container", &json!({ "container_id": id }), &gone)?;

    let again = create(&mut hands, "my-env:v1", true)?;
    expect(&mut hands, "execute_command_in_container", &execute(&again, &use_it), INSTALLED)?;
    let rebuilt = match scene.installed.daemon {
        None => INSTALLED.to_owned(),
        // There whose a directory is, and its rights, are lost, which the export says.
        Some(_) => INSTALLED.replace("daemon 750", "root 755"),
    };
    export(scene, &mut hands, &again, &rebuilt)?;
    let gone = format!("Container {again} has been stopped and removed.");
    expect(&mut hands, "exit_container", &json!({ "container_id": again }), &gone)?;
    hands.close()
}

fn export(scene: &Scene<'_>, hands: &mut Hands, id: &str, expected: &str) -> Result<()> {
    let exported = said(hands, "export_dockerfile", &json!({ "container_id": id }))?;
    ensure(exported.contains("\nFROM "), || format!("there is no Dockerfile: {exported}"))?;
    rebuild(scene, expected).map_err(|trouble| Trouble(format!("{trouble}; it was exported as {exported}")))
}

/// One word for whoever takes a line apart.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn create(hands: &mut Hands, image: &str, persist: bool) -> Result<String> {
    let arguments = json!({ "image": image, "persist": persist });
    let created = said(hands, "create_container_environment", &arguments)?;
    let id = created.lines().next().and_then(|line| line.strip_prefix("Container created with ID: "));
    let id = id.ok_or_else(|| Trouble(format!("no container was made: {created}")))?;
    ensure(id.len() == 64, || format!("{id} is no id of a container"))?;
    Ok(id.to_owned())
}

/// Build what was exported, from its archive in the sandbox, and look whether it is all there.
fn rebuild(scene: &Scene<'_>, expected: &str) -> Result<()> {
    let listed: Value = parsed(&sandpen(scene, &["ps", "--json"])?)?;
    let id = text(&listed["sandboxes"][0]["sandbox_id"]).to_owned();
    let archive = scene.path().join("context.tar");
    sandpen(scene, &["cp", &format!("{id}:/tmp/dockerfile-context.tar"), &archive.to_string_lossy()])?;
    let context = scene.path().join("context");
    fs::create_dir(&context)?;
    tar::Archive::new(fs::File::open(&archive)?).unpack(&context)?;
    let context = context.to_string_lossy();
    let ran = match &scene.installed.daemon {
        None => {
            sandpen(scene, &["image", "build", "--tag", "rebuilt:1", &context])?;
            sandpen(scene, &["run", "--container-user", "image", "--image", "rebuilt:1", "bash", USE])?
        }
        // By its own tools, and without any of ours.
        Some(daemon) => {
            let tag = format!("rebuilt-{}:1", id.trim_start_matches("sb-"));
            // Another client has the same step to build, and takes away what Podman would take from it.
            daemon.docker(&["build", "--quiet", "--no-cache", "--network", "none", "--tag", &tag, &context])?;
            let ran = daemon.docker(&["run", "--rm", "--network", "none", &tag, "sh", "-c", USE]);
            daemon.docker(&["rmi", &tag])?;
            ran?
        }
    };
    ensure(ran == expected, || format!("what was rebuilt says {ran:?}"))
}

fn sandpen(scene: &Scene<'_>, words: &[&str]) -> Result<String> {
    let mut command: Command = scene.command(&scene.installed.product);
    command.arg("--state-dir").arg(scene.state()).args(words);
    Ok(run(&mut command, scene.path(), LIMIT)?.succeeded()?.stdout)
}

fn parsed(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| Trouble(format!("{error} in {text}")))
}

fn chart(scene: &Scene<'_>, client: Client) -> Result<()> {
    // Its address is known before it listens there, because the addresses of files begin with it. Nobody else uses this one.
    let address = TcpListener::bind("127.0.7.1:0")?.local_addr()?.to_string();
    let (root, base) = (scene.path().join("root"), format!("http://{address}/"));
    let variables = [
        ("MCP_HTTP_ADDR", address.as_str()),
        ("MCP_API_TOKEN", "t0ken"),
        ("SANDBOX_ROOT", &root.to_string_lossy()),
        ("FILE_SECRET", "long enough, so that nobody is warned"),
        ("PUBLIC_BASE_URL", &base),
    ];
    let flags = ["--profile", "code-runner", "--image", &image(scene)];
    let server = Server::start_with(scene, &scene.installed.product, &flags, &variables)?;
    let done = client.start(scene, "http", &[server.url.clone(), "t0ken".to_owned()]).and_then(|mut hands| {
        // The points of a table: 3,4 and 20,30 and 60,47.
        let upload = json!({ "conversationId": "talk", "filename": "data.csv", "content": "Myw0CjIwLDMwCjYwLDQ3Cg==" });
        let uploaded = parsed(&said(&mut hands, "upload_file", &upload)?)?;
        ensure(uploaded["success"] == true, || format!("the upload: {uploaded}"))?;
        let code = include_str!("plot.py");
        let arguments = json!({ "conversationId": "talk", "language": "python", "code": code });
        let ran = parsed(&said(&mut hands, "run_code", &arguments)?)?;
        ensure(ran["success"] == true && text(&ran["stdout"]).starts_with("drew 3 points"), || {
            format!("the run: {ran}")
        })?;
        let files = ran["files"].as_array().cloned().unwrap_or_default();
        let chart = files.iter().find(|file| file["name"] == "plot.png");
        let url = text(&chart.ok_or_else(|| Trouble(format!("no chart in {ran}")))?["url"]).to_owned();
        let downloaded = download(&url)?;
        ensure(downloaded.starts_with(b"\x89PNG\r\n\x1a\n"), || format!("{url} is no picture"))?;
        hands.close()
    });
    server.explain(done)?;
    server.stop()
}

fn download(url: &str) -> Result<Vec<u8>> {
    let rest = url.strip_prefix("http://").ok_or_else(|| Trouble(format!("{url} is no address")))?;
    let (host, path) = rest.split_once('/').ok_or_else(|| Trouble(format!("{url} has no path")))?;
    let mut stream = TcpStream::connect(host)?;
    stream.write_all(format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("no answer")?;
    ensure(answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200"), || {
        format!("{url}: {}", String::from_utf8_lossy(&answer[..end]))
    })?;
    Ok(answer.split_off(end + 4))
}

fn report(scene: &Scene<'_>, client: Client) -> Result<()> {
    let project = scene.path().join("work/project");
    fs::create_dir_all(&project)?;
    fs::write(project.join("answer.py"), "def answer():\n    return 6 * 7\n")?;
    let test = "import unittest\nfrom answer import answer\n\n\nclass Test(unittest.TestCase):\n    \
                def test_answer(self):\n        self.assertEqual(answer(), 42)\n";
    fs::write(project.join("test_answer.py"), test)?;
    let opened = scene.path().join("work");
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let flags = ["--allow-path", &path(&opened)];
    let mut hands = connect(scene, client, "automata", &flags, &[])?;
    // The least Python of Debian has no unittest.
    let made = said(&mut hands, "sandbox_initialize", &json!({ "image": for_work(scene)? }))?;
    let id = made.strip_prefix("container_id: ").ok_or_else(|| Trouble(format!("no container was made: {made}")))?;
    let copied = said(&mut hands, "copy_project", &json!({ "container_id": id, "local_src_dir": path(&project) }))?;
    ensure(copied.starts_with("Successfully copied "), || format!("the project: {copied}"))?;
    let commands = json!(["cd project && python3 -m unittest -v > report.txt 2>&1", "tail -n 1 project/report.txt"]);
    let ran = said(&mut hands, "sandbox_exec", &json!({ "container_id": id, "commands": commands }))?;
    ensure(ran.trim_end().ends_with("OK"), || format!("the tests: {ran}"))?;
    let target = opened.join("out/report.txt");
    let arguments =
        json!({ "container_id": id, "container_src_path": "project/report.txt", "local_dest_path": path(&target) });
    let copied = said(&mut hands, "copy_file_from_sandbox", &arguments)?;
    ensure(copied.starts_with("Successfully copied "), || format!("the report: {copied}"))?;
    let report = fs::read_to_string(&target)?;
    ensure(report.contains("test_answer") && report.contains("OK"), || format!("the report says {report}"))?;
    let stopped = format!("Successfully stopped and removed container: {id}");
    expect(&mut hands, "sandbox_stop", &json!({ "container_id": id }), &stopped)?;
    hands.close()
}

fn variable(scene: &Scene<'_>, client: Client) -> Result<()> {
    let image = image(scene);
    let flags = ["--image", &image, "--pass-through-env", "API_KEY"];
    let mut hands = connect(scene, client, "philschmid", &flags, &[("API_KEY", "sesame")])?;
    let code = "import os; print(os.environ['API_KEY'][::-1], 'HOME_OF_THE_SERVER' in os.environ)";
    expect(&mut hands, "run_python_code", &json!({ "code": code }), "emases False")?;
    let script = "console.log(process.env.API_KEY.length)";
    expect(&mut hands, "run_js_code", &json!({ "code": script }), "6")?;
    let plot = format!("open('data.csv', 'w').write('3,4\\n20,30\\n')\n{}", include_str!("plot.py"));
    let drawn = hands.call("run_python_code", &json!({ "code": plot }))?;
    let blocks = drawn["content"].as_array().cloned().unwrap_or_default();
    let has_picture = blocks.iter().any(|block| block["type"] == "image" && text(&block["data"]).starts_with(PNG));
    ensure(has_picture && drawn["content"][0]["text"] == "drew 2 points", || format!("the plot: {drawn}"))?;
    hands.close()
}

fn show(scene: &Scene<'_>, client: Client) -> Result<()> {
    let mut hands = connect(scene, client, "philschmid", &["--image", &for_work(scene)?], &[])?;
    let plot = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()\nprint('drawn')";
    let drawn = hands.call("run_python_code", &json!({ "code": plot }))?;
    let blocks = drawn["content"].as_array().cloned().unwrap_or_default();
    let is_shown = blocks.len() == 2 && blocks[0]["text"] == "drawn" && text(&blocks[1]["data"]).starts_with(PNG);
    ensure(is_shown, || format!("the plot: {drawn}"))?;
    hands.close()
}
