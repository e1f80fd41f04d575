//! `sandpen serve --profile code-runner`: its plain HTTP, its token, and the files of its conversations.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::server::{Answer, Server, request};
use support::{World, names, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

const TOKEN: &str = "t0ken-of-this-test";
const BEARER: (&str, &str) = ("authorization", "Bearer t0ken-of-this-test");
const SECRET: &str = "a secret that is long enough for everybody";
/// What addresses of files begin with.
const BASE: &str = "http://files.example:8080";

/// Without which the older server did not start.
fn variables(root: &str) -> [(&'static str, &str); 4] {
    [("MCP_API_TOKEN", TOKEN), ("SANDBOX_ROOT", root), ("FILE_SECRET", SECRET), ("PUBLIC_BASE_URL", BASE)]
}

struct Scene {
    server: Server,
    world: World,
}

impl Scene {
    fn new() -> Self {
        Self::of(World::new())
    }

    fn of(world: World) -> Self {
        Self::with(world, &[])
    }

    /// With these arguments besides.
    fn with(world: World, arguments: &[&str]) -> Self {
        let root = world.work().join("root");
        let variables = [&variables(root.to_str().unwrap())[..], &[("SANDBOX_HOST_PATH", "/srv/elsewhere")]].concat();
        let arguments = [&["--profile", "code-runner"], arguments].concat();
        Self { server: Server::start_with(&world, &arguments, &variables), world }
    }

    fn root(&self) -> PathBuf {
        self.world.work().join("root")
    }

    /// As `curl -d` does it: no header that a client would have to know.
    fn post(&self, body: &[u8]) -> Answer {
        let headers = [BEARER, ("content-type", "application/x-www-form-urlencoded"), ("accept", "*/*")];
        self.server.open("POST", "/mcp", &headers, body).whole()
    }

    fn ask(&self, method: &str, params: Value) -> Value {
        let answer = self.post(&request(7, method, params));
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.json()["id"], 7);
        answer.json()
    }

    fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }));
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        serde_json::from_str(text).unwrap()
    }

    fn run(&self, conversation: &str, code: &str) -> Value {
        self.call("run_code", json!({ "conversationId": conversation, "language": "bash", "code": code }))
    }

    fn upload(&self, conversation: &str, name: &str, contents: &[u8]) -> Value {
        let content = STANDARD.encode(contents);
        self.call("upload_file", json!({ "conversationId": conversation, "filename": name, "content": content }))
    }

    /// The path of a file's address.
    fn path(&self, described: &Value) -> String {
        let url = described["url"].as_str().unwrap();
        url.strip_prefix(BASE).unwrap_or_else(|| panic!("{url}")).to_owned()
    }

    fn get(&self, path: &str) -> Answer {
        self.server.ask("GET", path, &[])
    }
}

fn listed(ran: &Value) -> Vec<&str> {
    ran["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect()
}

#[test]
fn a_message_by_itself_is_answered_with_json() {
    needs_sandboxes!();
    let scene = Scene::new();
    let ran = scene.run("c", "echo hello; echo oops >&2; pwd; id -u");
    assert_eq!(
        (&ran["success"], &ran["stdout"], &ran["stderr"], &ran["output"]),
        (&json!(true), &json!("hello\n/data\n1000\n"), &json!("oops\n"), &json!("hello\n/data\n1000\n\noops\n"))
    );
    assert_eq!(scene.ask("ping", json!({}))["result"], json!({}));
    let listed = scene.ask("tools/list", json!({}));
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 3);
    // One that wants news gets its answer as all others do.
    let news = json!({ "name": "list_runners", "arguments": {}, "_meta": { "progressToken": 1 } });
    assert!(scene.ask("tools/call", news)["result"].is_object());
    for (method, params, code, message) in [
        ("tools/call", json!({ "name": "nope", "arguments": {} }), -32601, "Tool not found: nope"),
        ("tools/call", json!({ "name": "run_code" }), -32602, "conversationId is required"),
        ("what/ever", json!({}), -32601, "Method not found: what/ever"),
    ] {
        let error = &scene.ask(method, params)["error"];
        assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message)));
    }
    for (body, code, message) in [
        (&b"{"[..], -32700, "Parse error"),
        (b"[]", -32700, "Parse error"),
        (b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", -32600, "Invalid JSON-RPC version"),
    ] {
        let answer = scene.post(body);
        assert_eq!((answer.status, &answer.json()["error"]), (200, &json!({ "code": code, "message": message })));
    }
    assert_eq!(scene.post(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).status, 202);
    assert_eq!(scene.get("/").header("content-type"), Some("text/html; charset=utf-8"));
}

