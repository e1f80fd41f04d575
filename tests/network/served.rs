//! The real program as a server and as a command: what its replies tell, what its log does not, and what lasts.

use std::time::{Duration, Instant};

use sandpen_tests::check::shortened;
use sandpen_tests::daemon::Given;
use sandpen_tests::processes::companions;
use sandpen_tests::random::unique;
use sandpen_tests::table::{Table, Verdict};
use sandpen_tests::wire::Wire;
use sandpen_tests::{Result, Trouble, processes};
use serde_json::json;

use crate::backend::is_installed;
use crate::older;
use crate::product::Product;
use crate::scene::arrivals;
use crate::world::oracle::Oracle;
use crate::world::places::{Kind, PLACES, place};
use crate::world::visits::{Visit, VisitKind};

type Test = fn(&Oracle) -> Result<String>;

const TESTS: &[(&str, Test)] = &[
    ("SE-05", log_and_state),
    ("SE-01-secrets", passed_through_is_seen),
    ("refusals are told", refusals),
    ("NW-09", persistent),
    ("NW-05-loopback", own_port),
    ("bounds are kept", bounds),
    ("a flood stays small", flood),
    ("older servers' profiles", older::reach),
];

pub fn judge(wanted: impl Fn(&str) -> bool, oracle: &Oracle, table: &mut Table) {
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        let started = Instant::now();
        match test(oracle) {
            Ok(detail) => table.add(name, Verdict::Pass, &detail, started.elapsed()),
            Err(trouble) => table.add(name, Verdict::Fail, &trouble.to_string(), started.elapsed()),
        }
    }
}

const SECRET: &str = "API_KEY";
const COUNT: usize = 30;

/// A server that logs all it can, with secrets of its own in its environment.
fn server(product: Product, arguments: &[&str], canary: &str) -> Result<Wire> {
    let mut command = product.command();
    for index in 0..COUNT {
        command.env(format!("CANARY_{index}"), format!("{canary}-{index}"));
    }
    command.env("AWS_SECRET_ACCESS_KEY", canary).env("HTTPS_PROXY", format!("http://user:{canary}@127.0.0.1:1"));
    command.args(["mcp", "--log", "trace", "--max-network", "internet"]).args(arguments);
    Wire::by(&mut command, product.place)
}

/// Every way to fail, with a token in each request: none of it is written down, and neither is the secret.
fn log_and_state(oracle: &Oracle) -> Result<String> {
    let (value, token, canary) = (unique("value"), unique("token"), unique("canary"));
    let product = Product::new()?;
    product.keep_secret(&[SECRET, "--host", "api.example.com"], &value)?;
    let secrets = product.state().join("secrets.toml");
    let mut wire = server(product, &["--secret", SECRET], &canary)?;
    // Put together inside: at this level the server writes down what its client says, and that is the client's affair.
    let (head, tail) = token.split_at(token.len() / 2);
    let script = format!(
        r#"token=$(printf '%s%s' {head} {tail})
        ask() {{ curl -sS -m 10 -H "Authorization: Bearer $API_KEY" -H "X-Token: $token" -d "token=$token&key=$API_KEY" "$@" >/dev/null 2>&1; }}
        ask "https://api.example.com/$token?key=$API_KEY"
        for url in https://api.example.com http://api.example.com http://public.example.com https://wrong.example.com \
            http://other.example.com:81 http://nobody.example.com http://ten.example.com http://127.0.0.1:1 http://169.254.169.254; do
            ask "$url/$token?token=$token"; ask --noproxy '*' "$url/$token?token=$token"
        done
        printf "GET http://user:$token@ten.example.com/$token?$token HTTP/1.1\r\n\r\n" >/dev/tcp/127.0.0.1/3128
        printf "GET http://ten.example.com/$token?$token HTTP/1.1\r\nHost: x\r\nX-Token: $token\r\n\r\n" >/dev/tcp/127.0.0.1/3128
        printf "CONNECT /$token HTTP/1.1\r\n\r\n" >/dev/tcp/127.0.0.1/3128
        printf "NONSENSE $token \r\n\r\n" >/dev/tcp/127.0.0.1/3128
        curl -sS -m 10 "https://api.example.com/?key=$API_KEY"; echo "$API_KEY" >key; (sleep 300; true) & echo started"#
    );
    let sandbox = wire.good("create_sandbox", &json!({"network": "internet"}))?["sandbox_id"].take();
    let arguments = json!({"argv": ["bash", "-c", script], "sandbox_id": sandbox, "timeout_s": 120, "wait_s": 120, "background": true});
    let job = wire.good("run_command", &arguments)?["job_id"].take();
    let told = wait_for(&mut wire, &job, "started")?;
    let came = oracle.visits()?;
    if !came.iter().any(|visit| visit.kind == VisitKind::Request && visit.place == "api" && visit.text.contains(&value))
    {
        return Err(Trouble(format!(
            "the secret was not used: {told}; {:?}",
            came.iter().map(Visit::to_string).collect::<Vec<_>>()
        )));
    }
    let mut breaches = Vec::new();
    let inside = inside(&wire, head)?;
    let state = wire.state();
    for (what, needle) in [("the secret", &value), ("the server's own environment", &canary)] {
        let found = oracle.search(needle, &inside, &[&state], &[&secrets])?;
        breaches.extend(found.into_iter().map(|place| format!("{what}: {place}")));
        if told.contains(needle) {
            breaches.push(format!("{what}: the job's output"));
        }
    }
    let server = processes::Process::read(wire.pid()).ok_or("the server is gone")?;
    if server.command_line.contains(&value) {
        breaches.push("the server's arguments have the secret".to_owned());
    }
    let log = wire.log();
    for (what, needle) in
        [("the secret", &value), ("a token of a request", &token), ("the server's own environment", &canary)]
    {
        if let Some(line) = log.lines().find(|line| line.contains(needle.as_str())) {
            breaches.push(format!("{what} in the log: {}", line.chars().take(300).collect::<String>()));
        }
    }
    let audited = |host: &str, word: &str| {
        log.lines()
            .any(|line| line.contains("audit") && line.contains(&format!("host=\"{host}\" ")) && line.contains(word))
    };
    if !audited("api.example.com", SECRET) || !audited("ten.example.com", "private_address") {
        return Err("the log does not tell of a connection and of a refusal".into());
    }
    wire.close();
    wire.end_within(Duration::from_secs(30))?;
    if breaches.is_empty() {
        return Ok(format!("{} bytes of log, {} processes", log.len(), inside.len()));
    }
    Err(shortened(&breaches).into())
}

