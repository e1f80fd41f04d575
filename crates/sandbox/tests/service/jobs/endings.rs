//! How jobs end: by themselves, by a stop at any moment, with their sandbox, with the service.

use std::time::Duration;

use sandbox::engine::fake::Operation;
use sandbox::{
    ErrorKind, EventKind, ExecRequest, ExecStatus, JobPlace, JobRequest, JobStatus, JobWork, OutputTarget, Persistence,
    RunCode, SandboxSpec, State, StopReason,
};
use tokio::time::Instant;

use super::{code, file, fresh, inside, run, start, status, stdout};
use crate::support::{World, create, kind, owner, poll_times, seconds, settle, spec};

#[tokio::test]
async fn a_fresh_job_runs_and_takes_its_sandbox_with_it() {
    let world = World::new();
    let service = world.process().await;
    let mut request = fresh("cat input; cat; echo bad >&2; exit 3");
    request.files.push(file("/workspace/input", "from a file, "));
    request.stdin = b"from stdin".to_vec();
    let job = start(&service, request);
    assert!(job.is_fresh() && matches!(job.status(), JobStatus::Running));
    let result = job.wait().await.unwrap();
    assert_eq!(result.outcome.status, ExecStatus::Exited(3));
    assert_eq!(stdout(&job), "from a file, from stdin");
    assert_eq!(job.output().stderr.to_text(), "bad\n");
    assert!(!result.missing_layers.is_empty(), "the fake has no walls, and says so");
    assert_eq!(job.status(), JobStatus::Ended(result));
    assert_eq!(kind(service.find(&owner(), job.sandbox().as_str()).await), ErrorKind::NotFound);
    job.stop().await.unwrap();
    assert!(world.host.existing().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_sandbox_whose_run_is_over_but_who_stops_it() {
    let world = World::new();
    let service = world.process().await;
    world.host.delay(Operation::Destroy, seconds(20));
    let begun = Instant::now();
    let job = start_ended(&service, fresh("echo done")).await;
    assert!(begun.elapsed() < seconds(1), "{:?}", begun.elapsed());
    assert_eq!(stdout(&job), "done\n");
    let id = job.sandbox();
    assert_eq!(world.host.existing(), std::slice::from_ref(id), "the engine is at it");
    assert!(service.list(&owner()).await.unwrap().is_empty());
    assert_eq!(kind(service.find(&owner(), id.as_str()).await), ErrorKind::NotFound);
    assert_eq!(kind(service.usage(&owner(), id).await), ErrorKind::NotFound);
    job.stop().await.unwrap();
    assert!(begun.elapsed() >= seconds(20));
    assert!(world.host.existing().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_sandboxes_whose_run_is_over() {
    let world = World::new();
    let service = world.process().await;
    world.host.delay(Operation::Destroy, seconds(5));
    start_ended(&service, fresh("true")).await;
    assert_eq!(world.host.existing().len(), 1);
    service.shutdown().await.unwrap();
    assert!(world.host.existing().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_cleared_away_is_seen_until_it_is() {
    let world = World::new();
    let service = world.process().await;
    world.host.fail(Operation::Destroy, 1, ErrorKind::Unavailable);
    let job = start_ended(&service, fresh("true")).await;
    settle().await;
    let seen = service.list(&owner()).await.unwrap();
    assert_eq!(seen.iter().map(|info| (&info.id, info.state)).collect::<Vec<_>>(), [(job.sandbox(), State::Stopping)]);
    tokio::time::sleep(seconds(5)).await;
    assert!(service.list(&owner()).await.unwrap().is_empty());
    assert!(world.host.existing().is_empty());
}

#[tokio::test]
async fn a_job_is_told_as_what_happens_to_its_sandbox() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let job = start(&service, fresh("echo x > made"));
    job.wait().await.unwrap();
    let mut told = Vec::new();
    while told.len() < 4 {
        let event = events.recv().await.unwrap();
        assert_eq!(event.id.as_ref(), Some(job.sandbox()));
        told.push(event.kind);
    }
    let stopped = EventKind::Stopped { reason: StopReason::Finished };
    assert!(told.contains(&stopped), "{told:?}");
    // Reading what is kept is not its owner's doing.
    let mut words = crate::support::words(&told);
    words.sort_unstable();
    assert_eq!(words, ["created", "exec_ended", "exec_started", "stopped"]);
}

#[tokio::test]
async fn an_existing_sandbox_stays() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let job = start(&service, inside(&info.id, "echo hi"));
    assert_eq!((job.sandbox(), job.is_fresh()), (&info.id, false));
    assert_eq!(status(&job).await, ExecStatus::Exited(0));
    assert_eq!(world.host.existing(), [info.id]);
}

#[tokio::test]
async fn a_title_is_short_and_harmless() {
    let world = World::new();
    let service = world.process().await;
    assert_eq!(start(&service, code("Bash", "true")).title(), "bash");
    assert_eq!(start(&service, fresh("echo \u{1b}[2J hi\nsecond")).title(), "echo  [2J hi…");
    let long = start(&service, fresh(&format!("echo {}", "x".repeat(500))));
    assert_eq!(long.title().chars().count(), 80);
}

#[tokio::test]
async fn a_failed_build_is_an_outcome() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, code("c", "syntax error"));
    assert_eq!(status(&job).await, ExecStatus::Exited(1));
    assert!(job.output().stderr.to_text().contains("syntax error"));
    assert_eq!(stdout(&start_ended(&service, code("c", "echo built")).await), "built\n");
}

async fn start_ended(service: &sandbox::SandboxService, request: sandbox::JobRequest) -> sandbox::Job {
    let job = start(service, request);
    job.wait().await.unwrap();
    job
}

#[tokio::test]
async fn what_is_plainly_wrong_is_refused_at_once() {
    let world = World::new();
    let service = world.process().await;
    let refused = |request| kind(service.start_job(&owner(), request));
    assert_eq!(refused(code("rubi", "puts 1")), ErrorKind::NotFound);
    assert_eq!(refused(inside(&sandbox::SandboxId::random().unwrap(), "true")), ErrorKind::NotFound);
    let mut request = fresh("true");
    request.place = JobPlace::Fresh(Box::new(SandboxSpec { persistence: Persistence::Persistent, ..spec() }));
    assert_eq!(refused(request), ErrorKind::InvalidInput);
    let mut logged = ExecRequest::new(["true"], seconds(1)).unwrap();
    logged.output = OutputTarget::Log;
    let mut request = fresh("true");
    request.work = JobWork::Command(logged);
    assert_eq!(refused(request.clone()), ErrorKind::InvalidInput);
    request.work = JobWork::Command(ExecRequest::new(["true"], Duration::from_secs(1 << 40)).unwrap());
    assert_eq!(refused(request), ErrorKind::LimitExceeded);
    assert!(service.jobs(&owner()).is_empty());
}

#[tokio::test]
async fn what_cannot_be_served_fails_and_leaves_nothing() {
    let world = World::new();
    let service = world.process().await;
    world.host.fail(Operation::Create, 1, ErrorKind::Unavailable);
    let job = start(&service, fresh("true"));
    assert_eq!(kind(job.wait().await), ErrorKind::Unavailable);
    let JobStatus::Failed(failure) = job.status() else { panic!("{job:?}") };
    assert_eq!((failure.kind, failure.message.as_str()), (ErrorKind::Unavailable, "Create was made to fail"));

    assert_eq!(kind(run(&service, code("ruby", "puts 1")).await), ErrorKind::Unsupported);
    let mut request = fresh("true");
    request.files.push(file("/etc/passwd", "x"));
    assert_eq!(kind(run(&service, request).await), ErrorKind::Denied);
    let mut request = fresh("true");
    request.work = JobWork::Command(ExecRequest::new(["nothing-like-it"], seconds(1)).unwrap());
    assert_eq!(kind(run(&service, request).await), ErrorKind::NotFound);
    assert!(world.host.existing().is_empty());
    job.stop().await.unwrap();
}

#[tokio::test]
async fn input_and_output_do_not_wait_for_each_other() {
    let world = World::new();
    let service = world.process().await;
    let mut request = fresh("cat");
    request.stdin = vec![b'x'; 1_000_000];
    let job = start_ended(&service, request).await;
    assert_eq!(job.output().stdout.total(), 1_000_000);
    let mut request = fresh("echo did not read");
    request.stdin = vec![b'x'; 1_000_000];
    assert_eq!(stdout(&start_ended(&service, request).await), "did not read\n");
}

#[tokio::test(start_paused = true)]
async fn a_stop_kills_and_returns_when_nothing_is_left() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let job = start(&service, inside(&info.id, "echo begun; sleep 50"));
    settle().await;
    let begun = Instant::now();
    job.stop().await.unwrap();
    assert!(begun.elapsed() < seconds(1));
    assert_eq!((status(&job).await, stdout(&job).as_str()), (ExecStatus::Cancelled, "begun\n"));
    assert_eq!(service.usage(&owner(), &info.id).await.unwrap().processes, Some(0));
    job.stop().await.unwrap();

    let job = start(&service, fresh("sleep 50"));
    settle().await;
    job.stop().await.unwrap();
    assert_eq!(status(&job).await, ExecStatus::Cancelled);
    assert_eq!(world.host.existing(), [info.id]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_slow_create() {
    let world = World::new();
    let service = world.process_set(|settings| settings.create_slots = 1).await;
    world.host.delay(Operation::Create, seconds(60));
    let making = start(&service, fresh("true"));
    settle().await;
    let waiting = start(&service, fresh("true"));
    settle().await;
    let begun = Instant::now();
    for job in [waiting, making] {
        job.stop().await.unwrap();
        assert_eq!(status(&job).await, ExecStatus::Cancelled);
    }
    assert!(begun.elapsed() < seconds(1));
    assert!(service.list(&owner()).await.unwrap().is_empty());
    tokio::time::sleep(seconds(120)).await;
    assert!(world.host.existing().is_empty());
    world.host.delay(Operation::Create, Duration::ZERO);
    assert!(run(&service, fresh("true")).await.is_ok(), "the slot was given back");
}

#[tokio::test(start_paused = true)]
async fn a_stop_at_any_moment_leaves_nothing() {
    let mut seen = [0; 2];
    for delay in 0..60 {
        let world = World::new();
        let service = world.process().await;
        for operation in [Operation::Create, Operation::Start, Operation::Destroy] {
            world.host.delay(operation, Duration::from_millis(10));
        }
        let mut request = fresh("touch made; sleep 0.01");
        request.files.push(file("/workspace/a/b", "x"));
        let job = start(&service, request);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        job.stop().await.unwrap();
        assert!(world.host.existing().is_empty(), "after {delay} ms");
        assert!(service.list(&owner()).await.unwrap().is_empty(), "after {delay} ms");
        match status(&job).await {
            ExecStatus::Cancelled => seen[0] += 1,
            ExecStatus::Exited(0) => seen[1] += 1,
            other => panic!("{other:?} after {delay} ms"),
        }
    }
    assert!(seen.iter().all(|&count| count > 5), "cancelled and ended: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_and_an_end_may_race() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    for round in 0..200 {
        let request = if round % 2 == 0 { fresh("true") } else { inside(&info.id, "true") };
        let job = start(&service, request);
        for _ in 0..round % 10 {
            tokio::task::yield_now().await;
        }
        let stops = [job.clone(), job.clone()].map(|job| tokio::spawn(async move { job.stop().await }));
        for stop in stops {
            stop.await.unwrap().unwrap();
        }
        let status = status(&job).await;
        assert!(matches!(status, ExecStatus::Exited(0) | ExecStatus::Cancelled), "{status:?}");
    }
    assert_eq!(world.host.existing(), [info.id]);
}

#[tokio::test]
async fn a_build_can_be_stopped() {
    let world = World::new();
    let mut settings = world.settings();
    let runner = "[[runner]]\nname = \"slow\"\ntitle = \"Slow\"\nfile = \"x\"\nplace = \"scratch\"\n\
                  build = [[\"sleep\", \"1000\"]]\nrun = [[\"true\"]]";
    settings.runners = settings.runners.overlaid_by(runner).unwrap();
    let service = world.process_with(settings).await;
    let info = create(&service, spec()).await;
    let mut request = code("slow", "");
    request.place = JobPlace::Existing(info.id.clone());
    let job = start(&service, request);
    settle().await;
    assert_eq!(service.usage(&owner(), &info.id).await.unwrap().processes, Some(1));
    job.stop().await.unwrap();
    assert_eq!(status(&job).await, ExecStatus::Cancelled);
    assert_eq!(service.usage(&owner(), &info.id).await.unwrap().processes, Some(0));
}

#[tokio::test(start_paused = true)]
async fn many_wait_and_waiting_can_be_given_up() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, fresh("sleep 0.05; echo done"));
    assert!(poll_times(job.wait(), 3).await.is_none());
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let job = job.clone();
            tokio::spawn(async move { job.wait().await })
        })
        .collect();
    let id = job.id().clone();
    drop(job);
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap().outcome.status, ExecStatus::Exited(0));
    }
    assert_eq!(stdout(&service.job(&owner(), &id).unwrap()), "done\n");
}

