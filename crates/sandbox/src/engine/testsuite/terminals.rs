use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::subject::{Subject, eventually, seconds, shell};
use super::suite;
use crate::engine::{Engine, Process};
use crate::exec::{ExecRequest, ExecStatus, TerminalSize};

suite! { "terminals", Terminal:
    it_is_a_terminal_of_the_asked_size,
    a_resize_is_seen,
    what_is_typed_is_read,
    an_end_of_input_is_typed_too,
    control_c_interrupts,
    the_kind_of_terminal_is_told,
    a_storm_of_resizes_while_output_flows_is_survived,
    what_nobody_reads_still_ends,
    what_stays_behind_does_not_hold_it_open,
    letting_go_while_output_flows_ends_it,
}

fn on_terminal(script: &str) -> ExecRequest {
    let mut request = shell(script);
    request.terminal = Some(TerminalSize { rows: 33, columns: 77 });
    request
}

/// Everything that was printed until the command ended. A terminal may end with an error instead of an end of file.
async fn rest(process: &mut Process) -> String {
    let mut bytes = Vec::new();
    let _ = process.stdout.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).replace("\r\n", "\n")
}

async fn read_until(process: &mut Process, wanted: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 1000];
    while !seen.contains(wanted) {
        let read = tokio::time::timeout(seconds(10), process.stdout.read(&mut buffer)).await;
        let count = read.unwrap_or_else(|_| panic!("{wanted:?} did not come, only {seen:?}")).unwrap();
        assert!(count > 0, "the end came before {wanted:?}: {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    seen
}

async fn it_is_a_terminal_of_the_asked_size(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal; stty size; echo error >&2";
    let mut process = sandbox.start(&on_terminal(script)).await;
    assert_eq!(rest(&mut process).await, "terminal\n33 77\nerror\n");
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(0));
    let mut stderr = Vec::new();
    process.stderr.read_to_end(&mut stderr).await.unwrap();
    assert!(stderr.is_empty());
    sandbox.destroy().await;
}

async fn a_resize_is_seen(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process = sandbox.start(&on_terminal("echo ready; read line; stty size")).await;
    read_until(&mut process, "ready").await;
    process.control.resize(TerminalSize { rows: 50, columns: 132 }).await.unwrap();
    process.stdin.as_mut().unwrap().write_all(b"\n").await.unwrap();
    assert!(rest(&mut process).await.contains("50 132"));
    sandbox.destroy().await;
}

async fn what_is_typed_is_read(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process = sandbox.start(&on_terminal("read name; echo hello $name")).await;
    process.stdin.as_mut().unwrap().write_all(b"world\n").await.unwrap();
    assert!(rest(&mut process).await.contains("hello world"));
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn an_end_of_input_is_typed_too(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process = sandbox.start(&on_terminal("cat; echo over; sleep 0.3; echo still here")).await;
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"line\n\x04").await.unwrap();
    read_until(&mut process, "over").await;
    drop(stdin);
    assert!(rest(&mut process).await.contains("still here"), "letting go of the input is no hang-up");
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn control_c_interrupts(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process =
        sandbox.start(&on_terminal("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done")).await;
    read_until(&mut process, "ready").await;
    process.stdin.as_mut().unwrap().write_all(b"\x03").await.unwrap();
    assert!(rest(&mut process).await.contains("caught"));
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(7));
    sandbox.destroy().await;
}

async fn the_kind_of_terminal_is_told(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process = sandbox.start(&on_terminal("echo \"[$TERM]\"")).await;
    let text = rest(&mut process).await;
    assert!(text.starts_with('[') && text.len() > 4, "{text}");
    sandbox.destroy().await;
}

async fn a_storm_of_resizes_while_output_flows_is_survived(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let script = "yes flood & flood=$!; read line; kill $flood; wait; stty size; echo the end";
    let Process { stdin, mut stdout, control, .. } = sandbox.start(&on_terminal(script)).await;
    let mut stdin = stdin.unwrap();
    let reading = tokio::spawn(async move {
        let (mut end, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        while let Ok(count @ 1..) = stdout.read(&mut piece).await {
            end.extend_from_slice(&piece[..count]);
            end.drain(..end.len().saturating_sub(1000));
        }
        String::from_utf8_lossy(&end).into_owned()
    });
    for number in 0..1000 {
        control.resize(TerminalSize { rows: 10 + number % 50, columns: 40 + number % 100 }).await.unwrap();
    }
    control.resize(TerminalSize { rows: 43, columns: 121 }).await.unwrap();
    stdin.write_all(b"\n").await.unwrap();
    let end = tokio::time::timeout(seconds(30), reading).await.expect("it ends").unwrap();
    assert!(end.contains("43 121") && end.contains("the end"), "{end}");
    assert_eq!(control.wait().await.unwrap().status, ExecStatus::Exited(0));
    // One that comes late is no mistake.
    control.resize(TerminalSize { rows: 10, columns: 10 }).await.unwrap();
    sandbox.destroy().await;
}

async fn what_nobody_reads_still_ends(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let flood = sandbox.start(&on_terminal("yes flood")).await;
    let mut short = on_terminal("yes flood");
    short.timeout = seconds(1);
    let short = sandbox.start(&short).await;
    let ended = tokio::time::timeout(seconds(20), short.control.wait()).await.expect("its time is over");
    assert_eq!(ended.unwrap().status, ExecStatus::TimedOut);
    flood.control.resize(TerminalSize { rows: 5, columns: 5 }).await.unwrap();
    tokio::time::timeout(seconds(20), flood.control.kill()).await.expect("it is killed").unwrap();
    let ended = tokio::time::timeout(seconds(20), flood.control.wait()).await.expect("it ends");
    assert_eq!(ended.unwrap().status, ExecStatus::Cancelled);
    assert_eq!(sandbox.says("echo still here").await, "still here\n");
    sandbox.destroy().await;
}

async fn what_stays_behind_does_not_hold_it_open(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let script = "(trap '' HUP TERM; while :; do sleep 0.1; done) & (trap '' HUP; exec setsid sleep 50) & echo gone";
    let mut process = sandbox.start(&on_terminal(script)).await;
    let said = tokio::time::timeout(seconds(20), rest(&mut process)).await.expect("the terminal ends with its shell");
    assert!(said.contains("gone"), "{said}");
    let ended = tokio::time::timeout(seconds(20), process.control.wait()).await.expect("so does the command");
    assert_eq!(ended.unwrap().status, ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn letting_go_while_output_flows_ends_it(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for _ in 0..5 {
        let mut process = sandbox.start(&on_terminal("echo ready; yes flood")).await;
        read_until(&mut process, "ready").await;
        drop(process);
    }
    eventually("what was let go of ends", seconds(20), || async {
        sandbox.says("cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^yes$' || true").await.trim() == "0"
    })
    .await;
    sandbox.destroy().await;
}
