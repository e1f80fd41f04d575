//! What a sandbox with a network reaches, and what it does not. Programs inside know nothing of us but where the proxy is.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::subject::{Ended, Subject, eventually, is_listed, kind, seconds, shell, spec};
use super::{Case, Needs};
use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::exec::ExecStatus;
use crate::id::SandboxId;
use crate::isolation::Layer;
use crate::network::{Denial, Host, Network, NetworkActivity};
use crate::secret::SecretName;
use crate::spec::{Persistence, SandboxSpec};

/// What cases about networks need beyond an engine.
#[derive(Clone)]
pub struct Outside {
    /// A name that leads to `server` for this machine, and that no sandbox knows by itself.
    pub name: String,
    /// Answers each line with "pong". Its port is the one that sandboxes may reach under `name`, because the operator
    /// allowed it.
    pub server: SocketAddr,
    /// A secret for `name`, and its value.
    pub secret: (SecretName, String),
    /// An engine on the same state as the one under test, as the next process would have it.
    pub next: Arc<dyn Engine>,
}

impl Outside {
    /// A name of this machine that can be one, with its address.
    pub fn own_name() -> Option<(String, IpAddr)> {
        let hosts = std::fs::read_to_string("/etc/hosts").ok()?;
        let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
        let named = lines.flat_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next().and_then(|address| address.parse::<IpAddr>().ok());
            words.map(move |name| (name.to_owned(), address))
        });
        named
            .filter(|(name, _)| !name.contains("localhost") && !name.starts_with("ip6-") && name != "sandbox")
            .filter_map(|(name, address)| Some((name, address?)))
            .find(|(_, address)| std::net::TcpListener::bind((*address, 0)).is_ok())
    }

    /// Answer for as long as the runtime lives.
    pub fn serve(listener: std::net::TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
                        let _ = stream.write_all(b"pong\n").await;
                        line.clear();
                    }
                });
            }
        });
        Ok(())
    }

    fn network(&self) -> Network {
        format!("{}:{}", self.name, self.server.port()).parse().unwrap()
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec { network: self.network(), ..spec() }
    }
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("name", &self.name).field("server", &self.server).finish_non_exhaustive()
    }
}

macro_rules! network_suite {
    ($($name:ident),+ $(,)?) => {
        pub(super) fn cases() -> Vec<Case> {
            vec![$(Case {
                name: concat!("network::", stringify!($name)),
                needs: Needs::Network,
                run: |engine, given| {
                    let outside = given.outside.expect("a case about networks is given what is outside").clone();
                    Box::pin($name(engine, outside))
                },
            }),+]
        }
    };
}

network_suite! {
    an_allowed_name_is_reached_by_a_program_without_settings,
    an_allowed_name_is_reached_by_the_proxy,
    an_allowed_name_has_addresses_of_both_families,
    a_name_that_is_not_allowed_does_not_resolve_and_is_told,
    a_port_that_is_not_allowed_is_told,
    the_machine_itself_is_out_of_reach,
    two_sandboxes_do_not_reach_each_other,
    without_a_network_there_is_nothing,
    what_happened_before_a_run_is_not_part_of_it,
    the_next_process_serves_it_too,
    a_secret_is_a_placeholder_inside,
    a_secret_that_cannot_be_used_is_refused,
    a_create_that_is_dropped_leaves_nothing,
    it_is_reported,
    many_at_once,
}

/// Connect, say one line, print what comes back. By the shell, which looks names up as every program does.
fn ask(host: &str, port: u16) -> String {
    format!("bash -c 'exec 3<>/dev/tcp/{host}/{port} && echo ping >&3 && head -n 1 <&3'")
}

/// The same by way of the proxy that the environment names.
fn ask_by_proxy(host: &str, port: u16) -> String {
    format!(
        "bash -c 'proxy=${{HTTPS_PROXY#http://}}; proxy=${{proxy%/}}; exec 3<>/dev/tcp/${{proxy%:*}}/${{proxy##*:}} && \
         printf \"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n\" >&3 && read -r status <&3 && \
         echo \"$status\" && case $status in *\" 200 \"*) ;; *) exit 1 ;; esac && while read -r line <&3 && [ ${{#line}} -gt 1 ]; do :; done && echo ping >&3 && head -n 1 <&3'"
    )
}

