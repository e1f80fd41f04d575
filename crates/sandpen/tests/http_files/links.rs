//! FU-02: a link is good for what it was made for, and everything else is refused in the same words.

use serde_json::{Value, json};

use crate::careless::Careless;
use crate::client::{self, Reply};
use crate::scene::{CANARY, Scene, needs_sandboxes, token};
use crate::support::server::{Server, request};
use crate::support::wait_until;

const SECRET: &[u8] = b"what the link is for";

fn follow(scene: &Scene, method: &str, link: &str) -> Reply {
    client::send(scene.server.address, method, link, &[], b"")
}

/// Each bit of what is signed, flipped, as far as an address can be written that way.
fn flipped(link: &str) -> Vec<String> {
    let start = link.rfind("/files/").map_or(1, |at| at + "/files/".len());
    let flip = |at: usize, bit: u32| {
        let mut bytes = link.as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        // What is no address at all is refused before anybody looks at it.
        let is_legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(byte);
        bytes.iter().all(is_legal).then(|| String::from_utf8(bytes).unwrap())
    };
    let bits = (start..link.len()).flat_map(|at| (0..7).map(move |bit| (at, bit)));
    bits.filter_map(|(at, bit)| flip(at, bit)).collect()
}

/// Which of these give the file away, or say more than the first does.
fn telling<'a>(
    links: impl IntoIterator<Item = &'a String>,
    ask: impl Fn(&str) -> Reply,
    refused: &Reply,
) -> Vec<String> {
    let tells = |link: &&String| ask(link).shape() != refused.shape();
    links.into_iter().filter(tells).cloned().collect()
}

#[test]
fn a_link_gives_its_file_without_a_token() {
    needs_sandboxes!();
    let scene = Scene::new();
    scene.put("/workspace/a%20b.txt", SECRET).expect(201);
    let link = scene.link_to("a b.txt");
    assert!(link.ends_with("/a%20b.txt"), "{link}");
    let got = follow(&scene, "GET", &link).expect(200);
    assert_eq!(got.body, SECRET);
    let head = follow(&scene, "HEAD", &link).expect(200);
    assert_eq!((head.header("content-length"), head.body.len()), (Some("20"), 0));
    let part = client::send(scene.server.address, "GET", &link, &[("range", "bytes=5-7")], b"").expect(206);
    assert_eq!(part.body, b"the");
    // Another site's page may lead there.
    let site = [("sec-fetch-site", "cross-site")];
    client::send(scene.server.address, "GET", &link, &site, b"").expect(200);
    client::send(scene.server.address, "GET", &scene.at("/workspace"), &site, b"").expect(403);

    let put = scene.link(json!({ "path": "/workspace/in.bin", "method": "PUT", "expires_s": 900 }));
    let answer = client::send(scene.server.address, "PUT", &put, &[], b"from elsewhere").expect(201);
    assert_eq!(answer.json()["bytes"], 14);
    assert_eq!(scene.get("/workspace/in.bin").body, b"from elsewhere");
    for wrong in [
        json!({ "path": "a", "expires_s": 901 }),
        json!({ "path": "a", "expires_s": 0 }),
        json!({ "path": "../a" }),
        json!({ "path": "a", "method": "DELETE" }),
        json!({ "path": "a", "other": 1 }),
        json!({}),
    ] {
        scene.send("POST", &format!("{}/links", scene.base()), &[], wrong.to_string().as_bytes()).expect(400);
    }
}