#[test]
fn runners_are_those_whose_programs_are_there() {
    needs_sandboxes!();
    let world = World::new();
    let runner = "[[runner]]\nname = \"nowhere\"\ntitle = \"Nowhere\"\nfile = \"x.txt\"\nplace = \"work\"\n\
                  run = [[\"no-such-program\", \"{file}\"]]\n";
    world.write("runners.toml", runner);
    let file = world.work().join("runners.toml");
    let scene = Scene::with(world, &["--runners", file.to_str().unwrap()]);
    let told = scene.call("list_runners", json!({}));
    let languages: Vec<_> = told["languages"].as_array().unwrap().iter().map(|one| &one["language"]).collect();
    assert!(languages.contains(&&json!("bash")) && !languages.contains(&&json!("nowhere")), "{told}");
    let listed = scene.ask("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let run = tools.iter().find(|tool| tool["name"] == "run_code").unwrap();
    assert_eq!(run["inputSchema"]["properties"]["language"]["enum"], json!(languages), "others are offered");
    let ran = scene.call("run_code", json!({ "conversationId": "c", "language": "nowhere", "code": "x" }));
    assert_eq!(ran["stderr"], "Unsupported language: nowhere", "{ran}");
}

#[test]
fn whoever_listens_hears_nothing_and_holds_nobody_up() {
    needs_sandboxes!();
    let Scene { mut server, world: _world } = Scene::new();
    for method in ["HEAD", "DELETE", "PUT"] {
        assert_eq!(server.open(method, "/mcp", &[BEARER], b"").status, 405, "{method}");
    }
    let streams: Vec<Answer> = ["/mcp", "/profiles/code-runner/mcp"]
        .map(|path| {
            let mut stream = server.open("GET", path, &[BEARER], b"");
            assert_eq!((stream.status, stream.header("content-type")), (200, Some("text/event-stream")), "{path}");
            stream.until("\n\n");
            assert_eq!(stream.body.trim(), ": connected");
            stream
        })
        .into();
    assert_eq!(server.open("POST", "/mcp", &[BEARER], &request(1, "ping", json!({}))).status, 200);
    server.signal(Signal::TERM);
    let (status, time) = server.wait();
    assert!(status.success() && time.as_secs() < 8, "{status} after {time:?}");
    for stream in streams {
        assert_eq!(stream.whole().body.trim(), ": connected", "something was said");
    }
}

#[test]
fn only_those_with_the_token_run_code() {
    needs_sandboxes!();
    let scene = Scene::new();
    let body = request(1, "ping", json!({}));
    for (method, path) in [
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("DELETE", "/mcp"),
        ("POST", "/profiles/code-runner/mcp"),
        ("GET", "/sse"),
        ("POST", "/sse/message"),
        ("GET", "/profiles/code-runner/sse"),
    ] {
        for (headers, message) in [
            (&[][..], "Missing Authorization header"),
            (&[("authorization", "Basic x")], "Invalid Authorization header format"),
            (&[("authorization", "Bearer wrong")], "Invalid API token"),
            (&[("authorization", "Bearer")], "Invalid Authorization header format"),
        ] {
            let answer = scene.server.open(method, path, headers, &body).whole();
            assert_eq!((answer.status, answer.json()), (401, json!({ "error": message })), "{method} {path}");
            assert!(
                answer.header("www-authenticate").is_some_and(|said| said.starts_with("Bearer realm=")),
                "{answer:?}"
            );
        }
    }
    let elsewhere = scene.server.open("POST", "/profiles/code-runner/mcp", &[BEARER], &body).whole();
    assert_eq!((elsewhere.status, &elsewhere.json()["result"]), (200, &json!({})));
    // A page gets no further with it than without.
    assert_eq!(scene.server.open("POST", "/mcp", &[BEARER, ("origin", "https://evil.example")], &body).status, 403);
    // Who has it may call the server as they like, which is not so where there is none.
    assert_eq!(scene.server.open("POST", "/mcp", &[BEARER, ("host", "192.0.2.1:8080")], &body).status, 200);
    assert_eq!(scene.server.open("POST", "/mcp", &[("host", "192.0.2.1:8080")], &body).status, 401);
    let world = World::new();
    let open = Server::start(&world, &[]);
    let path = "/profiles/code-runner/mcp";
    assert_eq!(open.open("POST", path, &[], &body).status, 200);
    assert_eq!(open.open("POST", path, &[("host", "192.0.2.1:8080")], &body).status, 403);
}

#[test]
fn guesses_of_the_token_are_slowed_down_and_each_is_written_down() {
    needs_sandboxes!();
    let world = World::new();
    let trail = world.work().join("audit.jsonl");
    let mut scene = Scene::with(world, &["--audit-log", trail.to_str().unwrap()]);
    let body = request(1, "ping", json!({}));
    let paths = ["/mcp", "/profiles/code-runner/mcp", "/sse/message"];
    let answers: Vec<Answer> = (0..70)
        .map(|number| {
            let guess = format!("Bearer guess-{number}");
            let headers = [("authorization", guess.as_str())];
            scene.server.open("POST", paths[number % paths.len()], &headers, &body).whole()
        })
        .collect();
    assert!(answers[..60].iter().all(|answer| answer.status == 401), "{:?}", answers[..60].last());
    for answer in &answers[60..] {
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")), "{answer:?}");
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
    assert_eq!(scene.post(&body).status, 200, "who has the token is not kept out by a neighbour");
    scene.server.signal(Signal::TERM);
    assert!(scene.server.wait().0.success());
    let text = fs::read_to_string(&trail).unwrap();
    let lines = text.lines().filter(|line| line.contains("\"turned_away\"") && line.contains("\"wrong_token\""));
    assert_eq!(lines.count(), 70, "{text}");
    assert!(!text.contains("guess-"), "what was guessed is in the trail");
}

#[test]
fn beside_other_servers_the_token_counts_too_and_files_have_addresses() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start_with(&world, &[], &[("MCP_API_TOKEN", TOKEN), ("FILE_SECRET", "not read here")]);
    let body = request(1, "ping", json!({}));
    assert_eq!(server.open("POST", "/profiles/code-runner/mcp", &[], &body).status, 401);
    let content = STANDARD.encode("hello");
    let upload = json!({ "conversationId": "c", "filename": "a.txt", "content": content });
    let upload = request(1, "tools/call", json!({ "name": "upload_file", "arguments": upload }));
    let answer = server.open("POST", "/profiles/code-runner/mcp", &[BEARER], &upload).whole().json();
    let told: Value = serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    let url = told["file"]["url"].as_str().unwrap();
    let path = url.strip_prefix(&format!("http://{}", server.address)).unwrap();
    assert!(path.starts_with("/profiles/code-runner/files/"), "{path}");
    assert_eq!(server.ask("GET", path, &[]).body, "hello");
}

#[test]
fn files_outlive_their_runs_and_the_server() {
    needs_sandboxes!();
    let scene = Scene::new();
    assert_eq!(scene.upload("c", "in.txt", b"one\n")["message"], "File 'in.txt' uploaded successfully (4 bytes)");
    let ran = scene.run(
        "c",
        "cat in.txt; printf two > 'a b&.txt'; mkdir -p deep/er; printf 3 > deep/er/x; echo $FILE_BASE_URL; exit 3",
    );
    assert_eq!(ran["success"], false);
    assert_eq!(listed(&ran), ["a b&.txt", "in.txt"]);
    let directory = scene.path(&ran["files"][1]).replace("/in.txt", "");
    assert_eq!(ran["stdout"], format!("one\n{BASE}{directory}\n"));
    assert!(scene.path(&ran["files"][0]).ends_with("/a%20b%26.txt"));
    assert_eq!(scene.get(&scene.path(&ran["files"][0])).body, "two");
    assert_eq!(scene.get(&format!("{directory}/deep/er/x")).body, "3");

    // By the formula that it always had.
    let hash = "2138a3a26696f102e299928bef08bd7efc299f22d9387f31993b78eb9eedf85d";
    assert_eq!(names(&scene.root()), [".locks", hash]);
    assert_eq!(scene.get(&format!("/files/{}/in.txt", &hash[..16])).body, "one\n");

    let Scene { mut server, world } = scene;
    server.signal(Signal::TERM);
    server.wait();
    let scene = Scene::of(world);
    let ran = scene.run("many", "for n in $(seq 100); do echo $n > f$n; done; ln f7 again; mkdir d; cp f* d");
    assert_eq!(listed(&ran).len(), 101);
    assert_eq!(scene.run("many", "cat f100 d/f99 again; ls | wc -l")["stdout"], "100\n99\n7\n102\n");
    let ran = scene.run("c", "cat in.txt deep/er/x; rm -r in.txt deep; echo more >> 'a b&.txt'");
    assert_eq!((&ran["success"], &ran["stdout"]), (&json!(true), &json!("one\n3")));
    assert_eq!(listed(&ran), ["a b&.txt"]);
    assert_eq!(scene.get(&scene.path(&ran["files"][0])).body, "twomore\n");
    assert_eq!(names(&scene.root().join(hash)), ["a b&.txt"]);
    assert_eq!(scene.get(&format!("/files/{hash}/in.txt")).status, 404);
    assert_eq!(listed(&scene.run("another", "true")), [] as [&str; 0], "files of one conversation are in another");
}

#[test]
fn new_directories_are_as_short_as_the_operator_wants_them() {
    needs_sandboxes!();
    let scene = Scene::with(World::new(), &["--profile-option", "short-directories"]);
    let path = scene.path(&scene.upload("c", "a", b"1")["file"]);
    // The beginning of what it is without the option.
    assert_eq!(path, "/files/2138a3a26696f102/a");
    assert_eq!(names(&scene.root()), [".locks", "2138a3a26696f102"]);
    assert_eq!((scene.get(&path).body.as_str(), &scene.run("c", "cat a")["stdout"]), ("1", &json!("1")));
}

#[test]
fn a_short_directory_of_the_older_server_goes_on() {
    needs_sandboxes!();
    let world = World::new();
    let scene = Scene::of(world);
    let directory = scene.path(&scene.upload("c", "a", b"1")["file"]);
    let whole = directory.split('/').nth(2).unwrap().to_owned();
    fs::rename(scene.root().join(&whole), scene.root().join(&whole[..16])).unwrap();
    let ran = scene.run("c", "echo 2 >> a; echo 3 > b");
    assert_eq!(scene.path(&ran["files"][0]), format!("/files/{}/a", &whole[..16]));
    assert_eq!(names(&scene.root()), [".locks", &whole[..16]]);
    for name in [&whole[..16], whole.as_str()] {
        assert_eq!(scene.get(&format!("/files/{name}/b")).body, "3\n");
    }
}

#[test]
fn what_is_served_can_do_nothing_with_our_origin() {
    needs_sandboxes!();
    let scene = Scene::new();
    for (name, kind, disposition) in [
        ("page.html", "text/html", "attachment; filename*=UTF-8''page.html"),
        ("picture.svg", "image/svg+xml", "attachment; filename*=UTF-8''picture.svg"),
        ("plot.png", "image/png", "inline"),
        ("notes.txt", "text/plain; charset=utf-8", "inline"),
        ("index.html", "text/html", "attachment; filename*=UTF-8''index.html"),
    ] {
        let path = scene.path(&scene.upload("c", name, b"0123456789")["file"]);
        let answer = scene.get(&path);
        assert_eq!((answer.status, answer.body.as_str()), (200, "0123456789"));
        for (header, value) in [
            ("content-type", kind),
            ("content-disposition", disposition),
            ("x-content-type-options", "nosniff"),
            ("content-security-policy", "sandbox; default-src 'none'"),
            ("cache-control", "private, no-cache"),
            ("referrer-policy", "no-referrer"),
        ] {
            assert_eq!(answer.header(header), Some(value), "{name}");
        }
    }
    let path = scene.path(&scene.upload("c", "a.txt", b"0123456789")["file"]);
    let head = scene.server.open("HEAD", &path, &[], b"");
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
    let part = scene.server.ask("GET", &path, &[("range", "bytes=2-4")]);
    assert_eq!((part.status, part.body.as_str(), part.header("content-range")), (206, "234", Some("bytes 2-4/10")));
    assert_eq!(scene.server.ask("GET", &path, &[("range", "bytes=10-")]).status, 416);
    assert_eq!(scene.server.ask("POST", &path, &[]).status, 405);
    // A link in somebody's page leads there; their scripts do not. The address is all that protects it.
    assert_eq!(scene.server.ask("GET", &path, &[("sec-fetch-site", "cross-site")]).status, 200);
    assert_eq!(scene.server.ask("GET", &path, &[("origin", "https://evil.example")]).status, 403);
    assert_eq!(scene.server.ask("GET", &path, &[("host", "192.0.2.1:8080")]).status, 200);
}

#[test]
fn nothing_leads_out_of_a_conversation() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.world.write("secret.txt", "nobody's");
    let path = scene.path(&scene.upload("c", "a.txt", b"mine")["file"]);
    let hash = path.split('/').nth(2).unwrap();
    for name in ["../a", "..", ".", "/etc/x", "a/b", "a\0b", "../../secret.txt", "sub/../../x"] {
        let told = scene.upload("c", name, b"bad");
        assert_eq!(told["success"], false, "{name:?}");
        assert!(!told["message"].as_str().unwrap().contains(scene.root().to_str().unwrap()), "{told}");
    }
    for (path, status) in [
        ("{}/../secret.txt", 403),
        ("{}/..%2f..%2fsecret.txt", 403),
        ("{}/%2e%2e/%2e%2e/secret.txt", 403),
        ("..%2fsecret.txt", 403),
        ("{}/%252e%252e%252fsecret.txt", 404),
        ("{}/", 400),
        ("{}", 400),
        ("", 400),
        ("short/a.txt", 400),
        ("{}/a.txt%00", 400),
        ("{}//a.txt", 400),
        (".locks/{}", 400),
        ("{}/b.txt", 404),
        ("0000000000000000/a.txt", 404),
    ] {
        let answer = scene.get(&format!("/files/{}", path.replace("{}", hash)));
        assert_eq!(answer.status, status, "{path}");
        assert!(!answer.body.contains("nobody's"), "{path}");
    }
    let unknown_file = scene.get(&format!("/files/{hash}/none"));
    let unknown_directory = scene.get(&format!("/files/{}/none", "0".repeat(64)));
    assert_eq!((unknown_file.status, unknown_file.body), (unknown_directory.status, unknown_directory.body));

    // What a run planted is not there for anybody: neither for downloads, nor for the next run.
    let ran = scene.run("c", "ln -s ../../secret.txt link; ln -s / root; mkdir d; ln -s .. d/up; mkfifo pipe; ls");
    assert_eq!(listed(&ran), ["a.txt"], "{ran}");
    assert_eq!(scene.run("c", "ls -A | grep -v run-; ls -A d")["stdout"], "a.txt\nd\nup\n");
    // What stays in it is kept, and followed by nobody here.
    assert_eq!(scene.get(&format!("/files/{hash}/d/up/a.txt")).status, 404);
    // Nor what somebody planted on the host before.
    let directory = scene.root().join(hash);
    symlink(scene.world.work().join("secret.txt"), directory.join("planted")).unwrap();
    symlink(scene.world.work(), directory.join("away")).unwrap();
    assert_eq!(scene.get(&format!("/files/{hash}/planted")).status, 404);
    assert_eq!(scene.get(&format!("/files/{hash}/away/secret.txt")).status, 404);
    let ran = scene.run("c", "ls; echo over > planted");
    assert_eq!(ran["stdout"], "a.txt\nd\n");
    assert_eq!(scene.world.read("secret.txt"), "nobody's");
    assert_eq!(fs::read_to_string(directory.join("planted")).unwrap(), "over\n");
}

