//! A network that is made inside the container, by a process that programs live beside: what they can do to it, and what
//! becomes of it when its server is gone.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use egress::{Allowance, Gateway, GatewaySettings, Secret, SecretSource, SecretValue, Vault};
use engine_docker::{DockerConfig, DockerEngine, Flavour, Reopen};
use sandbox::engine::testsuite::Outside;
use sandbox::{
    ByteRange, Engine, ErrorKind, ExecRequest, HostRule, Network, OnDisconnect, OutputTarget, Persistence, SandboxId,
    SandboxSpec,
};
use tokio::io::AsyncReadExt;

use crate::Case;
use crate::world::{World, eventually, make, root_spec, says, spec};

pub const CASES: &[Case] = &[
    ("network::a_containers_root_cannot_change_it", |world| Box::pin(root(world))),
    ("network::the_port_that_catches_is_no_proxy_elsewhere", |world| Box::pin(catching_port(world))),
    ("network::nobody_comes_through_without_a_server_and_the_next_one_serves_it", |world| Box::pin(left_alone(world))),
    ("network::what_was_used_counts_when_the_stream_was_lost", |world| Box::pin(lost_stream(world))),
    ("network::a_flood_leaves_room_for_others", |world| Box::pin(flood(world))),
    ("network::what_a_secret_needs_is_not_in_the_labels", |world| Box::pin(keepsake(world))),
];

/// What holds where there is none.
pub const REFUSALS: &[Case] =
    &[("network::a_kernel_that_cannot_catch_is_refused", |world| Box::pin(impossible(world)))];

/// Somewhere outside that answers each line with "pong", by a name that sandboxes do not know themselves.
struct Somewhere {
    name: String,
    port: u16,
    rule: HostRule,
}

impl Somewhere {
    fn new() -> Self {
        let (name, address) = Outside::own_name().expect("the hosts file names this machine");
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        Outside::serve(listener).unwrap();
        let rule = format!("{name}:{port}").parse().unwrap();
        Self { name, port, rule }
    }

    fn config(&self, world: &World) -> DockerConfig {
        self.config_with(world, GatewaySettings::default())
    }

    fn config_with(&self, world: &World, settings: GatewaySettings) -> DockerConfig {
        let settings = GatewaySettings { private_hosts: vec![self.rule.clone()], ..settings };
        DockerConfig { gateway: Arc::new(Gateway::new(settings)), ..world.config() }
    }

    fn spec(&self, persistence: Persistence) -> SandboxSpec {
        SandboxSpec { network: self.rule.to_string().parse().unwrap(), persistence, ..spec() }
    }

    /// Prints "pong" when it gets there.
    fn ask(&self) -> String {
        format!("bash -c 'exec 3<>/dev/tcp/{}/{} && echo ping >&3 && head -n 1 <&3'", self.name, self.port)
    }
}

/// All that it takes to change what process 1 has made, by one who has its user id.
const CHANGES: &str = r#"python3 -c '
import socket, struct
def attempt(what, work):
    try:
        work()
        print(what)
    except OSError:
        pass
def bind(kind, address, port):
    s = socket.socket(socket.AF_INET, kind)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        s.setsockopt(socket.SOL_SOCKET, option, 1)
    s.bind((address, port))
    if kind == socket.SOCK_STREAM:
        s.listen()
for address in ("127.0.0.1", "0.0.0.0"):
    attempt("proxy port " + address, lambda: bind(socket.SOCK_STREAM, address, 3128))
    attempt("names port " + address, lambda: bind(socket.SOCK_DGRAM, address, 53))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
attempt("transparent", lambda: socket.socket().setsockopt(0, 19, 1))
def answer(protocol, message):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    s.send(message)
    error = struct.unpack_from("i", s.recv(4096), 16)[0]
    if error:
        raise OSError(-error, "refused")
route = struct.pack("BBBBBBBBI", 2, 0, 0, 0, 255, 4, 254, 2, 0)
attempt("route", lambda: answer(0, struct.pack("IHHII", 16 + len(route), 25, 5, 1, 0) + route))
link = struct.pack("BBHiII", 0, 0, 0, 1, 0, 1)
attempt("link", lambda: answer(0, struct.pack("IHHII", 16 + len(link), 16, 5, 1, 0) + link))
attempt("sysctl", lambda: open("/proc/sys/net/ipv4/ip_forward", "w").write("1"))
'; grep -h ^Cap /proc/self/status | grep -v 0000000000000000; echo done"#;

fn as_root(spec: SandboxSpec) -> SandboxSpec {
    SandboxSpec { role: root_spec().role, ..spec }
}

