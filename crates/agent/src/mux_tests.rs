//! A connection whose other side is played by the test.

use std::time::Duration;

use sandbox::{ByteRange, ErrorKind, ExecRequest, ExecStatus, Process};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::Connection;
use crate::frame::{self, Begin, Decoder, Frame, Kind, Lane, MAX_DATA, Task, WINDOW};
use crate::messages::{EndCause, ExecEnd, FromExec, FromInit, Kind as FileKind, Stat, Work};

/// The inside of a sandbox.
struct Inside {
    stream: DuplexStream,
    decoder: Decoder,
}

/// A frame that the server sent, with its own copy of the payload.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    kind: Kind,
    work: u32,
    lane: Lane,
    payload: Vec<u8>,
}

impl Inside {
    async fn hear(&mut self) -> Heard {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                let Frame { kind, work, lane, payload } = frame;
                // On a slow machine a test takes longer than the server is silent.
                if kind == Kind::Beat {
                    continue;
                }
                return Heard { kind, work, lane, payload: payload.to_vec() };
            }
            let mut bytes = vec![0; MAX_DATA];
            let count = self.stream.read(&mut bytes).await.unwrap();
            assert!(count > 0, "the server closed the stream");
            self.decoder.take(&bytes[..count]);
        }
    }

    async fn say(&mut self, kind: Kind, work: u32, lane: Lane, payload: &[u8]) {
        let mut bytes = Vec::new();
        Frame::new(kind, work, lane, payload).write(&mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn tell(&mut self, work: u32, message: &FromExec) {
        self.say(Kind::Data, work, Lane::Messages, &postcard::to_stdvec(message).unwrap()).await;
    }

    async fn begin(&mut self) -> (u32, Begin) {
        let heard = self.hear().await;
        assert_eq!(heard.kind, Kind::Begin);
        (heard.work, postcard::from_bytes(&heard.payload).unwrap())
    }
}

async fn connect() -> (Connection, Inside) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    theirs.write_all(&frame::hello()).await.unwrap();
    let (reader, writer) = tokio::io::split(ours);
    let connection = Connection::open(reader, writer, "token").await.unwrap();
    let mut inside = Inside { stream: theirs, decoder: Decoder::default() };
    let presented = inside.hear().await;
    assert_eq!((presented.kind, &presented.payload[..]), (Kind::Present, &b"token"[..]), "it says who it is first");
    (connection, inside)
}

async fn started() -> (Connection, Inside, u32, Process) {
    let (connection, mut inside) = connect().await;
    let request = ExecRequest::new(["program"], Duration::from_secs(5)).unwrap();
    let (process, (inside, work)) = tokio::join!(connection.start(&request), async {
        let (work, begin) = inside.begin().await;
        assert!(matches!(begin.task, Task::Work(Work::Exec(_))));
        inside.tell(work, &FromExec::Started).await;
        (inside, work)
    });
    (connection, inside, work, process.unwrap())
}

fn ended(status: i32) -> FromExec {
    FromExec::Ended(ExecEnd {
        status,
        cause: EndCause::Itself,
        wall_microseconds: 1,
        cpu_microseconds: 1,
        peak_memory: 1,
        tree_empty: false,
        memory_ran_out: false,
    })
}

async fn open_with(hello: &[u8]) -> ErrorKind {
    let (ours, mut theirs) = tokio::io::duplex(64);
    theirs.write_all(hello).await.unwrap();
    drop(theirs);
    let (reader, writer) = tokio::io::split(ours);
    Connection::open(reader, writer, "token").await.unwrap_err().kind()
}

#[tokio::test]
async fn whoever_does_not_speak_the_protocol_is_refused() {
    let mut hello = frame::hello();
    hello[9] ^= 1;
    assert_eq!(open_with(&hello).await, ErrorKind::Unsupported);
    assert_eq!(open_with(b"sh: init: not found\n").await, ErrorKind::Unavailable);
    assert_eq!(open_with(&frame::hello()[..7]).await, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_command_runs_to_its_end() {
    let (_connection, mut inside, work, mut process) = started().await;
    process.stdin.as_mut().unwrap().write_all(b"question").await.unwrap();
    let heard = inside.hear().await;
    assert_eq!(heard, Heard { kind: Kind::Data, work, lane: Lane::Input, payload: b"question".to_vec() });
    drop(process.stdin.take());
    assert_eq!(inside.hear().await.kind, Kind::Finish);
    inside.say(Kind::Data, work, Lane::Output, b"answer").await;
    inside.say(Kind::Finish, work, Lane::Output, &[]).await;
    inside.say(Kind::Finish, work, Lane::Errors, &[]).await;
    inside.tell(work, &ended(3 << 8)).await;
    let (mut output, mut errors) = (String::new(), String::new());
    process.stdout.read_to_string(&mut output).await.unwrap();
    process.stderr.read_to_string(&mut errors).await.unwrap();
    assert_eq!((output.as_str(), errors.as_str()), ("answer", ""));
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(3));
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(3), "it may be asked again");
}

