//! Every wall that the isolation report names, judged by the host: by what the kernel says of a program of a sandbox, and by
//! what reaches others. Each judgement is also made of a container without walls, where it must turn out the other way.

use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum};
use engine_docker::{DockerEngine, Flavour};
use sandbox::{Engine, ErrorKind, ExecRequest, ExecStatus, Layer, LayerState, Limits, SandboxId};

use crate::Case;
use crate::seen::Seen;
use crate::world::{World, eventually, make, says, spec};

pub const CASES: &[Case] = &[
    ("outside::every_wall_stands_as_the_host_sees_it", |world| Box::pin(walls(world))),
    ("outside::a_program_kills_nobody_elses", |world| Box::pin(kills(world))),
    ("outside::nobody_hears_of_it", |world| Box::pin(silence(world))),
    ("outside::a_bomb_stays_within_its_bounds", |world| Box::pin(bombs(world))),
];

const NOTHING: &str = "0000000000000000";

/// A wall, and what is wrong with it.
type Judgement = (&'static str, fn(&Seen, &Limits) -> Option<String>);

fn unless(stands: bool, otherwise: impl Into<String>) -> Option<String> {
    (!stands).then(|| otherwise.into())
}

fn apart(seen: &Seen, kind: &str) -> Option<String> {
    unless(seen.is_apart(kind), format!("the {kind} namespace is the host's"))
}

const JUDGEMENTS: &[Judgement] = &[
    ("pid namespace", |seen, _| apart(seen, "pid")),
    ("mount namespace", |seen, _| apart(seen, "mnt")),
    ("network namespace", |seen, _| apart(seen, "net")),
    ("ipc namespace", |seen, _| apart(seen, "ipc")),
    ("uts namespace", |seen, _| apart(seen, "uts")),
    ("cgroup namespace", |seen, _| apart(seen, "cgroup")),
    ("network", |seen, _| {
        let devices = seen.network_devices();
        unless(devices == ["lo"], format!("{devices:?}"))
    }),
    ("capabilities", |seen, _| {
        let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|set| seen.field(set));
        unless(sets.iter().all(|set| set == NOTHING), format!("{sets:?}"))
    }),
    ("user", |seen, _| {
        let ids = [seen.field("Uid"), seen.field("Gid"), seen.field("Groups")];
        unless(ids == ["1000 1000 1000 1000", "1000 1000 1000 1000", ""], format!("{ids:?}"))
    }),
    ("no new privileges", |seen, _| unless(seen.field("NoNewPrivs") == "1", seen.field("NoNewPrivs"))),
    ("seccomp", |seen, _| unless(seen.field("Seccomp") == "2", seen.field("Seccomp"))),
    ("descriptors", |seen, _| {
        let open = seen.descriptors();
        unless(open == [0, 1, 2], format!("{open:?}"))
    }),
    ("open files", |seen, limits| {
        let limit = seen.limit("Max open files");
        unless(limit == format!("{0} {0}", limits.open_files), limit)
    }),
    ("core files", |seen, _| unless(seen.limit("Max core file size") == "0 0", seen.limit("Max core file size"))),
    ("read-only root", |seen, _| {
        let writable = |(_, options, kind): &&(String, String, String)| {
            options.split(',').any(|option| option == "rw")
                && !["tmpfs", "devpts", "mqueue", "proc"].contains(&kind.as_str())
        };
        let mounts = seen.mounts();
        let found: Vec<_> = mounts.iter().filter(writable).map(|(point, ..)| point).collect();
        unless(found.is_empty(), format!("{found:?}"))
    }),
    ("masked files", |seen, _| {
        let mounts = seen.mounts();
        let is_closed = |path: &str, word: &str| {
            mounts.iter().any(|(point, options, kind)| {
                point == path && (kind == "tmpfs" || options.split(',').any(|option| option == word))
            })
        };
        let open: Vec<&str> = ["/proc/sys", "/proc/sysrq-trigger", "/proc/kcore"]
            .into_iter()
            // Not every kernel has them all.
            .filter(|path| std::path::Path::new(path).exists() && !is_closed(path, "ro"))
            .collect();
        unless(open.is_empty(), format!("{open:?}"))
    }),
    ("memory", |seen, limits| {
        let most = seen.group("memory", &["memory.max", "memory.limit_in_bytes"]);
        unless(most == limits.memory.bytes().to_string(), most)
    }),
    ("swap", |seen, limits| {
        let most = seen.group("memory", &["memory.swap.max", "memory.memsw.limit_in_bytes"]);
        unless(most == "0" || most == limits.memory.bytes().to_string(), most)
    }),
    ("processes", |seen, limits| {
        let most = seen.group("pids", &["pids.max"]);
        unless(most == (limits.processes + 4).to_string(), most)
    }),
    ("processors", |seen, limits| {
        let quota = seen.group("cpu", &["cpu.max", "cpu.cfs_quota_us"]);
        let first = quota.split(' ').next().unwrap_or_default();
        unless(first == (limits.cpu_millis * 100).to_string(), quota.clone())
    }),
    ("bounded places", |seen, limits| {
        let size = format!("size={}k", limits.disk.bytes().min(limits.memory.bytes() / 4 * 3) >> 10);
        let mounts = seen.mounts();
        let unbounded: Vec<&str> = ["/workspace", "/home/sandbox", "/tmp"]
            .into_iter()
            .filter(|place| !mounts.iter().any(|(point, options, _)| point == place && options.contains(&size)))
            .collect();
        unless(unbounded.is_empty(), format!("{unbounded:?}"))
    }),
    ("the daemon", |seen, _| {
        let shown: Vec<&str> = ["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"]
            .into_iter()
            .filter(|path| seen.sees(path))
            .collect();
        let environment = seen.environment();
        unless(shown.is_empty() && !environment.contains("SANDPEN_"), format!("{shown:?} {environment}"))
    }),
];

