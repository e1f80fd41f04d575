//! Jobs of the service on this engine: what a fake cannot show, which is process trees, real output and a kernel's times.
//!
//! Layers that the host cannot give must be named in `SANDPEN_TEST_ALLOW_MISSING`.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use egress::{Gateway, GatewaySettings};
use engine_native::{NativeConfig, NativeEngine};
use libtest_mimic::{Arguments, Trial};
use sandbox::{
    ByteRange, Engine, ExecRequest, ExecStatus, InstanceId, Job, JobFile, JobPlace, JobRequest, JobResult, JobWork,
    Layer, ListOptions, Owner, RunCode, SandboxId, SandboxService, SandboxSpec, ServiceSettings,
};

type Case = fn(World) -> Pin<Box<dyn Future<Output = ()>>>;

const CASES: [(&str, Case); 6] = [
    ("what_a_run_made_can_be_read_after_its_sandbox", |world| Box::pin(artifacts(world))),
    ("only_what_a_run_changed_is_its_artifact", |world| Box::pin(changes(world))),
    ("a_stop_kills_the_whole_tree", |world| Box::pin(stop(world))),
    ("a_stop_does_not_wait_for_a_child_that_is_being_made", |world| Box::pin(stop_in_vfork(world))),
    ("stops_at_any_moment_leave_nothing", |world| Box::pin(stops(world))),
    ("a_flood_stays_within_its_caps", |world| Box::pin(flood(world))),
];

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    // One store of images for all: finding the host's interpreters takes longer than all cases together.
    let state = tempfile::tempdir().expect("a temporary directory");
    let trials = CASES.map(|(name, case)| {
        let state_dir = state.path().to_owned();
        Trial::test(name, move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { case(World::new(state_dir).await).await });
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

struct World {
    engine: Arc<NativeEngine>,
    service: SandboxService,
}

impl World {
    async fn new(state_dir: PathBuf) -> Self {
        let allowed = std::env::var("SANDPEN_TEST_ALLOW_MISSING").unwrap_or_default();
        let allow_missing: BTreeSet<Layer> =
            allowed.split(',').filter(|name| !name.is_empty()).map(|name| name.parse().expect("a layer")).collect();
        let instance = InstanceId::random().expect("random numbers");
        let settings = ServiceSettings::new(state_dir.join(instance.as_str()), instance.clone());
        let gateway = Arc::new(Gateway::new(GatewaySettings::default()));
        let config = NativeConfig { allow_missing, ..NativeConfig::new(state_dir, instance, gateway) };
        let engine = Arc::new(NativeEngine::start(config).await.expect("the engine starts"));
        let service = SandboxService::start(Arc::clone(&engine) as Arc<dyn Engine>, settings).await.expect("a service");
        Self { engine, service }
    }

    fn start(&self, request: JobRequest) -> Job {
        self.service.start_job(&owner(), request).expect("a job")
    }

    async fn run(&self, request: JobRequest) -> (Job, JobResult) {
        let job = self.start(request);
        let result = job.wait().await.expect("a result");
        assert_eq!(result.outcome.status, ExecStatus::Exited(0), "{}", job.output().stderr.to_text());
        (job, result)
    }

    /// Nothing runs in the sandbox, which is still there. What works on files for us is counted for a moment.
    async fn is_quiet(&self, id: &SandboxId) {
        for _ in 0..100 {
            let usage = self.service.usage(&owner(), id).await.expect("the sandbox has not gone with the run");
            if usage.processes == Some(0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("something still runs");
    }

    async fn read(&self, job: &Job, path: &str) -> Vec<u8> {
        let path = path.parse().expect("a path");
        let read = self.service.read_artifact(&owner(), job.sandbox(), &path, ByteRange::default()).await;
        read.expect("an artifact").1
    }
}

fn owner() -> Owner {
    Owner::local()
}

fn fresh() -> JobPlace {
    JobPlace::Fresh(Box::new(SandboxSpec::new(owner())))
}

fn shell(place: JobPlace, script: &str) -> JobRequest {
    let command = ExecRequest::shell(script, Duration::from_secs(300)).expect("a command");
    JobRequest::new(place, JobWork::Command(command))
}

fn names(result: &JobResult) -> Vec<String> {
    result.artifacts.iter().map(|artifact| artifact.path.to_string()).collect()
}

async fn artifacts(world: World) {
    let code = "import sys, os\nos.mkdir('out')\nopen('out/plot.png', 'wb').write(b'\\x89PNG' + sys.stdin.buffer.read())\n\
                open('large', 'wb').write(bytes(9 << 20))\nprint(open('data.csv').read())";
    let mut request = JobRequest::new(fresh(), JobWork::Code(RunCode::new("python", code, Duration::from_secs(60))));
    request.stdin = vec![b'x'; 1 << 20];
    request.files = vec![JobFile { path: "data.csv".parse().expect("a path"), contents: b"a,b".to_vec() }];
    let (job, result) = world.run(request).await;
    assert_eq!(job.output().stdout.to_text(), "a,b\n");
    assert_eq!(names(&result), ["/workspace/large", "/workspace/out/plot.png"]);
    job.stop().await.expect("what it ran in is cleared away");
    assert!(world.engine.list().await.expect("a list").is_empty(), "its sandbox is gone");
    let plot = world.read(&job, "out/plot.png").await;
    assert_eq!((plot.len(), &plot[..4]), ((1 << 20) + 4, b"\x89PNG".as_slice()));
    let kept = world.service.kept_artifacts(&owner(), job.sandbox());
    assert_eq!(kept, result.artifacts[1..], "the large one is named and not kept");
}

async fn changes(world: World) {
    let info = world.service.create(&owner(), SandboxSpec::new(owner())).await.expect("a sandbox");
    let inside = |script| shell(JobPlace::Existing(info.id.clone()), script);
    let (_, result) = world.run(inside("echo a > a; echo b > b; echo c > c; mkdir -p .cache; echo d > .cache/d")).await;
    assert_eq!(names(&result), ["/workspace/a", "/workspace/b", "/workspace/c"]);
    for _ in 0..10 {
        assert_eq!(names(&world.run(inside("cat a b c")).await.1), Vec::<String>::new());
    }
    for _ in 0..5 {
        let work = JobWork::Code(RunCode::new("python", "print(1)", Duration::from_secs(60)));
        world.run(JobRequest::new(JobPlace::Existing(info.id.clone()), work)).await;
        let files = world.service.files(&owner(), &info.id).expect("its files");
        let options = ListOptions { recursive: false, max_entries: 100 };
        let listing = files.list(&info.work_directory, options).await.expect("a listing");
        assert_eq!(listing.entries.len(), 4, "the code is gone when the end is told: {listing:?}");
    }
    // Times that a program sets, as what unpacks an archive does, and a new name for an old file.
    let (_, result) = world.run(inside("touch -d @0 a; echo d >> b; touch -d @0 b; mv c moved")).await;
    assert_eq!(names(&result), ["/workspace/a", "/workspace/b", "/workspace/moved"]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(names(&world.run(inside("echo new > new; cat b")).await.1), ["/workspace/new"]);
}

async fn stop(world: World) {
    let info = world.service.create(&owner(), SandboxSpec::new(owner())).await.expect("a sandbox");
    let script = "setsid sleep 1000 & (trap '' TERM INT; sleep 1000) & echo begun; sleep 1000";
    let job = world.start(shell(JobPlace::Existing(info.id.clone()), script));
    job.follow().next().await.expect("its first output");
    let begun = Instant::now();
    job.stop().await.expect("a stop");
    let took = begun.elapsed();
    assert_eq!(job.wait().await.expect("a result").outcome.status, ExecStatus::Cancelled);
    world.is_quiet(&info.id).await;
    // One second is promised; the rest is for a machine that is busy with other tests.
    assert!(took < Duration::from_secs(3), "{took:?}");
}

async fn stop_in_vfork(world: World) {
    let info = world.service.create(&owner(), SandboxSpec::new(owner())).await.expect("a sandbox");
    // The child opens the FIFO before it becomes the program, and its parent waits in the kernel until it has.
    let code = "import os\nos.mkfifo('fifo')\nprint('begun', flush=True)\n\
                os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'fifo', os.O_RDONLY, 0)])";
    let work = JobWork::Code(RunCode::new("python", code, Duration::from_secs(60)));
    let job = world.start(JobRequest::new(JobPlace::Existing(info.id.clone()), work));
    job.follow().next().await.expect("its first output");
    tokio::time::sleep(Duration::from_millis(100)).await;
    job.stop().await.expect("a stop");
    assert_eq!(job.wait().await.expect("a result").outcome.status, ExecStatus::Cancelled);
    world.is_quiet(&info.id).await;
}

async fn stops(world: World) {
    let info = world.service.create(&owner(), SandboxSpec::new(owner())).await.expect("a sandbox");
    for round in 0..60 {
        let place = if round % 2 == 0 { fresh() } else { JobPlace::Existing(info.id.clone()) };
        let job = world.start(shell(place, "for i in 1 2 3; do sh -c 'sleep 0.001 & echo x > made'; done; sleep 0.01"));
        tokio::time::sleep(Duration::from_micros(round * 500)).await;
        job.stop().await.expect("a stop");
        let status = job.wait().await.expect("a result").outcome.status;
        assert!(matches!(status, ExecStatus::Cancelled | ExecStatus::Exited(0)), "{status:?}");
        let left = world.engine.list().await.expect("a list");
        let left: Vec<_> = left.iter().map(|sandbox| &sandbox.id).collect();
        assert_eq!(left, [&info.id], "round {round}");
    }
    world.is_quiet(&info.id).await;
}

async fn flood(world: World) {
    world.run(shell(fresh(), "true")).await;
    let before = resident();
    let job = world.start(shell(fresh(), "head -c 1G /dev/zero | tr '\\0' x"));
    let never_read = job.follow();
    let mut ended = std::pin::pin!(job.wait());
    let mut most = before;
    let result = loop {
        tokio::select! {
            result = &mut ended => break result.expect("a result"),
            () = tokio::time::sleep(Duration::from_millis(20)) => most = most.max(resident()),
        }
    };
    let output = job.output().stdout;
    assert_eq!((result.outcome.status, output.total()), (ExecStatus::Exited(0), 1 << 30));
    assert_eq!(output.bytes().len(), 512 * 1024);
    let growth = most.saturating_sub(before);
    println!("1 GiB in {:?}, {} KiB more memory", result.outcome.usage.wall, growth / 1024);
    // One mebibyte is kept; the rest is for other cases that run meanwhile.
    assert!(growth < 48 << 20, "{growth} bytes more for 1 GiB of output");
    drop(never_read);
}

/// What this process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("our own memory");
    let pages: u64 = status.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4096
}