#[tokio::test]
async fn a_writer_waits_for_its_window_and_a_reader_gives_it_back() {
    let (_connection, mut inside, work, process) = started().await;
    let Process { stdin, mut stdout, .. } = process;
    let mut stdin = stdin.unwrap();
    let writer = tokio::spawn(async move {
        stdin.write_all(&vec![7; WINDOW as usize + 10]).await.unwrap();
        stdin
    });
    let mut sent = 0;
    while sent < WINDOW as usize {
        sent += inside.hear().await.payload.len();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writer.is_finished(), "more was sent than the window holds");
    inside.say(Kind::Credit, work, Lane::Input, &WINDOW.to_le_bytes()).await;
    assert_eq!(inside.hear().await.payload.len(), 10);
    let _stdin = writer.await.unwrap();

    for _ in 0..WINDOW as usize / MAX_DATA {
        inside.say(Kind::Data, work, Lane::Output, &[1; MAX_DATA]).await;
    }
    stdout.read_exact(&mut vec![0; WINDOW as usize / 2]).await.unwrap();
    let heard = inside.hear().await;
    assert_eq!((heard.kind, heard.lane), (Kind::Credit, Lane::Output));
    assert_eq!(heard.payload, (WINDOW / 2).to_le_bytes());
}

#[tokio::test]
async fn what_nobody_may_send_ends_the_connection() {
    type Misdeed = (&'static str, fn(u32) -> Vec<(Kind, u32, Lane, Vec<u8>)>);
    let misdeeds: [Misdeed; 8] = [
        ("more than the window", |work| vec![(Kind::Data, work, Lane::Output, vec![0; MAX_DATA]); 5]),
        ("more messages than the window", |work| vec![(Kind::Data, work, Lane::Messages, vec![0; 150_000]); 8]),
        ("more credit than there is", |work| vec![(Kind::Credit, work, Lane::Input, vec![1, 0, 0, 0])]),
        ("bytes after the end", |work| {
            vec![(Kind::Finish, work, Lane::Errors, vec![]), (Kind::Data, work, Lane::Errors, vec![1])]
        }),
        ("input from inside", |work| vec![(Kind::Data, work, Lane::Input, vec![1])]),
        ("work that nobody has begun", |work| vec![(Kind::Data, work + 1, Lane::Output, vec![1])]),
        ("a question", |work| vec![(Kind::Ask, work, Lane::Messages, vec![0])]),
        ("an answer that does not parse", |work| vec![(Kind::Answer, work, Lane::Messages, vec![0xff, 0xff])]),
    ];
    for (what, frames) in misdeeds {
        let (connection, mut inside, work, process) = started().await;
        for (kind, work, lane, payload) in frames(work) {
            inside.say(kind, work, lane, &payload).await;
        }
        let lost = tokio::time::timeout(Duration::from_secs(10), connection.closed()).await;
        assert_eq!(lost.unwrap_or_else(|_| panic!("{what}")).kind(), ErrorKind::Unavailable, "{what}");
        assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Killed, "{what}");
    }
}

#[tokio::test]
async fn a_beat_is_of_no_work() {
    let (connection, mut inside) = connect().await;
    inside.say(Kind::Beat, 0, Lane::Messages, &[]).await;
    let answered = tokio::join!(connection.measure(), async {
        let asked = inside.hear().await;
        let answer = FromInit::Measured { disk: 1, helpers: 2, quiet_milliseconds: None };
        inside.say(Kind::Answer, asked.work, Lane::Messages, &postcard::to_stdvec(&answer).unwrap()).await;
    });
    assert_eq!(answered.0.unwrap().helpers, 2);
}

