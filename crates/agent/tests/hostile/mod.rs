//! Programs that want their supervisor to hang, so that nobody would end them.

use std::time::{Duration, Instant};

use sandbox::{ErrorKind, ExecRequest, ExecStatus, OnDisconnect, OutputTarget, Script};
use tokio::io::AsyncReadExt;

use crate::hosted::{Hosted, Settings};
use crate::{LONG, persistent, runs, says, shell};

/// Several, so that there is always something in the pipe, which is as large as it can be.
const FLOOD: &str = "import fcntl, os
fcntl.fcntl(1, 1031, 1 << 20)
os.set_blocking(1, False)
for _ in range(3):
    os.fork()
piece = bytes(4096)
while True:
    try:
        os.write(1, piece)
    except BlockingIOError:
        pass
";

fn python(code: &str, timeout: Duration) -> ExecRequest {
    let mut request = ExecRequest::new(["python3", "-c", code], timeout).unwrap();
    request.environment.insert("PATH", "/usr/bin:/bin").unwrap();
    request
}

pub async fn a_flood_for_the_log_is_ended_in_time() {
    let mut sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    let mut request = python(FLOOD, Duration::from_secs(2));
    (request.on_disconnect, request.output) = (OnDisconnect::Continue, OutputTarget::Log);
    let process = link.connection.start(&request).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), process.control.wait()).await;
    assert_eq!(ended.expect("it is ended").unwrap().status, ExecStatus::TimedOut);

    request.timeout = Duration::from_secs(300);
    let process = link.connection.start(&request).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    process.control.kill().await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), process.control.wait()).await;
    assert_eq!(ended.expect("it is ended").unwrap().status, ExecStatus::Cancelled);
    sandbox.kill().await;
}

/// A child that dies at once, and its parent too, so that both are the supervisor's to collect.
const ORPHANS: &str = "import os
os.fork()
while True:
    try:
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(-1, os.WNOHANG)
    except OSError:
        pass
";

pub async fn a_flood_of_the_dead_is_ended_in_time() {
    let mut sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    let process = link.connection.start(&python(ORPHANS, Duration::from_secs(300))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    process.control.kill().await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), process.control.wait()).await;
    assert_eq!(ended.expect("it is ended").unwrap().status, ExecStatus::Cancelled);
    sandbox.kill().await;
}

/// Whoever is about to become the next program is the same user already, and its supervisor waits for it in the kernel.
pub async fn a_program_that_stops_what_starts_ends_the_sandbox() {
    let mut sandbox = Hosted::start(&persistent(LONG)).await;
    let link = sandbox.connect().await.unwrap();
    let code = "import os, signal
print('begun', flush=True)
while True:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
";
    let mut request = ExecRequest::new(["python3", "-c", code, "7204"], LONG).unwrap();
    request.environment.insert("PATH", "/usr/bin:/bin").unwrap();
    let mut stopping = link.connection.start(&request).await.unwrap();
    stopping.stdout.read_exact(&mut [0; 6]).await.unwrap();
    // A script, so that there is more time for it; and more than one, because the right moment is short.
    let mut request = shell("true");
    request.script = Script::new(&"/workspace/script".parse().unwrap(), &vec![b'#'; Script::MAX_BYTES]);
    let begun = Instant::now();
    let mut caught = Vec::new();
    while let Ok(process) = link.connection.start(&request).await {
        caught.push(process);
        assert!(caught.len() < 100, "none was stopped before it was a program");
    }
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    assert!(!sandbox.ended().await.success());
    assert!(!runs("7204"));
}

/// A pipe that nobody reads would be waited for.
pub async fn a_script_is_written_to_a_file_only() {
    let mut sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    for make in ["mkfifo script", "rm script; mkfifo script; (exec 3<> script; sleep 100) & sleep 0.2"] {
        assert_eq!(says(&link, &shell(make)).await.0, ExecStatus::Exited(0));
        let mut request = shell("true");
        request.script = Script::new(&"/workspace/script".parse().unwrap(), b"true");
        let begun = Instant::now();
        let refused = link.connection.start(&request).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{make}: {refused:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{make}: {:?}", begun.elapsed());
    }
    sandbox.kill().await;
}
