use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::subject::{Subject, seconds, shell};
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