#[test]
fn links_within_a_conversation_stay_and_are_followed_by_runs_alone() {
    needs_sandboxes!();
    let scene = Scene::new();
    let ran = scene.run(
        "c",
        "mkdir -p node_modules/.bin node_modules/tool; echo 'echo tool' > node_modules/tool/cli; \
         ln -s ../tool/cli node_modules/.bin/tool; ln -s node_modules/tool way; ln -s way/cli cli; ln -s gone later",
    );
    assert_eq!((&ran["success"], listed(&ran)), (&json!(true), vec![]), "{ran}");
    let directory = scene.root().join(names(&scene.root()).into_iter().find(|name| name != ".locks").unwrap());
    let target = |name: &str| fs::read_link(directory.join(name)).ok();
    assert_eq!(target("node_modules/.bin/tool").unwrap().to_str(), Some("../tool/cli"));
    assert_eq!(scene.get(&format!("/files/{}/cli", directory.file_name().unwrap().to_str().unwrap())).status, 404);
    let ran = scene.run("c", "for tool in node_modules/.bin/tool way/cli cli; do sh $tool; done; readlink later");
    assert_eq!(ran["stdout"], "tool\ntool\ntool\ngone\n", "{ran}");

    // Each becomes something else: another target, one outside, a file, a directory, nothing.
    let ran = scene.run(
        "c",
        "ln -sfn node_modules way; ln -sfn / cli; rm later; echo file > later; \
         rm node_modules/.bin/tool; mkdir -p node_modules/.bin/tool; echo deep > node_modules/.bin/tool/x; ln -s . self",
    );
    assert_eq!((&ran["success"], listed(&ran)), (&json!(true), vec!["later"]), "{ran}");
    assert_eq!((target("way").unwrap().to_str(), target("cli")), (Some("node_modules"), None));
    assert!(!directory.join("cli").exists(), "what it was before is not what was left");
    let ran = scene.run("c", "cat later way/.bin/tool/x self/later; rm self way");
    assert_eq!((&ran["success"], &ran["stdout"]), (&json!(true), &json!("file\ndeep\nfile\n")), "{ran}");
    assert_eq!((target("self"), target("way")), (None, None));

    // An upload takes the place of a link, and not of what it leads to.
    scene.run("c", "ln -s later link");
    scene.upload("c", "link", b"mine");
    assert_eq!(scene.run("c", "cat later link")["stdout"], "file\nmine");
}