#[tokio::test]
async fn a_job_ends_with_its_sandbox() {
    let world = World::new();
    let service = world.process().await;
    for how in ["stopped", "lost"] {
        let job = start(&service, fresh("echo begun; sleep 1000"));
        while stdout(&job).is_empty() {
            settle().await;
        }
        match how {
            "stopped" => service.stop(&owner(), job.sandbox()).await.unwrap(),
            _ => world.host.kill(job.sandbox()),
        }
        let result = job.wait().await.unwrap();
        assert_eq!((result.outcome.status, result.artifacts.len()), (ExecStatus::Killed, 0), "{how}");
    }
    assert!(world.host.existing().is_empty());
}

#[tokio::test]
async fn a_shutdown_ends_jobs_first() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, SandboxSpec { persistence: Persistence::Persistent, ..spec() }).await;
    let jobs = [start(&service, fresh("sleep 1000")), start(&service, inside(&info.id, "sleep 1000"))];
    world.host.delay(Operation::Create, seconds(20));
    let creating = start(&service, fresh("sleep 1000"));
    settle().await;
    let begun = Instant::now();
    service.shutdown().await.unwrap();
    assert!(begun.elapsed() < seconds(10), "{:?}", begun.elapsed());
    for job in jobs.iter().chain([&creating]) {
        assert_eq!(status(job).await, ExecStatus::Cancelled);
    }
    assert_eq!(world.host.existing(), std::slice::from_ref(&info.id));
    assert_eq!(service.usage(&owner(), &info.id).await.unwrap().processes, Some(0));
    assert_eq!(kind(service.start_job(&owner(), inside(&info.id, "true"))), ErrorKind::Unavailable);
}

