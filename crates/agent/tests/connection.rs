//! What the suite cannot ask for: bridges that die, streams that are cut, slow readers, crowds, and programs that mean ill.

mod hosted;
mod hostile;
#[path = "network/mod.rs"]
mod network;
mod signals;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent::Connection;
use agent::frame::{Frame, Kind, Lane};
use hosted::{Bridge, Hosted, Link, Settings};
use libtest_mimic::{Arguments, Completion, Trial};
use sandbox::{
    ByteRange, ErrorKind, ExecRequest, ExecStatus, OnDisconnect, OutputTarget, Persistence, Process, WriteOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

macro_rules! trials {
    ($($name:path),+ $(,)?) => {
        vec![$((stringify!($name), || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async { tokio::time::timeout(PATIENCE, $name()).await.expect("it does not hang") });
        })),+]
    };
}

const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let cases: Vec<(&'static str, fn())> = trials![
        an_ephemeral_one_ends_with_its_bridge,
        an_ephemeral_one_ends_with_its_own_streams,
        an_ephemeral_one_ends_when_nobody_comes,
        a_bridge_ends_when_its_server_is_silent,
        a_persistent_one_outlives_its_bridge,
        a_persistent_one_outlives_its_own_streams,
        a_persistent_one_ends_when_nobody_uses_it,
        one_that_is_told_to_stay_stays,
        without_the_token_nobody_gets_in,
        programs_cannot_reach_our_processes,
        programs_have_no_right_at_all,
        a_slow_reader_holds_up_nobody,
        fifty_commands_at_once,
        large_files_do_not_grow_us,
        much_output_does_not_grow_us,
        a_detached_command_goes_on_alone,
        nothing_is_taken_while_frozen,
        descriptors_do_not_pile_up,
        a_deadline_ends_it,
        hostile::a_flood_for_the_log_is_ended_in_time,
        hostile::a_flood_of_the_dead_is_ended_in_time,
        hostile::a_program_that_stops_what_starts_ends_the_sandbox,
        hostile::a_script_is_written_to_a_file_only,
        network::connections_are_caught_wherever_they_go,
        network::a_connection_that_is_dropped_is_cut,
        network::much_goes_through_many_connections,
        network::questions_for_names_are_answered,
        network::the_network_is_not_the_programs_to_change,
        network::without_a_network_nobody_comes,
        network::only_usual_sockets_can_be_made,
        signals::a_supervisor_that_is_killed_or_stopped_takes_the_sandbox_along,
        signals::a_stop_that_comes_from_inside_is_none,
        signals::a_helper_that_stands_by_does_so_too,
        signals::a_bridge_that_is_stopped_is_not_waited_for,
        signals::a_bridge_that_is_stopped_has_no_hold_on_its_sandbox,
    ];
    let lacking = hosted::lacking();
    let trials = cases.into_iter().map(|(name, run)| {
        Trial::ignorable_test(name, move || match lacking {
            Some(lacking) => Ok(Completion::ignored_with(lacking)),
            None => {
                run();
                Ok(Completion::Completed)
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn attached(mut settings: Settings) -> Settings {
    settings.process_1.streams = agent::HostedStreams::Bridge;
    settings
}

fn persistent(idle: Duration) -> Settings {
    let mut settings = Settings::default();
    settings.process_1.persistence = Persistence::Persistent;
    settings.process_1.idle = idle;
    settings
}

const LONG: Duration = Duration::from_secs(600);

/// What a server says first.
fn presented(token: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame::new(Kind::Present, 0, Lane::Messages, token.as_bytes()).write(&mut bytes);
    bytes
}

fn shell(script: &str) -> ExecRequest {
    let mut request = ExecRequest::shell(script, Duration::from_secs(100)).unwrap();
    request.environment.insert("PATH", "/usr/bin:/bin").unwrap();
    request
}

async fn says(link: &Link, request: &ExecRequest) -> (ExecStatus, String) {
    says_over(&link.connection, request).await
}

async fn says_over(connection: &Connection, request: &ExecRequest) -> (ExecStatus, String) {
    let Process { stdin, mut stdout, mut stderr, control } = connection.start(request).await.unwrap();
    drop(stdin);
    let (mut text, mut errors) = (String::new(), String::new());
    let (output, _) = tokio::join!(stdout.read_to_string(&mut text), stderr.read_to_string(&mut errors));
    output.unwrap();
    (control.wait().await.unwrap().status, text)
}

/// Whether a process with this word among its arguments runs, as the machine sees it.
fn runs(mark: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|entry| {
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        arguments.split(|&byte| byte == 0).any(|argument| argument == mark.as_bytes())
    })
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The bridge itself, not the tool that started it.
async fn kill_bridge(link: &Link) {
    let bridge = hosted::first_child(link.bridge.id().unwrap()).await;
    rustix::process::kill_process(rustix::process::Pid::from_raw(bridge).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
}

async fn an_ephemeral_one_ends_with_its_bridge() {
    for by_kill in [true, false] {
        let mut sandbox = Hosted::start(&Settings::default()).await;
        let link = sandbox.connect().await.unwrap();
        let process = link.connection.start(&shell("sleep 7101 & sleep 7101")).await.unwrap();
        if by_kill {
            kill_bridge(&link).await;
            assert_eq!(link.connection.closed().await.kind(), ErrorKind::Unavailable);
            assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Killed);
        } else {
            drop(process);
            drop(link);
        }
        sandbox.ended().await;
        eventually("nothing is left", || !runs("7101")).await;
    }
}

async fn an_ephemeral_one_ends_with_its_own_streams() {
    let mut sandbox = Hosted::start(&attached(Settings::default())).await;
    let connection = sandbox.attach().await.unwrap();
    assert_eq!(says_over(&connection, &shell("echo there")).await, (ExecStatus::Exited(0), "there\n".into()));
    let second = sandbox.connect().await.unwrap();
    let process = second.connection.start(&shell("sleep 7105 & sleep 7105")).await.unwrap();
    eventually("the command runs", || runs("7105")).await;
    drop(connection);
    sandbox.ended().await;
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Killed);
    eventually("nothing is left", || !runs("7105")).await;
}

async fn an_ephemeral_one_ends_when_nobody_comes() {
    let mut sandbox = Hosted::start(&Settings::default()).await;
    sandbox.wait_for_program().await;
    let begun = Instant::now();
    assert!(sandbox.ended().await.success());
    assert!(begun.elapsed() > Duration::from_secs(20), "it did not wait");
}

/// As when the server was killed and the daemon holds the bridge's stdin open.
async fn a_bridge_ends_when_its_server_is_silent() {
    let mut sandbox = Hosted::start(&persistent(LONG)).await;
    let link = sandbox.connect().await.unwrap();
    let process = link.connection.start(&shell("sleep 7104")).await.unwrap();
    let begun = Instant::now();
    let Bridge { mut child, mut stdin, mut stdout } = sandbox.bridge().unwrap();
    stdin.write_all(&presented(hosted::TOKEN)).await.unwrap();
    let mut heard = Vec::new();
    stdout.read_to_end(&mut heard).await.unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(4));
    assert!(heard.len() > 16, "a bridge says that it is there, also when nobody answers: {}", heard.len());
    assert!(begun.elapsed() > Duration::from_secs(50), "it did not wait");
    drop(stdin);
    // A server that is there has as little to say, and is longer there.
    assert!(!link.connection.is_closed(), "a server that is there counts as silent");
    process.control.kill().await.unwrap();
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Cancelled);
    sandbox.kill().await;
}

async fn a_persistent_one_outlives_its_bridge() {
    let mut sandbox = Hosted::start(&persistent(LONG)).await;
    let link = sandbox.connect().await.unwrap();
    let _process = link.connection.start(&shell("touch /tmp/kept; sleep 7102")).await.unwrap();
    eventually("the command runs", || runs("7102")).await;
    kill_bridge(&link).await;
    eventually("the command is killed", || !runs("7102")).await;
    let next = sandbox.connect().await.unwrap();
    assert_eq!(says(&next, &shell("ls /tmp/kept")).await, (ExecStatus::Exited(0), "/tmp/kept\n".into()));
    sandbox.kill().await;
}

async fn a_persistent_one_outlives_its_own_streams() {
    let mut sandbox = Hosted::start(&attached(persistent(LONG))).await;
    let connection = sandbox.attach().await.unwrap();
    let process = connection.start(&shell("touch /tmp/kept; sleep 7106")).await.unwrap();
    eventually("the command runs", || runs("7106")).await;
    drop((process, connection));
    eventually("the command is killed", || !runs("7106")).await;
    let next = sandbox.connect().await.unwrap();
    assert_eq!(says(&next, &shell("ls /tmp/kept")).await.1, "/tmp/kept\n");
    // Whoever is at the other ends would otherwise never see them close.
    let streams = (0..3).map(|number| format!("/proc/{}/fd/{number}", sandbox.process_1));
    for stream in streams {
        assert!(std::fs::read_link(&stream).unwrap().ends_with("dev/null"), "{stream}");
    }
    sandbox.kill().await;
}

async fn a_persistent_one_ends_when_nobody_uses_it() {
    let mut sandbox = Hosted::start(&persistent(Duration::from_millis(300))).await;
    let link = sandbox.connect().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!sandbox.has_ended(), "somebody is connected");
    drop(link);
    assert!(sandbox.ended().await.success());
}

async fn one_that_is_told_to_stay_stays() {
    let mut sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    link.connection.stay().await.unwrap();
    drop(link);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let again = sandbox.connect().await.unwrap();
    assert_eq!(says(&again, &shell("echo there")).await.1, "there\n");
    sandbox.kill().await;
}

async fn without_the_token_nobody_gets_in() {
    let mut settings = persistent(LONG);
    // Programs that are root, as some images need, are the harder case.
    (settings.process_1.user, settings.process_1.group) = (0, 0);
    let mut sandbox = Hosted::start(&settings).await;
    sandbox.wait_for_program().await;
    for token in ["", "a token of the test", "a token of the testsX"] {
        let Bridge { mut child, mut stdin, mut stdout } = sandbox.bridge().unwrap();
        stdin.write_all(&presented(token)).await.unwrap();
        let mut heard = Vec::new();
        stdout.read_to_end(&mut heard).await.unwrap();
        assert_eq!((heard.len(), child.wait().await.unwrap().code()), (0, Some(4)), "{token:?}");
        drop(stdin);
    }
    let link = sandbox.connect().await.unwrap();
    let script = "id -u; /.sandpen/init bridge < /dev/null; echo $?; \
                  cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2> /dev/null | grep -a -c 'token of the test[s]'";
    let (_, text) = says(&link, &shell(script)).await;
    assert_eq!(text, "0\n4\n0\n");
    // What everybody inside can read is the digest, and it opens nothing.
    let digest = says(&link, &shell("tr '\\0' '\\n' < /proc/1/cmdline | grep -x '[0-9a-f]\\{64\\}'")).await.1;
    let Bridge { mut child, mut stdin, stdout: _stdout } = sandbox.bridge().unwrap();
    stdin.write_all(&presented(digest.trim())).await.unwrap();
    assert_eq!((digest.len(), child.wait().await.unwrap().code()), (65, Some(4)));
    sandbox.kill().await;
}

async fn programs_cannot_reach_our_processes() {
    let sandbox = Hosted::start(&Settings::default()).await;
    reaches_nothing(&sandbox.connect().await.unwrap().connection).await;
    let mut sandbox = Hosted::start(&attached(Settings::default())).await;
    reaches_nothing(&sandbox.attach().await.unwrap()).await;
}

async fn reaches_nothing(connection: &Connection) {
    let script = "for file in /proc/[0-9]*; do \
                    pid=${file#/proc/}; [ $pid = $$ ] && continue; \
                    read -r name < $file/comm || continue; \
                    case $name in init|sandpen-init) ;; *) continue ;; esac; \
                    echo ours; \
                    cat $file/environ > /dev/null 2>&1 && echo environ $pid; \
                    head -c 1 $file/mem > /dev/null 2>&1 && echo mem $pid; \
                    ls $file/fd > /dev/null 2>&1 && echo fd $pid; \
                    kill -9 $pid 2> /dev/null && echo kill $pid; \
                    /.sandpen/init bridge < /dev/null > /dev/null 2>&1 && echo let in; \
                  done | sort | uniq -c | tr -s ' '";
    let (status, text) = says_over(connection, &shell(script)).await;
    assert_eq!(status, ExecStatus::Exited(0));
    let ours: usize = text.trim().strip_suffix(" ours").expect(&text).parse().unwrap();
    assert!(ours >= 3, "process 1, a supervisor and a bridge are seen: {text}");
    assert_eq!(says_over(connection, &shell("echo alive")).await.1, "alive\n");
}

async fn programs_have_no_right_at_all() {
    for user in [1000, 0] {
        let mut settings = Settings::default();
        (settings.process_1.user, settings.process_1.group) = (user, user);
        let sandbox = Hosted::start(&settings).await;
        let link = sandbox.connect().await.unwrap();
        let probe = ["/.sandpen/init"].into_iter().chain(agent::Hosted::probe_arguments());
        let (status, report) = says(&link, &ExecRequest::new(probe, Duration::from_secs(30)).unwrap()).await;
        assert_eq!(status, ExecStatus::Exited(0));
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(report.contains(&format!("\"{set}\":\"0000000000000000\"")), "{report}");
        }
        assert!(report.contains("\"NoNewPrivs\":\"1\"") && report.contains("\"Groups\":\"\""), "{report}");
        assert!(report.contains(&format!("\"Uid\":\"{user} {user} {user} {user}\"")), "{report}");
        assert!(report.contains("\"pid\":\"pid:["), "{report}");
    }
}