/// Start a program that stays, and find it from here.
async fn held(engine: &DockerEngine, id: &SandboxId) -> (sandbox::Process, Seen) {
    let mark = mark();
    let request = ExecRequest::new(["sleep", &mark], Duration::from_secs(120)).unwrap();
    let process = engine.start(id, &request).await.unwrap();
    eventually("the program is seen from the host", async || Seen::marked(&mark).is_some()).await;
    (process, Seen::marked(&mark).unwrap())
}

/// A time to sleep that nobody else sleeps.
fn mark() -> String {
    let id = SandboxId::random().unwrap();
    let digits: String = id.as_str().bytes().skip(3).map(|byte| char::from(b'0' + byte % 10)).collect();
    format!("600.{digits}")
}

/// A container without any wall that a daemon can leave out, which runs this.
async fn naked(world: &World, words: &[&str]) -> String {
    let body = ContainerCreateBody {
        image: Some(world.place.image.clone()),
        cmd: Some(words.iter().map(|word| (*word).to_owned()).collect()),
        user: Some("0:7".to_owned()),
        env: Some(vec!["SANDPEN_CANARY=1".to_owned()]),
        host_config: Some(HostConfig {
            security_opt: Some(vec!["seccomp=unconfined".to_owned()]),
            masked_paths: Some(Vec::new()),
            readonly_paths: Some(Vec::new()),
            network_mode: Some("host".to_owned()),
            pid_mode: Some("host".to_owned()),
            ipc_mode: Some("host".to_owned()),
            uts_mode: Some("host".to_owned()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::HOST),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let made = world.docker.create_container(None, body).await.unwrap();
    world.docker.start_container(&made.id, None).await.unwrap();
    made.id
}

async fn walls(world: World) {
    if world.is_gvisor() {
        return gvisor(world).await;
    }
    let engine = world.engine().await;
    let limits = Limits { cpu_millis: 700, processes: 77, open_files: 512, ..Limits::default() };
    let id = make(&engine, &sandbox::SandboxSpec { limits, ..spec() }).await;
    let (process, seen) = held(&engine, &id).await;
    let told = engine.isolation(&id).await.unwrap();
    let is_told = |wall: &str| wall == "cgroup namespace" && told.state(Layer::CgroupNamespace) == LayerState::Off;
    let judgements = judged(&seen, &limits).into_iter().filter(|(wall, _)| !is_told(wall));
    let breaches: Vec<_> = judgements.filter_map(|(wall, said)| Some((wall, said?))).collect();
    assert!(breaches.is_empty(), "{breaches:?}");
    drop(process);
    engine.destroy(&id).await.unwrap();
    eventually("nothing of it is left", async || !seen.runs()).await;

    let mark = mark();
    // A descriptor more than others have, which the daemon does not open.
    let container = naked(&world, &["sh", "-c", &format!("exec sleep {mark} 9< /etc/passwd")]).await;
    eventually("the program is seen from the host", async || Seen::marked(&mark).is_some()).await;
    let seen = Seen::marked(&mark).unwrap();
    let judged = judged(&seen, &limits);
    world.remove(&container).await;
    let blind: Vec<_> = judged.into_iter().filter(|(_, said)| said.is_none()).map(|(wall, _)| wall).collect();
    // Every container has a tree of mounts of its own; Podman bounds what core files there are, and its API has no way to leave
    // out what it masks.
    let expected: &[&str] = match world.place.flavour {
        Flavour::Docker => &["mount namespace"],
        Flavour::Podman => &["mount namespace", "core files", "masked files"],
    };
    let unexpected: Vec<_> = blind.iter().filter(|wall| !expected.contains(wall)).collect();
    assert!(unexpected.is_empty(), "these judgements hold without their wall: {unexpected:?}");
}

fn judged(seen: &Seen, limits: &Limits) -> Vec<(&'static str, Option<String>)> {
    JUDGEMENTS.iter().map(|(wall, judge)| (*wall, judge(seen, limits))).collect()
}

/// What holds programs there is gVisor, a program of the host, and what holds gVisor are the host's walls.
async fn gvisor(world: World) {
    let engine = world.engine().await;
    let limits = Limits::default();
    let id = make(&engine, &spec()).await;
    let inspected = world.docker.inspect_container(&format!("sandpen-{id}"), None).await.unwrap();
    let seen = Seen::gvisor(&inspected.id.unwrap()).unwrap();
    // By ptrace it holds programs only from the daemon's own namespace of processes; where there is a better way, it leaves it.
    let found = [
        apart(&seen, "mnt"),
        apart(&seen, "net"),
        apart(&seen, "user"),
        unless(seen.field("Seccomp") == "2", "gVisor is not filtered"),
        unless(seen.field("NoNewPrivs") == "1", "gVisor may gain rights"),
        unless(!seen.sees("/etc/passwd"), "gVisor sees the host's files"),
        unless(
            seen.group("memory", &["memory.max", "memory.limit_in_bytes"]) == limits.memory.bytes().to_string(),
            "memory",
        ),
        unless(seen.group("pids", &["pids.max"]).parse::<u32>().is_ok(), "processes"),
    ];
    assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
    // Programs of a sandbox are none of the host's.
    let mark = mark();
    let process =
        engine.start(&id, &ExecRequest::new(["sleep", &mark], Duration::from_secs(60)).unwrap()).await.unwrap();
    assert!(Seen::marked(&mark).is_none(), "a program runs on the host's kernel");
    let kernel = says(&engine, &id, "uname -v; dmesg 2> /dev/null | head -n 1").await;
    let host = std::fs::read_to_string("/proc/sys/kernel/version").unwrap();
    assert!(!kernel.contains(host.trim()), "{kernel}");
    drop(process);
    // What the suite asks in ways that this kernel does not know.
    engine.files(&id).make_directory(&"made".parse().unwrap()).await.unwrap();
    let script = "id -u; grep -c '^Cap.*0000000000000000' /proc/self/status; grep -c ^Cap /proc/self/status; \
                  setpriv --dump 2> /dev/null | grep no_new_privs; find made -printf '%U\\n'";
    assert_eq!(says(&engine, &id, script).await, "1000\n4\n4\nno_new_privs: 1\n1000\n");
    let network = sandbox::SandboxSpec { network: sandbox::Network::Internet, ..spec() };
    let refused = engine.create(&SandboxId::random().unwrap(), &network).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    // What is over the limit ends the sandbox, and that is told.
    let hungry = ExecRequest::shell("head -c 2000000000 /dev/zero | tail -n 1 > /dev/null", Duration::from_secs(100));
    let ended = engine.start(&id, &hungry.unwrap()).await.unwrap().control.wait().await.unwrap();
    assert_eq!(ended.status, ExecStatus::OutOfMemory, "{ended:?}");
    let next = engine.start(&id, &ExecRequest::shell("true", Duration::from_secs(30)).unwrap()).await;
    assert_eq!(next.unwrap_err().kind(), ErrorKind::NotFound);
    engine.destroy(&id).await.unwrap();
    eventually("gVisor is gone with it", async || !seen.runs()).await;
}

/// Programs of all sandboxes have one user id on the host, and must not find each other.
async fn kills(world: World) {
    let engine = world.engine().await;
    let (id, other) = (make(&engine, &spec()).await, make(&engine, &spec()).await);
    let bystander = std::process::Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "sleep", "600"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut bystander = bystander.unwrap();
    let script = "for pid in $(seq 1 400); do kill -9 $pid; done 2> /dev/null; kill -9 -1";
    let request = ExecRequest::shell(script, Duration::from_secs(60)).unwrap();
    let ended = engine.start(&id, &request).await.unwrap();
    ended.control.wait().await.unwrap();
    assert_eq!(says(&engine, &other, "echo alive").await, "alive\n");
    assert!(bystander.try_wait().unwrap().is_none(), "a process of the host with the same user was killed");
    assert_eq!(says(&engine, &id, "echo alive").await, "alive\n", "what is ours is another user's");

    bystander.kill().unwrap();
    bystander.wait().unwrap();

    // The same among containers without the wall, which see all processes of the daemon's own namespace.
    let mark = mark();
    let victim = naked(&world, &["sleep", &mark]).await;
    eventually("the victim is seen from the host", async || Seen::marked(&mark).is_some()).await;
    let rest = &mark[1..];
    let script = format!(
        "for place in /proc/[0-9]*; do grep -a -q '[6]{rest}' $place/cmdline && kill -9 ${{place#/proc/}}; done; sleep 60"
    );
    let killer = naked(&world, &["sh", "-c", &script]).await;
    eventually("without the wall it is killed", async || !Seen::marked(&mark).is_some_and(|seen| seen.runs())).await;
    world.remove(&killer).await;
    world.remove(&victim).await;
    engine.destroy(&id).await.unwrap();
    engine.destroy(&other).await.unwrap();
}

/// Somebody on the host listens, on all its addresses.
async fn silence(world: World) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Arc::new(AtomicBool::new(false));
    let hears = heard.clone();
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            hears.store(true, Ordering::Relaxed);
        }
    });
    let program = format!(
        "import socket\n\
         for address in ['127.0.0.1', '172.17.0.1', '10.88.0.1', socket.gethostname()]:\n    \
             try:\n        socket.create_connection((address, {port}), 2)\n    \
             except OSError as error: print('refused')\n"
    );
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let said = says(&engine, &id, &format!("python3 -c \"{program}\"")).await;
    assert_eq!(said.matches("refused").count(), 4, "{said}");
    assert!(!heard.load(Ordering::Relaxed), "the host was reached");
    engine.destroy(&id).await.unwrap();

    let container = naked(&world, &["python3", "-c", &program]).await;
    eventually("without the wall it is", async || heard.load(Ordering::Relaxed)).await;
    world.remove(&container).await;
}