async fn root(world: World) {
    let somewhere = Somewhere::new();
    let engine = DockerEngine::start(somewhere.config(&world)).await.unwrap();
    let id = make(&engine, &as_root(somewhere.spec(Persistence::Ephemeral))).await;
    assert_eq!(says(&engine, &id, "id -u").await, "0\n", "the test is about root");
    // Of its rights none is about the network.
    let said = says(&engine, &id, CHANGES).await;
    let left: Vec<&str> =
        said.lines().filter(|line| !line.starts_with("Cap") || !line.ends_with("00000000000000fb")).collect();
    assert_eq!(left, ["done"], "{said}");
    assert_eq!(says(&engine, &id, &somewhere.ask()).await, "pong\n");
    engine.destroy(&id).await.unwrap();
    // Where nobody has made a network, the same script finds its ports free.
    let bare = make(&engine, &root_spec()).await;
    let free = says(&engine, &bare, CHANGES).await;
    assert!(free.contains("proxy port 127.0.0.1\n") && free.contains("proxy port 0.0.0.0\n"), "{free}");
    engine.destroy(&bare).await.unwrap();
}

async fn catching_port(world: World) {
    let somewhere = Somewhere::new();
    let engine = DockerEngine::start(somewhere.config(&world)).await.unwrap();
    let id = make(&engine, &somewhere.spec(Persistence::Ephemeral)).await;
    let connect = |address: &str| {
        let Somewhere { name, port, .. } = &somewhere;
        format!(
            "bash -c 'exec 3<>/dev/tcp/{address}/3128 && printf \"CONNECT {name}:{port} HTTP/1.1\\r\\n\\r\\n\" >&3 && \
             head -n 1 <&3' 2> /dev/null"
        )
    };
    assert!(says(&engine, &id, &connect("127.0.0.1")).await.contains(" 200 "), "there it is a proxy");
    for address in ["203.0.113.7", "198.18.0.1", "10.0.0.1", "2001:db8::5", "169.254.169.254"] {
        assert_eq!(says(&engine, &id, &connect(address)).await, "", "{address}");
    }
    engine.destroy(&id).await.unwrap();
}

async fn left_alone(world: World) {
    let somewhere = Somewhere::new();
    let first = DockerEngine::start(somewhere.config(&world)).await.unwrap();
    let id = make(&first, &somewhere.spec(Persistence::Persistent)).await;
    let script =
        format!("while :; do echo $({} 2> /dev/null || echo nobody) >> tries; sleep 0.2; done", somewhere.ask());
    let mut request = ExecRequest::shell(&script, Duration::from_secs(600)).unwrap();
    (request.on_disconnect, request.output) = (OnDisconnect::Continue, OutputTarget::Log);
    let running = first.start(&id, &request).await.unwrap();
    eventually("it is served", async || last_tries(&first, &id).await == ["pong"; 3]).await;
    drop((running, first));
    // It only looks: whoever starts nothing opens nothing.
    let onlooker = DockerEngine::start(somewhere.config(&world)).await.unwrap();
    eventually("nobody is there", async || last_tries(&onlooker, &id).await == ["nobody"; 3]).await;
    drop(onlooker);
    let config = DockerConfig { reopen: Reopen::WhenListed, ..somewhere.config(&world) };
    let server = DockerEngine::start(config).await.unwrap();
    assert!(server.list().await.unwrap().iter().any(|found| found.id == id));
    eventually("the next server serves it", async || last_tries(&server, &id).await == ["pong"; 3]).await;
    server.destroy(&id).await.unwrap();
}

async fn last_tries(engine: &DockerEngine, id: &SandboxId) -> Vec<String> {
    let path = "/workspace/tries".parse().unwrap();
    let Ok(mut file) = engine.files(id).read(&path, ByteRange::default()).await else { return Vec::new() };
    let mut text = String::new();
    file.stream.read_to_string(&mut text).await.unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(3)..].to_vec()
}

async fn lost_stream(world: World) {
    let somewhere = Somewhere::new();
    let engine = DockerEngine::start(somewhere.config(&world)).await.unwrap();
    let id = make(&engine, &as_root(somewhere.spec(Persistence::Persistent))).await;
    assert_eq!(says(&engine, &id, &somewhere.ask()).await, "pong\n");
    // A program that is root in there can end the stream of its own sandbox.
    let script = "for process in /proc/[0-9]*; do tr '\\0' ' ' < $process/cmdline | grep -q ' bridge' && \
                  kill -9 ${process#/proc/}; done";
    let request = ExecRequest::shell(script, Duration::from_secs(30)).unwrap();
    let _ = engine.start(&id, &request).await.unwrap().control.wait().await;
    let connections = async || engine.usage(&id).await.ok()?.network.map(|usage| usage.connections);
    eventually("it is found again", async || connections().await.is_some()).await;
    assert_eq!(connections().await, Some(1), "what was used before counts");
    assert_eq!(says(&engine, &id, &somewhere.ask()).await, "pong\n");
    assert_eq!(connections().await, Some(2));
    engine.destroy(&id).await.unwrap();
}