#[test]
fn whatever_is_wrong_with_a_link_the_answer_is_the_same() {
    needs_sandboxes!();
    let mut scene = Scene::new();
    scene.put("/workspace/a.txt", SECRET).expect(201);
    scene.put("/workspace/b.txt", b"another").expect(201);
    let link = scene.link_to("a.txt");
    let refused = follow(&scene, "GET", "/files/nothing/a.txt").expect(404);
    let ask = |link: &str| follow(&scene, "GET", link);
    assert_eq!(telling(&flipped(&link), ask, &refused), Vec::<String>::new());
    assert_eq!(telling([&link], ask, &refused).len(), 1, "the link itself is good");

    let (signed, _) = link.rsplit_once('/').unwrap();
    let (claims, signature) = signed.rsplit_once('.').unwrap();
    let other = scene.link_to("b.txt");
    let (other_claims, other_signature) = other.rsplit_once('/').unwrap().0.rsplit_once('.').unwrap();
    let misused = [
        "/files/a.txt".to_owned(),
        signed.to_owned(),
        format!("{signed}/b.txt"),
        format!("{signed}/a.txt/"),
        format!("{signed}/../a.txt"),
        format!("{claims}./a.txt"),
        format!("{claims}.{other_signature}/a.txt"),
        format!("{other_claims}.{signature}/b.txt"),
        scene.link_to("missing.txt"),
        scene.link_to("/workspace"),
        scene.link_to("/etc/shadow"),
        scene.link(json!({ "path": "a.txt", "method": "PUT" })),
    ];
    assert_eq!(telling(&misused, ask, &refused), Vec::<String>::new());
    for method in ["PUT", "POST", "DELETE", "PATCH"] {
        assert_eq!(follow(&scene, method, &link).shape(), refused.shape(), "{method}");
    }
    assert_eq!(scene.get("/workspace/a.txt").body, SECRET);

    let brief = scene.link(json!({ "path": "a.txt", "expires_s": 1 }));
    wait_until("the link is over", || follow(&scene, "GET", &brief).status == 404);
    assert_eq!(follow(&scene, "GET", &brief).shape(), refused.shape());

    scene.world.run(&["links", "revoke"]).expect(0, "");
    assert_eq!(follow(&scene, "GET", &link).shape(), refused.shape(), "another key");
    let fresh = scene.link_to("a.txt");
    assert_eq!(follow(&scene, "GET", &fresh).body, SECRET);
    let key = scene.world.state_dir().join("links.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "the key is for its owner alone");
    std::fs::remove_file(key).unwrap();
    assert_eq!(follow(&scene, "GET", &fresh).shape(), refused.shape(), "no key");

    let last = scene.link_to("a.txt");
    scene.server.signal(rustix::process::Signal::TERM);
    assert!(scene.server.wait().0.success());
    scene.server = crate::support::server::Server::guarded(&scene.world, &[]);
    assert_eq!(follow(&scene, "GET", &last).body, SECRET, "a server that was started anew has the key");
    scene.world.run(&["stop", &scene.sandbox]).expect(0, &format!("{}\n", scene.sandbox));
    wait_until("the sandbox is gone", || follow(&scene, "GET", &last).status == 404);
    assert_eq!(follow(&scene, "GET", &last).shape(), refused.shape(), "no sandbox");
}

#[test]
fn links_are_made_by_those_who_may() {
    needs_sandboxes!();
    let scene = Scene::new();
    let address = format!("{}/links", scene.base());
    let wish = json!({ "path": "a.txt" }).to_string();
    let by = |authorization: &str| {
        let headers = [("authorization", authorization)];
        client::send(scene.server.address, "POST", &address, &headers, wish.as_bytes())
    };
    by("Bearer wrong").expect(401);
    by(&token(&scene.world, &["--scope", "read"])).expect(403);
    by(&token(&scene.world, &["--owner", "bob"])).expect(404);
}

#[test]
fn a_careless_server_is_found_out_by_links() {
    let careless = Careless::start();
    std::fs::write(careless.path("a.txt"), CANARY).unwrap();
    let ask = |link: &str| client::send(careless.store.address, "GET", link, &[], b"");
    let refused = ask("/nothing");
    let wrong = ["/a.txt?signature=wrong".to_owned()];
    assert_eq!(telling(&wrong, ask, &refused), wrong);
}

/// What a tool answers, for programs.
fn call(scene: &Scene, tool: &str, arguments: Value) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = request(7, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", tool),
    ];
    let answer = scene.send("POST", "/mcp", &headers, &body).expect(200);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let message = text.lines().find_map(|line| line.strip_prefix("data: ").filter(|data| data.contains("result")));
    let message: Value = serde_json::from_str(message.unwrap_or(&text)).unwrap();
    message["result"]["structuredContent"].clone()
}

#[test]
fn what_a_run_made_has_a_link_where_its_sandbox_stays() {
    needs_sandboxes!();
    let mut scene = Scene::new();
    let run = json!({ "command": "printf made > 'a plot.txt'", "sandbox_id": scene.sandbox });
    let ran = call(&scene, "run_command", run);
    let url = ran["artifacts"][0]["url"].as_str().unwrap_or_else(|| panic!("no link: {ran}"));
    let link = url.strip_prefix(&format!("http://{}", scene.server.address)).unwrap();
    assert_eq!(follow(&scene, "GET", link).expect(200).body, b"made");
    assert_eq!(
        follow(&scene, "PUT", link).status,
        follow(&scene, "GET", "/files/nothing/a").status,
        "it is for reading"
    );
    let passing = call(&scene, "run_command", json!({ "command": "printf made > passing.txt" }));
    assert_eq!(passing["artifacts"][0]["url"], Value::Null, "{passing}");

    // An address that nobody can use from elsewhere is not given out, and one that the operator names is.
    scene.server = Server::guarded(&scene.world, &["--public-url", "https://sandpen.example.com"]);
    let run = json!({ "command": "printf again > again.txt", "sandbox_id": scene.sandbox });
    let ran = call(&scene, "run_command", run);
    let url = ran["artifacts"][0]["url"].as_str().unwrap_or_else(|| panic!("no link: {ran}"));
    let link = url.strip_prefix("https://sandpen.example.com").unwrap();
    assert_eq!(follow(&scene, "GET", link).expect(200).body, b"again");
}
