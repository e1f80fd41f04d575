//! What is kept of jobs is bounded in number, bytes and time.

use sandbox::engine::fake::Operation;
use sandbox::{ByteRange, ErrorKind, JobRequest, OutputCaps, Owner, Quota};

use super::{fresh, inside, run, start, status, stdout};
use crate::support::{World, create, kind, owner, persistent, seconds, spec};

const ALL: ByteRange = ByteRange { offset: 0, length: None };

#[tokio::test]
async fn the_oldest_ended_jobs_make_room() {
    let world = World::new();
    let service = world.process_set(|settings| settings.jobs.kept_jobs = 3).await;
    let running = start(&service, fresh("sleep 1000"));
    let mut ended = Vec::new();
    for number in 0..5 {
        let job = start(&service, fresh(&format!("echo {number}")));
        status(&job).await;
        ended.push(job);
    }
    let known: Vec<_> = service.jobs(&owner()).iter().map(|job| job.id().clone()).collect();
    let expected: Vec<_> = [&running].into_iter().chain(&ended[2..]).map(|job| job.id().clone()).collect();
    assert_eq!(known, expected);
    assert_eq!(kind(service.job(&owner(), ended[0].id())), ErrorKind::NotFound);
    assert_eq!(stdout(&ended[0]), "0\n", "who holds it can read it");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn kept_output_is_bounded_per_owner() {
    let world = World::new();
    let service = world.process_set(|settings| settings.jobs.kept_output = 25_000).await;
    let other: Owner = "other".parse().unwrap();
    service.start_job(&other, fresh("head -c 20000 /dev/zero")).unwrap().wait().await.unwrap();
    for _ in 0..5 {
        run(&service, fresh("head -c 10000 /dev/zero")).await.unwrap();
    }
    assert_eq!(service.jobs(&owner()).len(), 2);
    assert_eq!(service.jobs(&other).len(), 1);
}

#[tokio::test]
async fn a_job_can_ask_for_more_of_its_output_to_be_kept_up_to_a_bound() {
    let world = World::new();
    let usual = OutputCaps { head: 1000, tail: 1000 };
    let most = OutputCaps { head: 3000, tail: 2000 };
    let service = world
        .process_set(|settings| {
            settings.jobs.output = usual;
            settings.jobs.most_output = most;
        })
        .await;
    let caps = |bytes| Some(OutputCaps { head: bytes, tail: bytes });
    for (asked, kept) in [(None, 2000), (caps(10), 20), (caps(1500), 3000), (caps(usize::MAX), 5000)] {
        let job = start(&service, JobRequest { kept: asked, ..fresh("head -c 20000 /dev/zero") });
        status(&job).await;
        assert_eq!(job.output().stdout.kept(), kept, "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ended_jobs_and_their_artifacts_are_forgotten_in_time() {
    let world = World::new();
    let service = world.process().await;
    let early = start(&service, fresh("echo a > out"));
    status(&early).await;
    let long = start(&service, fresh("sleep 59"));
    tokio::time::sleep(seconds(9 * 60)).await;
    assert!(service.job(&owner(), early.id()).is_ok());
    let path = "out".parse().unwrap();
    assert!(service.read_artifact(&owner(), early.sandbox(), &path, ALL).await.is_ok());
    tokio::time::sleep(seconds(65)).await;
    assert_eq!(kind(service.job(&owner(), early.id())), ErrorKind::NotFound);
    assert_eq!(kind(service.read_artifact(&owner(), early.sandbox(), &path, ALL).await), ErrorKind::NotFound);
    assert_eq!(service.job(&owner(), long.id()).unwrap().id(), long.id(), "counted from its end");
    tokio::time::sleep(seconds(60)).await;
    assert!(service.jobs(&owner()).is_empty());
}

#[tokio::test]
async fn running_jobs_are_bounded_and_ended_ones_make_room_at_once() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota = Quota { jobs: 2, ..Quota::default() }).await;
    let jobs = [start(&service, fresh("sleep 1000")), start(&service, fresh("sleep 1000"))];
    let error = service.start_job(&owner(), fresh("true")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.hint().is_some());
    assert!(service.start_job(&"other".parse().unwrap(), fresh("true")).is_ok());
    jobs[0].stop().await.unwrap();
    for _ in 0..20 {
        run(&service, fresh("true")).await.unwrap();
    }
    jobs[1].stop().await.unwrap();
}

#[tokio::test]
async fn a_tight_quota_of_sandboxes_is_enough_for_one_after_another() {
    let world = World::new();
    let service =
        world.process_set(|settings| settings.quota = Quota { sandboxes: 1, execs: 1, ..Quota::default() }).await;
    for _ in 0..50 {
        run(&service, fresh("true")).await.unwrap();
    }
    let first = start(&service, fresh("sleep 1000"));
    crate::support::settle().await;
    assert_eq!(kind(run(&service, fresh("true")).await), ErrorKind::LimitExceeded);
    first.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_has_no_room_waits_for_a_sandbox_whose_run_is_over() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota = Quota { sandboxes: 1, ..Quota::default() }).await;
    world.host.delay(Operation::Destroy, seconds(1));
    for _ in 0..3 {
        run(&service, fresh("true")).await.unwrap();
    }
    let info = service.create(&owner(), spec()).await.expect("room for one that stays");
    assert_eq!(kind(run(&service, fresh("true")).await), ErrorKind::LimitExceeded, "that one is not about to go");
    service.stop(&owner(), &info.id).await.unwrap();

    world.host.delay(Operation::Destroy, seconds(60));
    run(&service, fresh("true")).await.unwrap();
    assert_eq!(kind(run(&service, fresh("true")).await), ErrorKind::LimitExceeded, "not for ever");
}