#[tokio::test]
async fn jobs_do_not_outlive_the_last_handle() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, fresh("sleep 1000"));
    settle().await;
    drop(service.clone());
    assert!(matches!(job.status(), JobStatus::Running));
    drop(service);
    assert_eq!(status(&job).await, ExecStatus::Cancelled);
    assert!(world.host.existing().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_does_not_hang_the_job() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    world.host.delay(Operation::Start, seconds(100_000));
    let (kept, made) = (start(&service, inside(&info.id, "true")), start(&service, fresh("true")));
    let begun = Instant::now();
    assert_eq!(kind(kept.wait().await), ErrorKind::TimedOut);
    assert_eq!(status(&made).await, ExecStatus::TimedOut, "its sandbox is gone, so it has ended");
    assert!(begun.elapsed() < seconds(120), "{:?}", begun.elapsed());

    let (kept, made) = (start(&service, inside(&info.id, "true")), start(&service, fresh("true")));
    settle().await;
    let begun = Instant::now();
    made.stop().await.unwrap();
    assert_eq!(status(&made).await, ExecStatus::Cancelled);
    assert!(begun.elapsed() < seconds(1), "{:?}", begun.elapsed());
    let not_shown = kept.stop().await.unwrap_err();
    assert!(not_shown.hint().unwrap().contains("stop the sandbox"));
    assert!(begun.elapsed() < seconds(10), "{:?}", begun.elapsed());
    assert_eq!(world.host.existing(), [info.id]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_does_not_hang_a_run_in_a_context() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    world.host.delay(Operation::Start, seconds(100_000));
    let in_context = || {
        let mut run = RunCode::new("bash", "true", seconds(60));
        run.context = Some("main".parse().unwrap());
        start(&service, JobRequest::new(JobPlace::Existing(info.id.clone()), JobWork::Code(run)))
    };
    let begun = Instant::now();
    let (first, second) = (in_context(), in_context());
    assert_eq!(kind(first.wait().await), ErrorKind::TimedOut);
    assert!(begun.elapsed() < seconds(120), "{:?}", begun.elapsed());
    assert!(matches!(second.status(), JobStatus::Running), "its time begins with its turn");
    assert_eq!(kind(second.wait().await), ErrorKind::TimedOut);
    assert!((seconds(120)..seconds(240)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_time_out_is_an_outcome() {
    let world = World::new();
    let service = world.process().await;
    let mut request = fresh("");
    let command = ExecRequest::shell("touch partial; sleep 50", Duration::from_millis(50)).unwrap();
    request.work = JobWork::Command(command);
    let result = run(&service, request).await.unwrap();
    assert_eq!(result.outcome.status, ExecStatus::TimedOut);
    assert_eq!(result.artifacts.len(), 1, "what it made until then can be used");
}

#[tokio::test]
async fn jobs_of_others_do_not_exist() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, fresh("true"));
    let other = "other".parse().unwrap();
    assert_eq!(kind(service.job(&other, job.id())), ErrorKind::NotFound);
    assert!(service.jobs(&other).is_empty());
    let info = create(&service, spec()).await;
    assert_eq!(kind(service.start_job(&other, inside(&info.id, "true"))), ErrorKind::NotFound);
    assert_eq!(service.job(&owner(), job.id()).unwrap().id(), job.id());
}

#[tokio::test(start_paused = true)]
async fn jobs_of_one_owner_wait_for_each_other_instead_of_being_refused() {
    let world = World::new();
    let service = world.process().await;
    world.host.delay(Operation::Create, Duration::from_millis(100));
    let jobs: Vec<_> = (0..250).map(|_| start(&service, fresh("true"))).collect();
    settle().await;
    let other = service.start_job(&"other".parse().unwrap(), fresh("true")).unwrap();
    let begun = Instant::now();
    other.wait().await.unwrap();
    assert!(begun.elapsed() < seconds(1), "others do not wait for them: {:?}", begun.elapsed());
    jobs[249].stop().await.unwrap();
    for job in &jobs[..249] {
        assert_eq!(status(job).await, ExecStatus::Exited(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_at_once() {
    let world = World::new();
    let service = world.process().await;
    let jobs: Vec<_> =
        (0..200).map(|number| start(&service, fresh(&format!("echo {number} > out; cat out")))).collect();
    let order: Vec<_> = service.jobs(&owner()).iter().map(|job| job.id().clone()).collect();
    assert!(order.iter().eq(jobs.iter().map(|job| job.id()).filter(|id| order.contains(id))), "the oldest first");
    for (number, job) in jobs.iter().enumerate() {
        let result = job.wait().await.unwrap();
        assert_eq!((result.outcome.status, result.artifacts.len()), (ExecStatus::Exited(0), 1));
        assert_eq!(stdout(job), format!("{number}\n"));
        job.stop().await.unwrap();
    }
    assert!(world.host.existing().is_empty());
    assert!(service.list(&owner()).await.unwrap().is_empty());
}
