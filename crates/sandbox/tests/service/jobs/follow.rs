//! Reading output while it comes: whole when one keeps up, bounded when one does not.

use std::time::{Duration, Instant};

use sandbox::{ExecRequest, ExecStatus, JobChunk, JobFollower, JobStream, JobWork, OutputCaps};

use super::{fresh, start, status};
use crate::support::World;

async fn rest(mut follower: JobFollower) -> Vec<JobChunk> {
    let mut chunks = Vec::new();
    while let Some(chunk) = follower.next().await {
        chunks.push(chunk);
    }
    chunks
}

fn text(chunks: &[JobChunk], stream: JobStream) -> String {
    let bytes: Vec<u8> =
        chunks.iter().filter(|chunk| chunk.stream == stream).flat_map(|chunk| chunk.bytes.clone()).collect();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn output_is_there_while_the_program_runs() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, fresh("echo one; echo two >&2; sleep 1000"));
    let mut follower = job.follow();
    let first = follower.next().await.unwrap();
    assert_eq!((first.stream, first.bytes.as_slice(), first.skipped), (JobStream::Stdout, b"one\n".as_slice(), 0));
    let second = follower.next().await.unwrap();
    assert_eq!((second.stream, second.bytes.as_slice()), (JobStream::Stderr, b"two\n".as_slice()));
    assert_eq!(job.output().stdout.to_text(), "one\n");
    job.stop().await.unwrap();
    assert_eq!(follower.next().await, None);
}

#[tokio::test]
async fn a_late_follower_gets_all_from_the_start() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, fresh("echo a; echo b; echo c >&2"));
    job.wait().await.unwrap();
    let chunks = rest(job.follow()).await;
    assert_eq!((text(&chunks, JobStream::Stdout), text(&chunks, JobStream::Stderr)), ("a\nb\n".into(), "c\n".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_followers_get_the_same() {
    let world = World::new();
    let service = world.process().await;
    let script: String = (0..200).map(|number| format!("echo {number}; echo {number} >&2\n")).collect();
    let job = start(&service, fresh(&script));
    let followers: Vec<_> = (0..8).map(|_| tokio::spawn(rest(job.follow()))).collect();
    let expected: String = (0..200).map(|number| format!("{number}\n")).collect();
    for follower in followers {
        let chunks = follower.await.unwrap();
        assert!(chunks.iter().all(|chunk| chunk.skipped == 0));
        assert_eq!(text(&chunks, JobStream::Stdout), expected);
        assert_eq!(text(&chunks, JobStream::Stderr), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_never_reads_holds_up_nobody_and_is_told() {
    let world = World::new();
    let service = world.process_set(|settings| settings.jobs.output = OutputCaps { head: 1000, tail: 2000 }).await;
    let mut request = fresh("");
    request.work = JobWork::Command(ExecRequest::new(["yes"], Duration::from_millis(500)).unwrap());
    let begun = Instant::now();
    let job = start(&service, request);
    let follower = job.follow();
    assert_eq!(status(&job).await, ExecStatus::TimedOut);
    assert!(begun.elapsed() < Duration::from_secs(20));
    let output = job.output().stdout;
    assert!(output.total() > 5000, "it went on: {}", output.total());
    assert_eq!(output.bytes().len(), 3000);
    let chunks = rest(follower).await;
    let (got, skipped) =
        chunks.iter().fold((0, 0), |(got, skipped), chunk| (got + chunk.bytes.len(), skipped + chunk.skipped));
    assert_eq!((got, skipped), (3000, output.dropped()));
}

#[tokio::test(start_paused = true)]
async fn a_follow_that_is_given_up_and_taken_up_again_loses_nothing() {
    let world = World::new();
    let service = world.process().await;
    let job = start(&service, fresh("sleep 0.05; echo late"));
    let mut follower = job.follow();
    for _ in 0..5 {
        assert!(tokio::time::timeout(Duration::from_millis(1), follower.next()).await.is_err());
    }
    assert_eq!(text(&rest(follower).await, JobStream::Stdout), "late\n");
}