/// More connections than are allowed, to a host that may be reached, to one that may not and to the proxy, which hears
/// nothing; all of them held.
const FLOOD: &str = r#"python3 -c '
import socket, sys, time
held, end = [], time.time() + 6
places = [(sys.argv[1], int(sys.argv[2])), ("203.0.113.7", 80), ("127.0.0.1", 3128)]
while time.time() < end:
    for place in places:
        s = socket.socket()
        s.settimeout(1)
        try:
            s.connect(place)
            held.append(s)
        except OSError:
            s.close()
    while len(held) > 900:
        held.pop(0).close()
print("done")
' "#;

async fn flood(world: World) {
    let somewhere = Somewhere::new();
    let of_sandbox = Allowance { connections: 40, bytes: None, rate: None };
    let settings = GatewaySettings { of_sandbox, ..GatewaySettings::default() };
    let engine = DockerEngine::start(somewhere.config_with(&world, settings)).await.unwrap();
    let id = make(&engine, &somewhere.spec(Persistence::Ephemeral)).await;
    let other = make(&engine, &somewhere.spec(Persistence::Ephemeral)).await;
    let before = descriptors();
    let script = format!("{FLOOD} {} {}", somewhere.name, somewhere.port);
    let most = async {
        let (started, mut most) = (Instant::now(), 0);
        while started.elapsed() < Duration::from_secs(5) {
            most = most.max(descriptors());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        most
    };
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        (says(&engine, &other, &somewhere.ask()).await, says(&engine, &id, "echo alive").await)
    };
    let (flooded, most, (beside, within)) = tokio::join!(says(&engine, &id, &script), most, meanwhile);
    assert_eq!((flooded.as_str(), beside.as_str(), within.as_str()), ("done\n", "pong\n", "alive\n"));
    // Three for each of 40 connections and of 256 that have not asked for anything, and those of the other sandbox.
    assert!(most < before + 3 * (40 + 256) + 100, "from {before} to {most} descriptors");
    eventually("it gets through again", async || says(&engine, &id, &somewhere.ask()).await == "pong\n").await;
    engine.destroy(&id).await.unwrap();
    engine.destroy(&other).await.unwrap();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn keepsake(world: World) {
    let somewhere = Somewhere::new();
    let mut vault = Vault::default();
    let value = SecretValue::new("value-that-stays-outside").unwrap();
    let name: sandbox::SecretName = "SOME_TOKEN".parse().unwrap();
    vault.insert(Secret::new(name.clone(), value, vec![somewhere.rule.clone()], None).unwrap());
    let settings = GatewaySettings { secrets: SecretSource::Vault(vault), ..GatewaySettings::default() };
    let engine = DockerEngine::start(somewhere.config_with(&world, settings)).await.unwrap();
    let wanted = SandboxSpec { secrets: [name].into(), ..somewhere.spec(Persistence::Persistent) };
    let (kept, removed_behind) = (make(&engine, &wanted).await, make(&engine, &wanted).await);
    let path = |id: &SandboxId| world.kept().join("keepsakes").join(id.as_str());
    let contents = std::fs::read_to_string(path(&kept)).unwrap();
    assert!(contents.contains("PRIVATE KEY"), "{contents}");
    let container = world.docker.inspect_container(&format!("sandpen-{kept}"), None).await.unwrap();
    let told = serde_json::to_string(&container).unwrap();
    assert!(!told.contains("PRIVATE KEY") && !told.contains("value-that-stays-outside"), "{told}");
    world.remove(&format!("sandpen-{removed_behind}")).await;
    engine.list().await.unwrap();
    assert!(path(&kept).exists() && !path(&removed_behind).exists());
    engine.destroy(&kept).await.unwrap();
    assert!(!path(&kept).exists());
}

/// gVisor has no packet filter that could catch connections. Under a name that we do not know, process 1 is who finds out.
async fn impossible(world: World) {
    let runtimes = world.docker.info().await.unwrap().runtimes.unwrap_or_default();
    if world.place.flavour != Flavour::Docker {
        println!("SKIPPED: Podman takes no runtime with a request: that a network is refused on gVisor is not shown");
        return;
    }
    for name in ["runsc", "other"] {
        if !runtimes.contains_key(name) {
            println!("SKIPPED: this daemon has no runtime {name}: that a network is refused there is not shown");
            continue;
        }
        let config = DockerConfig { runtime: Some(name.to_owned()), ..world.config() };
        let engine = DockerEngine::start(config).await.unwrap();
        let id = SandboxId::random().unwrap();
        let wanted = SandboxSpec { network: Network::Internet, ..spec() };
        let refused = engine.create(&id, &wanted).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "under the name {name}: {refused:?}");
        let found_inside = refused.message().contains("the kernel that the sandbox runs on");
        assert_eq!(found_inside, name == "other", "{refused:?}");
        let left = format!("sandpen-{id}");
        eventually("what was made is removed", async || world.containers(&left).await.is_empty()).await;
    }
}