fn assert_reached(ended: &Ended) {
    let complaint = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status(), ExecStatus::Exited(0), "{} {complaint}", ended.text());
    assert!(ended.text().ends_with("pong\n"), "{} {complaint}", ended.text());
    let NetworkActivity { usage, refused, .. } = &ended.outcome.network;
    assert_eq!((usage.connections, usage.refused, refused.as_slice()), (1, 0, [].as_slice()));
}

/// It did not get through, and the outcome says why.
fn assert_refused(ended: &Ended, host: &str, denial: Denial) {
    assert!(!ended.text().contains("pong"), "{}", ended.text());
    assert_ne!(ended.status(), ExecStatus::Exited(0), "{}", ended.text());
    let host: Host = host.parse().unwrap();
    let refused = &ended.outcome.network.refused;
    assert!(refused.iter().any(|refusal| refusal.host == host && refusal.denial == denial), "{host}: {refused:?}");
}

async fn an_allowed_name_is_reached_by_a_program_without_settings(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::with(engine, outside.spec()).await;
    assert_reached(&sandbox.run(&shell(&ask(&outside.name, outside.server.port()))).await);
    // A program may have its bytes, and be gone, before whoever carried them has counted.
    eventually("every byte is counted once", seconds(5), || async {
        let usage = sandbox.engine.usage(&sandbox.id).await.unwrap().network.unwrap();
        assert_eq!((usage.connections, usage.refused), (1, 0));
        (usage.bytes_out, usage.bytes_in) == (5, 5)
    })
    .await;
    sandbox.destroy().await;
}

async fn an_allowed_name_is_reached_by_the_proxy(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::with(engine, outside.spec()).await;
    let ended = sandbox.run(&shell(&ask_by_proxy(&outside.name, outside.server.port()))).await;
    assert_reached(&ended);
    assert!(ended.text().contains(" 200 "), "{}", ended.text());
    sandbox.destroy().await;
}

/// Asked as many programs do: for addresses of a family that the machine is configured for.
async fn an_allowed_name_has_addresses_of_both_families(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::with(Arc::clone(&engine), outside.spec()).await;
    for database in ["ahostsv4", "ahostsv6"] {
        let ended = sandbox.run(&shell(&format!("getent {database} {}", outside.name))).await;
        assert_eq!(ended.status(), ExecStatus::Exited(0), "{database}");
        assert!(ended.text().contains("STREAM"), "{database}: {}", ended.text());
    }
    sandbox.destroy().await;
}

async fn a_name_that_is_not_allowed_does_not_resolve_and_is_told(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::with(engine, outside.spec()).await;
    let ended = sandbox.run(&shell(&ask("other.example", outside.server.port()))).await;
    assert_refused(&ended, "other.example", Denial::HostNotAllowed);
    let ended = sandbox.run(&shell(&ask_by_proxy("other.example", outside.server.port()))).await;
    assert_refused(&ended, "other.example", Denial::HostNotAllowed);
    sandbox.destroy().await;
}

async fn a_port_that_is_not_allowed_is_told(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::with(engine, outside.spec()).await;
    let port = outside.server.port() ^ 1;
    for script in [ask(&outside.name, port), ask_by_proxy(&outside.name, port)] {
        assert_refused(&sandbox.run(&shell(&script)).await, &outside.name, Denial::PortNotAllowed);
    }
    sandbox.destroy().await;
}