#[test]
fn runs_of_one_conversation_wait_for_each_other_and_lose_nothing() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.upload("c", "count", b"0");
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| scene.run("c", "n=$(cat count); sleep 0.5; echo $((n + 1)) > count"));
        }
        scope.spawn(|| scene.upload("c", "beside", b"x"));
    });
    assert!(started.elapsed().as_millis() >= 1500, "two ran at once");
    let ran = scene.run("c", "cat count");
    assert_eq!((&ran["stdout"], listed(&ran)), (&json!("3\n"), vec!["beside", "count"]));
}

#[test]
fn a_run_that_is_killed_or_given_up_leaves_its_files() {
    needs_sandboxes!();
    let scene = Scene::with(World::new(), &["--timeout", "2s"]);
    let started = Instant::now();
    let ran = scene.run("c", "echo 1 > a; echo out; echo err >&2; sleep 60");
    assert!(started.elapsed().as_secs() < 20);
    assert_eq!((&ran["success"], &ran["stdout"]), (&json!(false), &json!("out\n")));
    assert_eq!(ran["stderr"], "Execution timed out after 2s\nerr\n");
    assert_eq!(listed(&ran), ["a"]);

    let arguments = json!({ "conversationId": "c", "language": "bash", "code": "echo 2 > b; sleep 1.5; echo 3 > c" });
    let body = request(1, "tools/call", json!({ "name": "run_code", "arguments": arguments }));
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\ncontent-length: {}\r\n\r\n",
        scene.server.address,
        BEARER.1,
        body.len()
    );
    let mut connection = scene.server.connect();
    std::io::Write::write_all(&mut connection, &[head.as_bytes(), &body].concat()).unwrap();
    support::wait_until("the run goes on", || scene.server.running("sleep") > 0);
    drop(connection);
    assert_eq!(listed(&scene.run("c", "true")), ["a", "b"]);
}

