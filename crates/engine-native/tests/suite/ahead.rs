//! What this engine does about commands that are expected: the shared suite shows that nobody can tell, this that it does.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use engine_native::NativeEngine;
use sandbox::{
    Engine, ErrorKind, ExecOutcome, ExecRequest, ExecStatus, Expected, GuestPath, Owner, SandboxId, SandboxSpec, Script,
};
use tokio::io::AsyncReadExt;

type Trial = (&'static str, fn(Arc<NativeEngine>) -> Pin<Box<dyn Future<Output = ()>>>);

pub const TRIALS: [Trial; 4] = [
    ("ahead::the_expected_is_begun_and_paid_for_before", |engine| Box::pin(begun_before(engine))),
    ("ahead::one_that_ends_before_it_is_wanted_is_passed_over", |engine| Box::pin(passed_over(engine))),
    ("ahead::its_end_and_all_of_its_output_are_told_as_ever", |engine| Box::pin(told_as_ever(engine))),
    ("ahead::a_program_that_is_missing_is_said_when_it_is_asked_for", |engine| Box::pin(missing(engine))),
];

/// Far more than an engine needs to have spares, even on a busy machine.
const MOST_ROUNDS: usize = 40;

fn script() -> GuestPath {
    "/workspace/script".parse().expect("a path")
}

fn request(argv: &[&str]) -> ExecRequest {
    request_of(argv, "read -r stat < /proc/$$/stat; echo $stat")
}

fn request_of(argv: &[&str], code: &str) -> ExecRequest {
    let argv = argv.iter().map(|&word| word.to_owned()).chain([script().to_string()]);
    let mut request = ExecRequest::new(argv, Duration::from_secs(30)).expect("a request");
    request.script = Script::new(&script(), code.as_bytes());
    request
}

async fn create(engine: &NativeEngine, argv: &[&str]) -> SandboxId {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    let expected = Expected { argv, script: "script".to_owned(), environment: Default::default(), prelude: None };
    let spec = SandboxSpec { expected: Some(expected), ..SandboxSpec::new(Owner::local()) };
    let id = SandboxId::random().expect("random numbers");
    engine.create(&id, &spec).await.expect("a sandbox");
    id
}

async fn run(engine: &NativeEngine, id: &SandboxId, argv: &[&str]) -> (String, ExecOutcome) {
    run_request(engine, id, &request(argv)).await
}

async fn run_request(engine: &NativeEngine, id: &SandboxId, request: &ExecRequest) -> (String, ExecOutcome) {
    let mut process = engine.start(id, request).await.expect("a command");
    drop(process.stdin.take());
    let mut text = String::new();
    process.stdout.read_to_string(&mut text).await.expect("its output");
    (text, process.control.wait().await.expect("its end"))
}

/// In the hundredths of a second since the machine started that processes have their own start in.
fn now() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").expect("the time");
    let seconds: f64 = uptime.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    (seconds * 100.0) as u64
}

async fn begun_before(engine: Arc<NativeEngine>) {
    // Counts for a while, and is a shell with its script then.
    let busy = ["/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exec sh \"$0\""];
    let mut cold = None;
    for _ in 0..MOST_ROUNDS {
        let asked_at = now();
        let id = create(&engine, &busy).await;
        let (text, outcome) = run(&engine, &id, &busy).await;
        engine.destroy(&id).await.expect("its end");
        assert_eq!(outcome.status, ExecStatus::Exited(0), "{text}");
        // The twenty-second word; the second one, in brackets, has no space.
        let started: u64 = text.split(' ').nth(21).and_then(|word| word.parse().ok()).expect("a number");
        match cold {
            None => {
                assert!(started >= asked_at, "the first of its kind was begun before anybody could know of it");
                cold = Some(outcome.usage);
            }
            Some(cold) if started + 10 < asked_at => {
                assert!(outcome.usage.cpu < cold.cpu / 2, "{:?} beside {cold:?}", outcome.usage);
                assert!(outcome.usage.peak_memory > 0);
                return;
            }
            Some(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("nothing was begun ahead in {MOST_ROUNDS} rounds");
}

async fn passed_over(engine: Arc<NativeEngine>) {
    for _ in 0..6 {
        let id = create(&engine, &["/bin/sh", "-c", "exit 3"]).await;
        let (_, outcome) = run(&engine, &id, &["/bin/sh", "-c", "exit 3"]).await;
        assert_eq!(outcome.status, ExecStatus::Exited(3));
        engine.destroy(&id).await.expect("its end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What was begun ahead asks before it ends, and its end is told then. That must be the end of all that it does.
async fn told_as_ever(engine: Arc<NativeEngine>) {
    const SHELL: [&str; 1] = ["/bin/sh"];
    let exited = ExecStatus::Exited;
    let whole = "x".repeat(60_000);
    // Whether it asks is told by the number of its filters.
    let filters = "while read -r name value; do [ $name = Seccomp_filters: ] && echo $value; done < /proc/$$/status";
    let cases: [(&str, ExecStatus, &str); 8] = [
        ("exit 3", exited(3), ""),
        ("(exit 7); sh -c 'exit 9'; echo $?; exit 4", exited(4), "9\n"),
        ("kill -9 $$", ExecStatus::Signalled(9), ""),
        ("exit 256", exited(0), ""),
        ("{ sleep 0.2; echo late; } & echo soon", exited(0), "soon\nlate\n"),
        ("sh -c 'sleep 0.2; echo orphan' & exec sh -c 'echo other; exit 5'", exited(5), "other\norphan\n"),
        ("i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done; echo $i", exited(0), "300\n"),
        ("printf '%060000d' 0 | tr 0 x", exited(0), &whole),
    ];
    let mut asked = 0;
    for (code, status, output) in cases {
        for _ in 0..3 {
            let id = create(&engine, &SHELL).await;
            // The first exec is the one that was begun ahead.
            let code = format!("{filters}; {code}");
            let (text, outcome) = run_request(&engine, &id, &request_of(&SHELL, &code)).await;
            engine.destroy(&id).await.expect("its end");
            let (count, text) = text.split_once('\n').expect("the number of filters");
            asked += usize::from(count == "2");
            assert_eq!((outcome.status, text), (status, output), "{code} with {count} filters");
            assert!(outcome.usage.peak_memory > 0 && !outcome.usage.wall.is_zero(), "{code}: {:?}", outcome.usage);
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    }
    assert!(asked > 0, "none was begun ahead, or none asked");
}

async fn missing(engine: Arc<NativeEngine>) {
    for _ in 0..4 {
        let id = create(&engine, &["/nowhere/program"]).await;
        let refused = engine.start(&id, &request(&["/nowhere/program"])).await.expect_err("no such program");
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        engine.destroy(&id).await.expect("its end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