/// By its addresses and from a sandbox that may reach the whole internet.
async fn the_machine_itself_is_out_of_reach(engine: Arc<dyn Engine>, _: Outside) {
    let sandbox = Subject::with(engine, SandboxSpec { network: Network::Internet, ..spec() }).await;
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    Outside::serve(listener).unwrap();
    // Which address this machine would use for the rest of the world; nothing is sent.
    let own = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("198.51.100.1:9")?;
        socket.local_addr()
    });
    for address in [Some(IpAddr::from([127, 0, 0, 1])), own.ok().map(|own| own.ip())].into_iter().flatten() {
        let ended = sandbox.run(&shell(&ask_by_proxy(&address.to_string(), port))).await;
        assert_refused(&ended, &address.to_string(), Denial::PrivateAddress);
        let ended = sandbox.run(&shell(&ask(&address.to_string(), port))).await;
        assert!(!ended.text().contains("pong"), "{address}: {}", ended.text());
        assert_ne!(ended.status(), ExecStatus::Exited(0));
    }
    let ended = sandbox.run(&shell(&ask_by_proxy("localhost", port))).await;
    assert_refused(&ended, "localhost", Denial::PrivateAddress);
    sandbox.destroy().await;
}

async fn two_sandboxes_do_not_reach_each_other(engine: Arc<dyn Engine>, _: Outside) {
    let wanted = SandboxSpec { network: Network::Internet, ..spec() };
    let (first, second) =
        (Subject::with(Arc::clone(&engine), wanted.clone()).await, Subject::with(engine, wanted).await);
    let listen = "import socket; s = socket.create_server(('0.0.0.0', 7007)); open('ready', 'w')\n\
                  while True: c, _ = s.accept(); c.sendall(b'pong\\n'); c.close()\n";
    first.write("listen.py", listen.as_bytes()).await;
    let listening = first.start(&shell("exec python3 listen.py")).await;
    eventually("it listens", seconds(20), || first.exists("ready")).await;
    let own = first.run(&shell(&ask("127.0.0.1", 7007))).await;
    assert_eq!(own.text(), "pong\n", "{}", String::from_utf8_lossy(&own.stderr));
    for address in ["127.0.0.1", "198.18.0.1", "10.0.0.1"] {
        let ended = second.run(&shell(&ask(address, 7007))).await;
        assert!(!ended.text().contains("pong"), "{address}: {}", ended.text());
        assert_ne!(ended.status(), ExecStatus::Exited(0), "{address}");
    }
    drop(listening);
    first.destroy().await;
    second.destroy().await;
}

async fn without_a_network_there_is_nothing(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    for host in [outside.name.as_str(), "203.0.113.7", "127.0.0.1"] {
        let started = std::time::Instant::now();
        let ended = sandbox.run(&shell(&ask(host, outside.server.port()))).await;
        assert_ne!(ended.status(), ExecStatus::Exited(0), "{host}: {}", ended.text());
        assert_eq!(ended.outcome.network, NetworkActivity::default());
        assert!(started.elapsed() < seconds(4), "a look-up that cannot succeed fails at once");
    }
    assert_eq!(sandbox.says("echo \"$HTTPS_PROXY$https_proxy\"").await, "\n");
    assert_eq!(engine.usage(&sandbox.id).await.unwrap().network, None);
    sandbox.destroy().await;
}

async fn what_happened_before_a_run_is_not_part_of_it(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::with(engine, outside.spec()).await;
    sandbox.run(&shell(&ask("other.example", 443))).await;
    assert_reached(&sandbox.run(&shell(&ask(&outside.name, outside.server.port()))).await);
    assert_eq!(sandbox.run(&shell("true")).await.outcome.network, NetworkActivity::default());
    sandbox.destroy().await;
}

/// One that stays, while the process that made it still serves it and when it is gone.
async fn the_next_process_serves_it_too(engine: Arc<dyn Engine>, outside: Outside) {
    if !engine.capabilities().await.unwrap().persistence {
        return;
    }
    let sandbox = Subject::with(engine, SandboxSpec { persistence: Persistence::Persistent, ..outside.spec() }).await;
    let script = ask(&outside.name, outside.server.port());
    assert_reached(&sandbox.run(&shell(&script)).await);
    let id = sandbox.id.clone();
    let next = Subject { engine: Arc::clone(&outside.next), id: id.clone(), files: outside.next.files(&id) };
    assert_eq!(next.says(&script).await, "pong\n", "while the first one serves it");
    drop(sandbox);
    eventually("the next one serves it", seconds(10), || async {
        let ended = next.run(&shell(&script)).await;
        ended.text() == "pong\n" && ended.outcome.network.usage.connections == 1
    })
    .await;
    assert_refused(&next.run(&shell(&ask("other.example", 443))).await, "other.example", Denial::HostNotAllowed);
    next.destroy().await;
    assert!(!is_listed(&outside.next, &id).await);
}