async fn bombs(world: World) {
    let engine = world.engine().await;
    let limits = Limits { processes: 32, ..Limits::default() };
    let id = make(&engine, &sandbox::SandboxSpec { limits, ..spec() }).await;
    let (_held, inhabitant) = if world.is_gvisor() {
        let inspected = world.docker.inspect_container(&format!("sandpen-{id}"), None).await.unwrap();
        (None, Seen::gvisor(&inspected.id.unwrap()).unwrap())
    } else {
        let (process, seen) = held(&engine, &id).await;
        (Some(process), seen)
    };
    let most: u64 = inhabitant.group("pids", &["pids.max"]).parse().unwrap();
    let bomb = "bomb() { bomb | bomb & }; bomb; sleep 600";
    let request = ExecRequest::shell(bomb, Duration::from_secs(5)).unwrap();
    let process = engine.start(&id, &request).await.unwrap();
    let mut peak = 0;
    // Often: shells that are refused a process end, so that there are many for a moment only.
    for _ in 0..800 {
        peak = peak.max(inhabitant.group("pids", &["pids.current"]).parse().unwrap_or(0));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(peak > 8, "it is no bomb: {peak}");
    assert!(peak <= most, "{peak} of {most}");
    // It ends at its deadline with all that it started; or gVisor with it, which cannot live without more threads.
    let _ = process.control.wait().await;
    match engine.start(&id, &ExecRequest::shell("true", Duration::from_secs(30)).unwrap()).await {
        Ok(_) => {
            let left = async || inhabitant.group("pids", &["pids.current"]).parse().unwrap_or(0) <= 12;
            eventually("nothing of it is left", left).await;
        }
        Err(error) => {
            assert!(world.is_gvisor(), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        }
    }
    engine.destroy(&id).await.unwrap();
    eventually("the sandbox is gone", async || !inhabitant.runs()).await;
}