/// The control of the row above: what is passed on in the open is found by the same search.
fn passed_through_is_seen(oracle: &Oracle) -> Result<String> {
    let canary = unique("canary");
    let product = Product::new()?;
    let mut wire = server(product, &["--pass-through-env", "AWS_SECRET_ACCESS_KEY"], &canary)?;
    let mark = unique("mark");
    let command = format!("echo \"$AWS_SECRET_ACCESS_KEY\"; sleep 300; : {mark}");
    let arguments = json!({"command": command, "background": true});
    let job = wire.good("run_command", &arguments)?["job_id"].take();
    let told = wait_for(&mut wire, &job, &canary)?;
    let inside = inside(&wire, &mark)?;
    let found = oracle.search(&canary, &inside, &[], &[])?;
    if found.is_empty() || !told.contains(&canary) {
        return Err("the search does not find what is there".into());
    }
    Ok(format!("found in {} places, as it must be", found.len()))
}

/// All processes below the server; where a daemon starts them, those beside one whose arguments have this mark.
fn inside(wire: &Wire, mark: &str) -> Result<Vec<u32>> {
    let found = match Given::of_environment()? {
        None => wire.descendants(),
        Some(_) => {
            processes::marked(mark).iter().find(|found| found.pid != wire.pid()).map_or_else(Vec::new, companions)
        }
    };
    if found.is_empty() {
        return Err("nobody is seen inside".into());
    }
    Ok(found.iter().map(|process| process.pid).collect())
}