/// Of the value there is nothing, and what programs need to trust whoever puts it in is where the environment says. The
/// next process finds the same.
async fn a_secret_is_a_placeholder_inside(engine: Arc<dyn Engine>, outside: Outside) {
    let (secret, value) = &outside.secret;
    let mut wanted = outside.spec();
    wanted.secrets.insert(secret.clone());
    if engine.capabilities().await.unwrap().persistence {
        wanted.persistence = Persistence::Persistent;
    }
    let sandbox = Subject::with(engine, wanted.clone()).await;
    let script = format!("echo \"${secret}\"; grep -c BEGIN \"$SSL_CERT_FILE\"");
    let shown = sandbox.says(&script).await;
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].len() > 8 && lines[0] != value, "{shown}");
    assert!(lines[1].parse::<u32>().unwrap() > 0, "{shown}");
    assert!(!sandbox.says("env").await.contains(value.as_str()));
    let id = sandbox.id.clone();
    if wanted.persistence == Persistence::Persistent {
        drop(sandbox);
        let next = Subject { engine: Arc::clone(&outside.next), id: id.clone(), files: outside.next.files(&id) };
        assert_eq!(next.says(&script).await, shown);
    }
    outside.next.destroy(&id).await.unwrap();
}

async fn a_secret_that_cannot_be_used_is_refused(engine: Arc<dyn Engine>, outside: Outside) {
    let elsewhere = "elsewhere.example".parse().unwrap();
    for (secret, network, refused) in [
        (outside.secret.0.as_str(), Network::None, ErrorKind::InvalidInput),
        (outside.secret.0.as_str(), elsewhere, ErrorKind::InvalidInput),
        ("TOKEN_THAT_NOBODY_KNOWS", outside.network(), ErrorKind::NotFound),
    ] {
        let mut wanted = SandboxSpec { network, ..spec() };
        wanted.secrets.insert(secret.parse().unwrap());
        let id = SandboxId::random().unwrap();
        assert_eq!(kind(engine.create(&id, &wanted).await), refused, "{secret}");
        assert!(!is_listed(&engine, &id).await);
    }
}

async fn a_create_that_is_dropped_leaves_nothing(engine: Arc<dyn Engine>, outside: Outside) {
    for micros in [0, 50, 200, 500, 1000, 2000, 3000, 4000, 6000, 8000, 16_000] {
        let id = SandboxId::random().unwrap();
        let made = tokio::time::timeout(Duration::from_micros(micros), engine.create(&id, &outside.spec())).await;
        if let Ok(result) = made {
            result.unwrap();
        } else {
            let gone = || async { !is_listed(&engine, &id).await };
            eventually("the dropped create was cleared away", seconds(5), gone).await;
        }
        engine.destroy(&id).await.unwrap();
        assert_eq!(kind(engine.usage(&id).await), ErrorKind::NotFound);
    }
}

async fn it_is_reported(engine: Arc<dyn Engine>, outside: Outside) {
    let sandbox = Subject::with(Arc::clone(&engine), outside.spec()).await;
    let report = engine.isolation(&sandbox.id).await.unwrap();
    let layer = report.layers.iter().find(|report| report.layer == Layer::NetworkNamespace).unwrap();
    assert!(layer.detail.contains(&outside.network().to_string()), "{}", layer.detail);
    sandbox.destroy().await;
}

async fn many_at_once(engine: Arc<dyn Engine>, outside: Outside) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let (engine, outside) = (Arc::clone(&engine), outside.clone());
        tasks.spawn(async move {
            let sandbox = Subject::with(engine, outside.spec()).await;
            assert_reached(&sandbox.run(&shell(&ask(&outside.name, outside.server.port()))).await);
            sandbox.destroy().await;
        });
    }
    tasks.join_all().await;
}
