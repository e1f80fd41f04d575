//! Programs that are the same user as our helpers, as some images need, and signal them. Process 1 itself the kernel protects.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use sandbox::{ErrorKind, ExecStatus};

use crate::hosted::{self, Hosted, Link, Settings};
use crate::{LONG, eventually, persistent, runs, says, shell};

/// All of ours but process 1, the supervisor of the script and bridges, whose parent is not in here.
const STANDING_BY: &str = "for process in /proc/[0-9]*; do \
                             read -r pid name state parent rest < $process/stat || continue; \
                             [ \"$name\" = '(init)' ] && [ $parent = 1 ] && [ $pid != $PPID ] && echo $pid; \
                           done 2> /dev/null";

fn as_root(mut settings: Settings) -> Settings {
    (settings.process_1.user, settings.process_1.group) = (0, 0);
    settings
}

/// Nobody would end the command any more: not at its deadline, and not when it is asked for.
pub async fn a_supervisor_that_is_killed_or_stopped_takes_the_sandbox_along() {
    for signal in ["KILL", "STOP"] {
        let mut sandbox = Hosted::start(&as_root(persistent(LONG))).await;
        let link = sandbox.connect().await.unwrap();
        // Once it was told that it has started.
        let script = format!("setsid sleep 7201 & sleep 1; kill -{signal} $PPID; exec sleep 7201");
        let process = link.connection.start(&shell(&script)).await.unwrap();
        let begun = Instant::now();
        assert!(!sandbox.ended().await.success(), "{signal}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{signal}");
        assert_eq!(link.connection.closed().await.kind(), ErrorKind::Unavailable, "{signal}");
        assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Killed, "{signal}");
        assert!(!crate::runs("7201"), "{signal}");
    }
}

/// They can send process 1 what a daemon sends, and say of a queued signal who sent it. Only what comes from outside counts.
pub async fn a_stop_that_comes_from_inside_is_none() {
    let mut sandbox = Hosted::start(&as_root(persistent(LONG))).await;
    let link = sandbox.connect().await.unwrap();
    let script = r#"kill -TERM 1; perl -e '
        my $call = `uname -m` eq "aarch64\n" ? 138 : 129;
        my $about = pack("iiiiii", 15, 0, -1, 0, 0, 0) . ("\0" x 104);
        syscall($call, 1, 15, $about) == 0 and print "sent\n"'
        sleep 1; echo alive"#;
    assert_eq!(says(&link, &shell(script)).await.1, "sent\nalive\n");
    assert_eq!(says(&link, &shell("echo again")).await.1, "again\n");
    assert!(!sandbox.has_ended());
    rustix::process::kill_process(Pid::from_raw(sandbox.process_1).unwrap(), Signal::TERM).unwrap();
    assert!(sandbox.ended().await.success(), "the daemon's own is heard");
}

/// It may have been given a command in the same moment.
pub async fn a_helper_that_stands_by_does_so_too() {
    for signal in ["KILL", "STOP"] {
        let mut sandbox = Hosted::start(&as_root(persistent(LONG))).await;
        let link = sandbox.connect().await.unwrap();
        // Until there is one: it is made after the work that was asked for.
        let script = format!(
            "sleep 1; found=; while [ -z \"$found\" ]; do found=$({STANDING_BY}); done; kill -{signal} $found; sleep 7203"
        );
        let process = link.connection.start(&shell(&script)).await.unwrap();
        assert!(!sandbox.ended().await.success(), "{signal}");
        assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Killed, "{signal}");
    }
}

/// Its stream stays open, and nothing comes.
pub async fn a_bridge_that_is_stopped_is_not_waited_for() {
    let mut sandbox = Hosted::start(&persistent(LONG)).await;
    let link = sandbox.connect().await.unwrap();
    let process = link.connection.start(&shell("sleep 7202")).await.unwrap();
    let bridge = Pid::from_raw(hosted::first_child(link.bridge.id().unwrap()).await).unwrap();
    rustix::process::kill_process(bridge, Signal::STOP).unwrap();
    let begun = Instant::now();
    let (measured, ended) = tokio::join!(link.connection.measure(), process.control.wait());
    assert_eq!(measured.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(ended.unwrap().status, ExecStatus::Killed);
    assert!(begun.elapsed() > Duration::from_secs(30), "a bridge may be late");
    // Another one works: the sandbox is as it was.
    let again = sandbox.connect().await.unwrap();
    assert_eq!(says(&again, &shell("echo there")).await.1, "there\n");
    let_go(&link);
    sandbox.kill().await;
}

/// Its socket stays open, and holds a sandbox that has no server any more.
pub async fn a_bridge_that_is_stopped_has_no_hold_on_its_sandbox() {
    let mut sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    let _process = link.connection.start(&shell("sleep 7105")).await.unwrap();
    eventually("the command runs", || runs("7105")).await;
    let begun = Instant::now();
    let bridge = Pid::from_raw(hosted::first_child(link.bridge.id().unwrap()).await).unwrap();
    rustix::process::kill_process(bridge, Signal::STOP).unwrap();
    assert_eq!(link.connection.measure().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {} s", begun.elapsed().as_secs());
    assert!(!link.connection.is_closed(), "it may be heard again");
    while runs("7105") {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(begun.elapsed() > Duration::from_secs(60), "it did not wait");
    let_go(&link);
    sandbox.ended().await;
}

/// Whoever entered for a bridge stopped with it, and has to see its end.
fn let_go(link: &Link) {
    let entered = link.bridge.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).unwrap();
    rustix::process::kill_process(entered, Signal::CONT).unwrap();
}