fn wait_for(wire: &mut Wire, job: &serde_json::Value, word: &str) -> Result<String> {
    let started = Instant::now();
    loop {
        let got = wire.good("get_job", &json!({"job_id": job}))?;
        let told =
            format!("{}{}", got["stdout"].as_str().unwrap_or_default(), got["stderr"].as_str().unwrap_or_default());
        if told.contains(word) || got["status"] != "running" {
            return Ok(told);
        }
        if started.elapsed() > Duration::from_secs(120) {
            return Err(format!("it never said {word}: {got}").into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A result says who was refused and by which rule, for programs and for models.
fn refusals(oracle: &Oracle) -> Result<String> {
    let mut wire = server(Product::new()?, &[], "nothing")?;
    let script = "curl -sS -m 10 http://other.example.com/; curl -sS -m 10 http://public.example.com:8080/; \
        curl -sS -m 10 --noproxy '*' http://203.0.113.11/; curl -sS -m 10 http://ten.example.com/; \
        curl -sS --fail -m 10 http://public.example.com/";
    let arguments = json!({"argv": ["bash", "-c", script], "network": "public.example.com,ten.example.com"});
    let id = wire.call("run_command", &arguments)?;
    let result = wire.answer(id)?;
    let network = &result["structuredContent"]["network"];
    let text = result["content"].to_string();
    for (host, port, rule) in [
        ("other.example.com", 80, "host_not_allowed"),
        ("public.example.com", 8080, "port_not_allowed"),
        ("203.0.113.11", 80, "host_not_allowed"),
        ("ten.example.com", 80, "private_address"),
    ] {
        let listed = network["refused"].as_array().into_iter().flatten().any(|refused| {
            refused["host"] == host && (refused["port"] == port || refused["port"].is_null()) && refused["rule"] == rule
        });
        if !listed {
            return Err(format!("{host}:{port} {rule} is not among {network}").into());
        }
        if !text.contains(host) {
            return Err(format!("a model is not told of {host}: {text}").into());
        }
    }
    let came = oracle.visits()?;
    let breaches = arrivals(&came, |visit| visit.place == "public");
    if breaches.is_empty() && network["bytes_in"].as_u64() > Some(0) {
        return Ok(format!("{network}"));
    }
    Err(format!("{}; {network}", shortened(&breaches)).into())
}

/// A sandbox that outlives the process that made it keeps its network, and no more than that.
fn persistent(oracle: &Oracle) -> Result<String> {
    let product = Product::new()?;
    let made = product.run(&["create", "--network", "public.example.com,*.example.com:81"])?.succeeded()?;
    let id = made.stdout.trim().to_owned();
    let forbidden: Vec<String> = PLACES
        .iter()
        .filter(|place| place.kind != Kind::Public)
        .flat_map(|place| place.addresses)
        .map(|address| format!("{address}/80"))
        .chain(["127.0.0.1/4444", "::1/4444", "192.0.2.2/4444", "203.0.113.11/80"].map(str::to_owned))
        .collect();
    let script = format!(
        "for target in {}; do (exec 3<>/dev/tcp/$target && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && timeout 1 head -c 9 <&3) 2>/dev/null; done; \
         curl -sS --fail -m 20 --noproxy '*' https://public.example.com/again && curl -sS --fail -m 20 https://public.example.com/again",
        forbidden.join(" ")
    );
    let mut tried = 0;
    for _ in 0..2 {
        let ran = product.run(&["exec", &id, "--timeout", "100s", "--", "bash", "-c", &script])?;
        let came = oracle.visits()?;
        let breaches = arrivals(&came, |visit| visit.place == "public");
        if !breaches.is_empty() {
            return Err(shortened(&breaches).into());
        }
        let reached =
            came.iter().filter(|visit| visit.kind == VisitKind::Request && visit.text.contains("/again")).count();
        if reached != 2 {
            return Err(ran.told(&format!("the public place was reached {reached} times of two")));
        }
        tried += forbidden.len();
    }
    product.run(&["stop", &id])?.succeeded()?;
    Ok(format!("{tried} refusals by two later processes, and the public place reached by both"))
}

/// The server's own port, from a sandbox of its own.
fn own_port(oracle: &Oracle) -> Result<String> {
    let product = Product::new()?;
    let log = product.place.path().join("serve.log");
    let mut command = product.command();
    command.args(["serve", "--no-auth", "--listen", "127.0.0.1:8228"]).stdout(std::process::Stdio::null());
    let server = sandpen_tests::program::Program::start(&mut command, &log)?;
    let started = Instant::now();
    while std::net::TcpStream::connect("127.0.0.1:8228").is_err() {
        if started.elapsed() > Duration::from_secs(30) {
            return Err(server.tell("the server does not listen"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let own = place("host").map(|place| place.addresses).unwrap_or_default();
    let hosts: Vec<String> = own
        .iter()
        .map(|address| if address.is_ipv6() { format!("[{address}]") } else { address.to_string() })
        .chain(["127.0.0.1", "[::1]", "localhost", "loopback.example.com", "host.example.com"].map(str::to_owned))
        .collect();
    let script = format!(
        "for host in {}; do for way in '' '*'; do curl -sS -m 5 --noproxy \"$way\" http://$host:8228/healthz 2>/dev/null; \
         curl -sS -m 5 -p -x http://127.0.0.1:3128 http://$host:8228/healthz 2>/dev/null; done; done; true",
        hosts.join(" ")
    );
    let health = healthy()?;
    for network in ["internet", "127.0.0.1:*,[::1]:*,192.0.2.2:*,loopback.example.com:*,host.example.com:*,localhost:*"]
    {
        let ran = product.script(network, &[], &script)?;
        if ran.stdout.contains(&health) {
            return Err(ran.told("the server answered"));
        }
    }
    oracle.visits()?;
    Ok(format!("{} addresses, not one answer", hosts.len()))
}

/// What the server answers to the host: the control, and the word to look for.
fn healthy() -> Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect("127.0.0.1:8228")?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1:8228\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.trim().to_owned()).unwrap_or_default();
    if answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200") { Ok(body) } else { Err(answer.into()) }
}

/// Bytes and connections are bounded, and the bound is told.
fn bounds(oracle: &Oracle) -> Result<String> {
    let product = Product::new()?;
    let ran = product.script(
        "public.example.com",
        &["--network-bytes", "1MiB"],
        "curl -sS -m 20 http://public.example.com/bytes/8388608 | wc -c",
    )?;
    let got: u64 = ran.stdout.trim().parse().map_err(|_| ran.told("no number"))?;
    if got > 2 << 20 {
        return Err(ran.told(&format!("{got} bytes came in where 1 MiB was allowed")));
    }
    let crowd = "for i in 1 2 3 4 5 6; do (exec 3<>/dev/tcp/public.example.com/7000 && read -r -t 5 line <&3 && echo \"$line\" && sleep 3) 2>/dev/null & done; wait";
    let ran = product.script("public.example.com:7000", &["--network-connections", "2"], crowd)?;
    let greeted = ran.stdout.matches("speaks first").count();
    oracle.visits()?;
    if greeted == 2 {
        Ok(format!("{got} bytes, two connections of six"))
    } else {
        Err(ran.told(&format!("{greeted} connections of two")))
    }
}

/// Asks and connects as fast as it can; the server's memory stays within what a busy sandbox may cost.
const FLOOD: &str = r#"
import random, socket, sys, threading, time
end = time.time() + 8
def ask():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while time.time() < end:
        name = "%020x" % random.getrandbits(80)
        s.sendto(b"\0\7\1\0\0\1\0\0\0\0\0\0\x14" + name.encode() + b"\7example\3com\0\0\1\0\1", ("127.0.0.1", 53))
def knock(port, text):
    held = []
    while time.time() < end:
        s = socket.socket()
        s.settimeout(2)
        try:
            s.connect((random.choice(["203.0.113.10", "10.20.0.5", "127.0.0.1"]), port))
            s.send(text)
            held.append(s)
        except OSError:
            time.sleep(0.01)
        if len(held) > 200:
            held.pop(0).close()
threads = [threading.Thread(target=ask) for _ in range(2)]
threads += [threading.Thread(target=knock, args=a) for a in [(80, b"G"), (443, b"\x16\3\1\x3f\xff"), (3128, b"CONNECT " + b"a" * 4000), (3128, b"GET http://public.example.com/ HTTP/1.1\r\nX: ")]]
for t in threads: t.start()
for t in threads: t.join()
print("done")
"#;

const ROOM_KIB: u64 = 48 << 10;

fn flood(oracle: &Oracle) -> Result<String> {
    if !is_installed("python3") {
        return Err("python3 is not installed, and nothing else is here that can flood".into());
    }
    let mut wire = server(Product::new()?, &[], "nothing")?;
    let sandbox = wire.good("create_sandbox", &json!({"network": "internet"}))?["sandbox_id"].take();
    let quiet = json!({"argv": ["curl", "-sS", "-m", "20", "http://public.example.com/"], "sandbox_id": sandbox});
    wire.good("run_command", &quiet)?;
    wire.forget_peak()?;
    let before = wire.peak_kib()?;
    let arguments = json!({"argv": ["python3", "-c", FLOOD], "sandbox_id": sandbox, "timeout_s": 60, "wait_s": 60});
    let flooded = wire.good("run_command", &arguments)?;
    if flooded["stdout"] != "done\n" {
        return Err(format!("the flood did not run: {flooded}").into());
    }
    let peak = wire.peak_kib()?;
    let mut after = wire.good("run_command", &quiet)?;
    // Connections of the flood that still wait to be taken, or to be seen as ended, come before this one.
    for _ in 0..40 {
        if after["exit_code"] == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
        after = wire.good("run_command", &quiet)?;
    }
    oracle.visits()?;
    if after["exit_code"] != 0 {
        return Err(format!("after the flood nothing is reached: {after}").into());
    }
    if peak > before + ROOM_KIB {
        return Err(format!("the server grew from {before} to {peak} KiB").into());
    }
    Ok(format!(
        "from {before} to {peak} KiB; {} refusals told",
        flooded["network"]["refused"].as_array().map_or(0, Vec::len)
    ))
}
