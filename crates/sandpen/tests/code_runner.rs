//! `sandpen serve --profile code-runner`: its plain HTTP, its token, and the files of its conversations.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
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

struct Scene {
    server: Server,
    world: World,
}

impl Scene {
    fn new() -> Self {
        Self::of(World::new())
    }

    fn of(world: World) -> Self {
        let root = world.work().join("root");
        let variables = [
            ("MCP_API_TOKEN", TOKEN),
            ("SANDBOX_ROOT", root.to_str().unwrap()),
            ("SANDBOX_HOST_PATH", "/srv/elsewhere"),
            ("FILE_SECRET", "s3cret"),
        ];
        Self { server: Server::start_with(&world, &["--profile", "code-runner"], &variables), world }
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
        url.strip_prefix(&format!("http://{}", self.server.address)).unwrap_or_else(|| panic!("{url}")).to_owned()
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
    assert_eq!(scene.server.ask("GET", "/mcp", &[BEARER]).status, 405);
    assert_eq!(scene.get("/").status, 404);
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
            assert_eq!(answer.header("www-authenticate"), None);
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
    let open = Server::start(&world, &["--profile", "code-runner"]);
    assert_eq!(open.open("POST", "/mcp", &[("host", "192.0.2.1:8080")], &body).status, 403);
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
    assert_eq!(ran["stdout"], format!("one\nhttp://{}{directory}\n", scene.server.address));
    assert!(scene.path(&ran["files"][0]).ends_with("/a%20b%26.txt"));
    assert_eq!(scene.get(&scene.path(&ran["files"][0])).body, "two");
    assert_eq!(scene.get(&format!("{directory}/deep/er/x")).body, "3");

    // By the formula that it always had.
    let hash = "206ccc8d43f419d54324cec11fb4b3e78a8a088fd7638a647cbc2df71e228eac";
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
    assert_eq!(scene.run("c", "ls -A | grep -v run-; ls -A d")["stdout"], "a.txt\nd\n");
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
    let world = World::new();
    let arguments = ["--profile", "code-runner", "--timeout", "2s"];
    let scene = Scene { server: Server::start_with(&world, &arguments, &[("MCP_API_TOKEN", TOKEN)]), world };
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
    let world = World::new();
    let arguments = ["--profile", "code-runner", "--disk", "4M"];
    let scene = Scene { server: Server::start_with(&world, &arguments, &[("MCP_API_TOKEN", TOKEN)]), world };
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
    let world = World::new();
    let arguments = ["--profile", "code-runner", "--max-network", "none"];
    let scene = Scene { server: Server::start_with(&world, &arguments, &[("MCP_API_TOKEN", TOKEN)]), world };
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
    run(&profile, &[("MCP_HTTP_ADDR", ":0")]).expect(1, "").says("without authentication");
    run(&profile, &[("MCP_HTTP_ADDR", ":0"), ("MCP_API_TOKEN", "")]).expect(1, "").says("without authentication");
    run(&["serve", "--listen", "0.0.0.0:0"], &[("MCP_API_TOKEN", TOKEN)]).expect(1, "").says("without authentication");
    let other = ["serve", "--profile", "cloudflare", "--listen", "0.0.0.0:0"];
    run(&other, &[("MCP_API_TOKEN", TOKEN)]).expect(1, "").says("without authentication");
    run(&profile, &[("MCP_HTTP_ADDR", "nowhere")]).expect(1, "").says("is not an address to listen on");
    run(&profile, &[("PUBLIC_BASE_URL", "nowhere")]).expect(1, "").says("is not the address of a server");

    let mut command = world.command(&["--json", "serve", "--profile", "code-runner", "--log", "trace"]);
    let variables =
        [("MCP_HTTP_ADDR", ":0"), ("MCP_API_TOKEN", TOKEN), ("PUBLIC_BASE_URL", "https://sandbox.example.com/")];
    let mut child = command.envs(variables).spawn().unwrap();
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
    assert!(!log.contains(TOKEN), "the token is in the log");
}