#[tokio::test]
async fn kept_artifacts_are_bounded_per_file_owner_and_service() {
    let world = World::new();
    let mut settings = world.settings();
    settings.jobs.artifact_bytes = 1000;
    settings.jobs.owner_artifact_bytes = 2500;
    settings.jobs.all_artifact_bytes = 4500;
    let service = world.process_with(settings).await;
    let make = async |owner: &Owner, bytes: usize| {
        let job = service.start_job(owner, fresh(&format!("head -c {bytes} /dev/zero > out"))).unwrap();
        let result = job.wait().await.unwrap();
        assert_eq!(result.artifacts[0].bytes, bytes as u64);
        job.sandbox().clone()
    };
    let path = "out".parse().unwrap();
    let large = make(&owner(), 1001).await;
    let error = service.read_artifact(&owner(), &large, &path, ALL).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.hint().unwrap().contains("create a sandbox"), "{error:?}");
    assert!(service.kept_artifacts(&owner(), &large).is_empty());

    let mine = [make(&owner(), 1000).await, make(&owner(), 1000).await, make(&owner(), 1000).await];
    let is_kept = |owner: &Owner, id| !service.kept_artifacts(owner, id).is_empty();
    assert_eq!([0, 1, 2].map(|index| is_kept(&owner(), &mine[index])), [false, true, true]);
    let other: Owner = "other".parse().unwrap();
    let theirs = [make(&other, 1000).await, make(&other, 1000).await];
    assert_eq!([1, 2].map(|index| is_kept(&owner(), &mine[index])), [true, true]);
    let third: Owner = "third".parse().unwrap();
    make(&third, 1000).await;
    assert_eq!([1, 2].map(|index| is_kept(&owner(), &mine[index])), [false, true], "the oldest of all");
    assert_eq!([0, 1].map(|index| is_kept(&other, &theirs[index])), [true, true]);
}

#[tokio::test]
async fn kept_artifacts_are_their_owners_and_go_with_the_service() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, fresh("echo 0123456789 > out"));
    status(&job).await;
    let path = "out".parse().unwrap();
    let (stat, bytes) = service.read_artifact(&owner(), job.sandbox(), &path, ALL).await.unwrap();
    assert_eq!((stat.bytes, bytes.as_slice()), (11, b"0123456789\n".as_slice()));
    let part = ByteRange { offset: 3, length: Some(4) };
    let (stat, bytes) = service.read_artifact(&owner(), job.sandbox(), &path, part).await.unwrap();
    assert_eq!((stat.bytes, bytes.as_slice()), (11, b"3456".as_slice()));
    let beyond = ByteRange { offset: 100, length: Some(u64::MAX) };
    assert!(service.read_artifact(&owner(), job.sandbox(), &path, beyond).await.unwrap().1.is_empty());
    let other: Owner = "other".parse().unwrap();
    assert_eq!(kind(service.read_artifact(&other, job.sandbox(), &path, ALL).await), ErrorKind::NotFound);
    assert!(service.kept_artifacts(&other, job.sandbox()).is_empty());
    let missing = service.read_artifact(&owner(), job.sandbox(), &"none".parse().unwrap(), ALL).await;
    assert_eq!(kind(missing), ErrorKind::NotFound);
    service.shutdown().await.unwrap();
    assert!(service.kept_artifacts(&owner(), job.sandbox()).is_empty());
}

/// Nobody was told its id, so nobody would have asked for it in time.
#[tokio::test(start_paused = true)]
async fn a_recorded_job_is_kept_for_its_own_time_and_known_to_the_next_process() {
    let world = World::new();
    let service = world.process().await;
    let sandbox = create(&service, persistent("kept")).await;
    let recorded = JobRequest { recorded: Some(seconds(3600)), ..inside(&sandbox.id, "echo recorded") };
    let recorded = start(&service, recorded);
    let usual = start(&service, inside(&sandbox.id, "echo usual"));
    let passing = start(&service, JobRequest { recorded: Some(seconds(3600)), ..fresh("echo passing") });
    for job in [&recorded, &usual, &passing] {
        status(job).await;
    }
    tokio::time::sleep(seconds(11 * 60)).await;
    for job in [&usual, &passing] {
        assert_eq!(kind(service.job(&owner(), job.id())), ErrorKind::NotFound);
    }
    service.shutdown().await.unwrap();
    let id = recorded.id().clone();
    // A process that is gone holds nothing, and in one process nothing else ends what handles hold.
    drop((service, recorded, usual, passing));
    let next = world.process().await;
    assert_eq!(stdout(&next.job(&owner(), &id).unwrap()), "recorded\n");
    tokio::time::sleep(seconds(3601)).await;
    assert_eq!(kind(next.job(&owner(), &id)), ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(world.state.path().join("jobs")).unwrap().count(), 0);
}