#[tokio::test]
async fn a_work_that_is_over_here_may_still_be_heard_of() {
    let (connection, mut inside, work, process) = started().await;
    drop(process);
    let mut heard = Vec::new();
    for _ in 0..4 {
        let Heard { kind, lane, .. } = inside.hear().await;
        heard.push((kind, lane));
    }
    let expected = [
        (Kind::Finish, Lane::Input),
        (Kind::Stop, Lane::Output),
        (Kind::Stop, Lane::Errors),
        (Kind::Finish, Lane::Messages),
    ];
    assert!(expected.iter().all(|end| heard.contains(end)), "{heard:?}");
    inside.say(Kind::Data, work, Lane::Output, b"late").await;
    inside.tell(work, &ended(0)).await;
    let answered = tokio::join!(connection.measure(), async {
        let asked = inside.hear().await;
        assert_eq!(asked.kind, Kind::Ask);
        let answer = FromInit::Measured { disk: 1, helpers: 2, quiet_milliseconds: None };
        inside.say(Kind::Answer, asked.work, Lane::Messages, &postcard::to_stdvec(&answer).unwrap()).await;
    });
    assert_eq!(answered.0.unwrap().helpers, 2);
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_is_not_given_to_the_next() {
    let (connection, mut inside) = connect().await;
    let impatient = tokio::time::timeout(Duration::from_millis(20), connection.measure()).await;
    assert!(impatient.is_err());
    let measure =
        |helpers| postcard::to_stdvec(&FromInit::Measured { disk: 0, helpers, quiet_milliseconds: None }).unwrap();
    let first = inside.hear().await.work;
    let (measured, ()) = tokio::join!(connection.measure(), async {
        let second = inside.hear().await.work;
        inside.say(Kind::Answer, first, Lane::Messages, &measure(1)).await;
        inside.say(Kind::Answer, second, Lane::Messages, &measure(2)).await;
    });
    assert_eq!(measured.unwrap().helpers, 2);
}

#[tokio::test]
async fn a_file_that_is_cut_off_is_an_error_and_a_command_was_killed() {
    let (connection, mut inside, work, mut process) = started().await;
    let files = connection.files();
    let path = "/workspace/file".parse().unwrap();
    let (file, read) = tokio::join!(files.read(&path, ByteRange::default()), async {
        let (read, _) = inside.begin().await;
        let stat = Stat {
            kind: FileKind::Regular,
            bytes: 10,
            mode: 0o644,
            modified_seconds: 0,
            modified_nanoseconds: 0,
            changed_seconds: 0,
            changed_nanoseconds: 0,
        };
        let opened = postcard::to_stdvec(&crate::messages::FromFile::Opened(stat)).unwrap();
        inside.say(Kind::Data, read, Lane::Messages, &opened).await;
        read
    });
    inside.say(Kind::Data, read, Lane::Output, b"half").await;
    inside.say(Kind::Data, work, Lane::Output, b"half").await;
    drop(inside);
    let mut bytes = Vec::new();
    assert!(file.unwrap().stream.read_to_end(&mut bytes).await.is_err());
    assert_eq!(bytes, b"half");
    bytes.clear();
    process.stdout.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, b"half");
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Killed);
    assert_eq!(connection.measure().await.unwrap_err().kind(), ErrorKind::Unavailable);
    connection.sandbox_is_gone();
    assert_eq!(connection.measure().await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(files.stat(&path).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn the_stream_closes_with_the_last_handle() {
    let (connection, mut inside, _, process) = started().await;
    let another = connection.clone();
    drop(connection);
    drop(process);
    for _ in 0..4 {
        inside.hear().await;
    }
    drop(another);
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(10), inside.stream.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the stream stays open");
}

#[tokio::test]
async fn a_bridge_that_does_not_read_holds_up_callers_and_fills_nothing() {
    let (ours, mut theirs) = tokio::io::duplex(4 << 10);
    let greeting = tokio::spawn(async move {
        theirs.write_all(&frame::hello()).await.unwrap();
        theirs
    });
    let (reader, writer) = tokio::io::split(ours);
    let connection = Connection::open(reader, writer, "token").await.unwrap();
    let theirs = greeting.await.unwrap();
    let large = "x".repeat(90 << 10);
    let begun = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (connection, large, begun) = (connection.clone(), large.clone(), begun.clone());
        callers.spawn(async move {
            let request = ExecRequest::new(["program", &large], Duration::from_secs(5)).unwrap();
            let message = crate::execs::message(&request, Default::default(), &"/workspace".parse().unwrap());
            let handles = connection.begin(Task::Work(Work::Exec(message)), frame::Part::default()).await;
            begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            handles.map(drop)
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let count = begun.load(std::sync::atomic::Ordering::Relaxed);
    assert!((1..=13).contains(&count), "{count} of 200 wait to be written");
    // It reads again, and everybody gets their turn.
    let mut inside = Inside { stream: theirs, decoder: Decoder::default() };
    let mut heard = 0;
    while heard < 200 {
        heard += usize::from(inside.hear().await.kind == Kind::Begin);
    }
    while let Some(called) = callers.join_next().await {
        called.unwrap().unwrap();
    }
    assert_eq!(begun.load(std::sync::atomic::Ordering::Relaxed), 200);
}

#[tokio::test]
async fn whoever_waits_for_a_bridge_hears_when_the_sandbox_is_gone() {
    let (ours, mut theirs) = tokio::io::duplex(64);
    theirs.write_all(&frame::hello()).await.unwrap();
    let (reader, writer) = tokio::io::split(ours);
    let connection = Connection::open(reader, writer, "token").await.unwrap();
    let request = ExecRequest::new(["program", &"x".repeat(90 << 10)], Duration::from_secs(5)).unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (connection, request) = (connection.clone(), request.clone());
        callers.spawn(async move { connection.start(&request).await.map(drop) });
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    connection.sandbox_is_gone();
    while let Some(called) = callers.join_next().await {
        assert_eq!(called.unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    }
}