#[test]
fn more_than_a_sandbox_may_hold_is_not_kept() {
    needs_sandboxes!();
    let scene = Scene::with(World::new(), &["--disk", "4M"]);
    let told = scene.upload("c", "large", &vec![b'x'; 5 << 20]);
    assert!(told["message"].as_str().unwrap().contains("3.5 MiB at most"), "{told}");
    let ran = scene.run("c", "echo kept > small; truncate -s 1G sparse");
    assert_eq!(ran["success"], false);
    assert!(ran["stderr"].as_str().unwrap().contains("Failed to keep files"), "{ran}");
    let ran = scene.run("c", "echo kept > small");
    assert_eq!((&ran["success"], listed(&ran)), (&json!(true), vec!["small"]));
}

#[test]
fn a_network_is_asked_for_and_the_operator_decides() {
    needs_sandboxes!();
    let scene = Scene::with(World::new(), &["--max-network", "none"]);
    let run = json!({ "conversationId": "c", "language": "bash", "code": "echo hi", "network": true });
    let ran = scene.call("run_code", run);
    assert_eq!(ran["success"], false);
    assert!(ran["stderr"].as_str().unwrap().starts_with("network access is not allowed on this server"), "{ran}");
}

#[test]
fn other_machines_are_served_only_where_the_token_is_all_that_lets_them_in() {
    needs_sandboxes!();
    let world = World::new();
    let profile = ["serve", "--profile", "code-runner"];
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = world.command(arguments).envs(variables.iter().copied()).output().unwrap();
        support::Done::from(output)
    };
    run(&["serve", "--listen", "0.0.0.0:0"], &[("MCP_API_TOKEN", TOKEN)]).expect(1, "").says("sandpen token create");
    let other = ["serve", "--profile", "cloudflare", "--listen", "0.0.0.0:0"];
    run(&other, &[("MCP_API_TOKEN", TOKEN)]).expect(1, "").says("sandpen token create");
    run(&profile, &[("MCP_HTTP_ADDR", "nowhere")]).expect(1, "").says("is not an address to listen on");
    run(&profile, &[("PUBLIC_BASE_URL", "nowhere")]).expect(1, "").says("is not the address of a server");

    let mut command = world.command(&["--json", "serve", "--profile", "code-runner", "--log", "trace"]);
    let root = world.work().join("root");
    command.envs(variables(root.to_str().unwrap()));
    // Nobody has to guess so short a secret for long.
    command.envs([
        ("MCP_HTTP_ADDR", ":0"),
        ("PUBLIC_BASE_URL", "https://sandbox.example.com/"),
        ("FILE_SECRET", "s3cret"),
    ]);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    let port = line.split("0.0.0.0:").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    let ask = |host: &str| {
        let body = request(
            1,
            "tools/call",
            json!({
                "name": "upload_file",
                "arguments": { "conversationId": "c", "filename": "a", "content": "eA==" },
            }),
        );
        let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let head = format!(
            "POST /mcp HTTP/1.0\r\nhost: {host}\r\nauthorization: {}\r\ncontent-length: {}\r\n\r\n",
            BEARER.1,
            body.len()
        );
        std::io::Write::write_all(&mut stream, &[head.as_bytes(), &body].concat()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        answer
    };
    let answer = ask("sandbox.example.com");
    assert!(answer.contains(r"https://sandbox.example.com/files/"), "{answer}");
    assert!(ask(&format!("192.0.2.1:{port}")).contains(r"https://sandbox.example.com/files/"));
    support::server::end(&mut child);
    let mut log = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut log).unwrap();
    assert!(!log.contains(TOKEN) && !log.contains("s3cret"), "a secret is in the log");
    assert!(log.contains("FILE_SECRET has fewer than 32 characters"), "{log}");
}