async fn a_slow_reader_holds_up_nobody() {
    let sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    let mut floods = Vec::new();
    for _ in 0..4 {
        floods.push(link.connection.start(&shell("yes flood")).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for round in 0..10 {
        assert_eq!(says(&link, &shell(&format!("echo {round}"))).await.1, format!("{round}\n"));
    }
    let mut bytes = vec![0; 1 << 20];
    floods[0].stdout.read_exact(&mut bytes).await.unwrap();
    assert!(bytes.starts_with(b"flood\nflood\n"));
    for flood in &floods {
        flood.control.kill().await.unwrap();
        assert_eq!(flood.control.wait().await.unwrap().status, ExecStatus::Cancelled);
    }
}

async fn fifty_commands_at_once() {
    let sandbox = Hosted::start(&Settings::default()).await;
    let link = std::sync::Arc::new(sandbox.connect().await.unwrap());
    let commands: Vec<_> = (0..50)
        .map(|number| {
            let link = link.clone();
            tokio::spawn(async move {
                let script = format!("cat; echo {number} >&2; exit {number}");
                let Process { stdin, mut stdout, mut stderr, control } =
                    link.connection.start(&shell(&script)).await.unwrap();
                let sent = vec![number as u8; 300_000 + number];
                let (mut out, mut err, mut stdin) = (Vec::new(), String::new(), stdin.unwrap());
                let (_, read, _) = tokio::join!(
                    async {
                        stdin.write_all(&sent).await.unwrap();
                        drop(stdin);
                    },
                    stdout.read_to_end(&mut out),
                    stderr.read_to_string(&mut err)
                );
                read.unwrap();
                assert!(out == sent, "{number}: {} bytes of {}", out.len(), sent.len());
                assert_eq!(err, format!("{number}\n"));
                assert_eq!(control.wait().await.unwrap().status, ExecStatus::Exited(number as i32));
            })
        })
        .collect();
    for command in commands {
        command.await.unwrap();
    }
}

/// The most memory that this process, or another, ever had, in bytes.
fn peak_memory(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What a quarter of a gibibyte may add on either side.
const FLAT: u64 = 48 << 20;
const MUCH: u64 = 256 << 20;

async fn large_files_do_not_grow_us() {
    let settings = Settings { disk: MUCH + (1 << 20), ..Settings::default() };
    let sandbox = Hosted::start(&settings).await;
    let link = sandbox.connect().await.unwrap();
    let bridge = hosted::first_child(link.bridge.id().unwrap()).await.to_string();
    let (before, path) = (peak_memory("self"), "/workspace/large".parse().unwrap());
    let files = link.connection.files();
    let mut file = files.write(&path, WriteOptions::default()).await.unwrap();
    let block = vec![0x5a; 1 << 20];
    for _ in 0..MUCH >> 20 {
        file.write_all(&block).await.unwrap();
    }
    file.commit().await.unwrap();
    let mut file = files.read(&path, ByteRange::default()).await.unwrap();
    assert_eq!(file.stat.bytes, MUCH);
    let (mut total, mut bytes) = (0, vec![0; 1 << 20]);
    loop {
        let count = file.stream.read(&mut bytes).await.unwrap();
        if count == 0 {
            break;
        }
        assert!(bytes[..count].iter().all(|&byte| byte == 0x5a));
        total += count as u64;
    }
    assert_eq!(total, MUCH);
    assert!(peak_memory("self") < before + FLAT, "{before} to {}", peak_memory("self"));
    assert!(peak_memory(&bridge) < FLAT, "{}", peak_memory(&bridge));
}

async fn much_output_does_not_grow_us() {
    let sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    let before = peak_memory("self");
    let process = link.connection.start(&shell(&format!("head -c {MUCH} /dev/zero"))).await.unwrap();
    let Process { stdin: _stdin, mut stdout, stderr: _stderr, control } = process;
    let (mut total, mut bytes) = (0, vec![0; 1 << 20]);
    loop {
        match stdout.read(&mut bytes).await.unwrap() {
            0 => break,
            count => total += count as u64,
        }
    }
    assert_eq!(total, MUCH);
    assert_eq!(control.wait().await.unwrap().status, ExecStatus::Exited(0));
    assert!(peak_memory("self") < before + FLAT, "{before} to {}", peak_memory("self"));
}

async fn a_detached_command_goes_on_alone() {
    let mut sandbox = Hosted::start(&persistent(LONG)).await;
    let link = sandbox.connect().await.unwrap();
    let mut request = shell("echo begun; sleep 2; echo done");
    request.on_disconnect = OnDisconnect::Continue;
    request.output = OutputTarget::Log;
    let process = link.connection.start(&request).await.unwrap();
    kill_bridge(&link).await;
    link.connection.closed().await;
    assert_eq!(process.control.wait().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let next = sandbox.connect().await.unwrap();
    let log = loop {
        let logs = next.connection.logs().await.unwrap();
        assert_eq!(logs.len(), 1);
        match logs[0].status {
            Some(_) => break logs.into_iter().next().unwrap(),
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!((log.status, log.output.as_slice()), (Some(ExecStatus::Exited(0)), &b"begun\ndone\n"[..]));
    sandbox.kill().await;
}

async fn nothing_is_taken_while_frozen() {
    let mut sandbox = Hosted::start(&persistent(LONG)).await;
    let (one, other) = (sandbox.connect().await.unwrap(), sandbox.connect().await.unwrap());
    let process = one.connection.start(&shell("sleep 7103")).await.unwrap();
    assert!(one.connection.freeze().await.unwrap().is_none(), "a command runs");
    process.control.kill().await.unwrap();
    process.control.wait().await.unwrap();
    drop(process);
    let frozen = one.connection.freeze().await.unwrap().expect("nothing runs");
    let waiting = tokio::spawn(async move {
        let said = says(&other, &shell("echo late")).await;
        (said, other)
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "work was taken while frozen");
    drop(frozen);
    let ((_, text), _other) = waiting.await.unwrap();
    assert_eq!(text, "late\n");
    sandbox.kill().await;
}

async fn descriptors_do_not_pile_up() {
    let sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    let bridge = hosted::first_child(link.bridge.id().unwrap()).await;
    let files = link.connection.files();
    let path = "/workspace/file".parse().unwrap();
    let open = || std::fs::read_dir(format!("/proc/{bridge}/fd")).unwrap().count();
    let before = open();
    for round in 0..30 {
        says(&link, &shell("echo x; echo y >&2")).await;
        // Abandoned at every stage.
        drop(link.connection.start(&shell("cat")).await.unwrap());
        drop(files.write(&path, WriteOptions::default()).await.unwrap());
        let mut written = files.write(&path, WriteOptions::default()).await.unwrap();
        written.write_all(&vec![0; 500_000]).await.unwrap();
        written.commit().await.unwrap();
        drop(files.read(&path, ByteRange::default()).await.unwrap());
        drop(files.pack(&path).await.unwrap());
        assert!(files.stat(&format!("/nowhere/{round}").parse().unwrap()).await.is_err());
    }
    eventually("the bridge holds nothing more", || open() <= before + 1).await;
}

async fn a_deadline_ends_it() {
    let mut sandbox = Hosted::start(&persistent(LONG)).await;
    let link = sandbox.connect().await.unwrap();
    link.connection.set_deadline(Some(Duration::from_secs(500))).await.unwrap();
    link.connection.set_deadline(Some(Duration::from_millis(300))).await.unwrap();
    link.connection.closed().await;
    assert!(sandbox.ended().await.success());
}