#[test]
fn it_does_not_start_without_what_the_older_server_needed() {
    let world = World::new();
    let root = world.work().join("root");
    let all = variables(root.to_str().unwrap());
    for (name, _) in all {
        let others = all.iter().copied().filter(|(other, _)| *other != name);
        // What is empty is missing.
        let output = world.command(&["serve", "--profile", "code-runner"]).envs(others).env(name, "").output().unwrap();
        let told = format!("{name} is not set, and the older server did not start without");
        support::Done::from(output).expect(1, "").says(&told).says("/profiles/code-runner/mcp");
    }
    assert!(!root.exists(), "something was made before");
}

/// Looked at from inside and outside, where nobody has set anything.
#[test]
fn half_a_processor_and_256_mib_are_all_there_is() {
    needs_sandboxes!();
    let scene = Scene::new();
    let python =
        |code: &str| scene.call("run_code", json!({ "conversationId": "c", "language": "python", "code": code }));
    let ran = python("x = bytearray(120 << 20)\nprint(len(x) >> 20)");
    assert_eq!((&ran["success"], &ran["stdout"]), (&json!(true), &json!("120\n")), "{ran}");
    let ran = python("x = bytearray(300 << 20)\nprint(len(x) >> 20)");
    assert_eq!(ran["success"], false, "{ran}");
    assert!(ran["stderr"].as_str().unwrap().contains("memory ran out"), "{ran}");
    let busy =
        "import time\nbegin = time.monotonic()\nwhile time.monotonic() < begin + 3: pass\nprint(time.process_time())";
    let ran = python(busy);
    let used: f64 = ran["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!(used < 2.0, "{used} s of 3 s were used: {ran}");
}

/// Files lay on the host's disk, where they were nobody's memory.
#[test]
fn files_of_the_conversation_leave_a_program_its_memory() {
    needs_sandboxes!();
    let scene = Scene::new();
    let python = |scene: &Scene, code: &str| {
        scene.call("run_code", json!({ "conversationId": "c", "language": "python", "code": code }))
    };
    let ran = scene.run("c", "head -c 150M /dev/zero > large");
    assert_eq!((&ran["success"], listed(&ran)), (&json!(true), vec!["large"]), "{ran}");
    let used = "x = bytearray(150 << 20)\nprint(len(x) >> 20)";
    let ran = python(&scene, used);
    assert_eq!((&ran["success"], &ran["stdout"]), (&json!(true), &json!("150\n")), "{ran}");
    // What is larger than it was for programs is not larger for files.
    let ran = scene.run("c", "head -c 100M /dev/zero > more");
    assert!(ran["stderr"].as_str().unwrap().contains("No space left"), "{ran}");
    let Scene { mut server, world } = scene;
    server.signal(Signal::TERM);
    server.wait();
    let bounded = Scene::with(world, &["--max-memory", "256M"]);
    let ran = python(&bounded, used);
    assert!(ran["stderr"].as_str().unwrap().contains("memory ran out"), "the operator's word counts more: {ran}");
    let Scene { mut server, world } = bounded;
    server.signal(Signal::TERM);
    server.wait();
    let scarce = Scene::with(world, &["--owner-memory", "256M"]);
    assert_eq!(scarce.run("c", "ls")["stdout"], "large\n", "whoever may have no more has what every run has");
}

#[test]
fn thirty_seconds_are_all_the_time_there_is() {
    needs_sandboxes!();
    let scene = Scene::new();
    let started = Instant::now();
    let ran = scene.run("c", "echo begun; sleep 50; echo over");
    assert_eq!((&ran["success"], &ran["stdout"]), (&json!(false), &json!("begun\n")));
    assert_eq!(ran["stderr"], "Execution timed out after 30s");
    assert!((30..50).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}

/// On the host too, where whoever runs the server can give files away.
#[test]
fn all_files_are_of_user_1000() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.upload("c", "uploaded", b"x");
    let ran = scene.run("c", "stat -c %u:%g /data uploaded; mkdir d; echo x > d/made; chmod 600 d/made");
    assert_eq!(ran["stdout"], "1000:1000\n1000:1000\n");
    let own = fs::metadata(scene.root()).unwrap();
    let expected = if own.uid() == 0 { (1000, 1000) } else { (own.uid(), own.gid()) };
    let directory = scene.root().join(names(&scene.root()).into_iter().find(|name| name != ".locks").unwrap());
    // An upload has what the mask leaves of 666, as every file that this test writes.
    let written = scene.world.work().join("written");
    fs::write(&written, "x").unwrap();
    let masked = fs::metadata(&written).unwrap().mode() & 0o777;
    for (path, mode) in [("", 0o700), ("uploaded", masked), ("d", 0o755), ("d/made", 0o600)] {
        let found = fs::metadata(directory.join(path)).unwrap();
        assert_eq!((found.uid(), found.gid()), expected, "{path:?}");
        assert_eq!(found.mode() & 0o777, mode, "{path:?} has {:o}", found.mode());
    }
}
