use sandbox::{ErrorKind, ExecRequest, JobFile, JobStatus};

use super::{fresh, inside};
use crate::support::{World, create, kind, owner, says, seconds, spec, write};

#[tokio::test]
async fn a_checkpoint_is_of_the_moment_before_the_run_and_its_files() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    write(&service, &info.id, "file", b"before").await;
    let mut request = inside(&info.id, "echo after > file; echo x > new");
    request.checkpoint = true;
    request.files = vec![JobFile { path: "came".parse().unwrap(), contents: b"x".to_vec() }];
    let result = service.start_job(&owner(), request).unwrap().wait().await.unwrap();
    let checkpoint = result.checkpoint.expect("one was asked for");
    let changes = service.changes(&owner(), &info.id, Some(checkpoint), 10).await.unwrap();
    let paths: Vec<String> = changes.entries.iter().map(|change| change.path.to_string()).collect();
    assert_eq!(paths, ["/workspace/came", "/workspace/file", "/workspace/new"]);
    service.restore(&owner(), &info.id, checkpoint).await.unwrap();
    assert_eq!(says(&service, &info.id, "cat file; test -e new || echo gone").await, "beforegone\n");

    let plain = service.start_job(&owner(), inside(&info.id, "true")).unwrap().wait().await.unwrap();
    assert_eq!(plain.checkpoint, None);
}

#[tokio::test]
async fn a_run_without_the_checkpoint_that_it_asked_for_does_not_start() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let running = service.exec(&owner(), &info.id, ExecRequest::shell("sleep 60", seconds(60)).unwrap()).await.unwrap();
    let mut request = inside(&info.id, "echo x > made");
    request.checkpoint = true;
    let job = service.start_job(&owner(), request.clone()).unwrap();
    assert_eq!(kind(job.wait().await), ErrorKind::WrongState);
    assert!(matches!(job.status(), JobStatus::Failed(_)));
    running.cancel().await.unwrap();
    running.wait().await.unwrap();
    assert_eq!(says(&service, &info.id, "test -e made || echo not").await, "not\n");
    service.start_job(&owner(), request).unwrap().wait().await.unwrap();
    assert_eq!(says(&service, &info.id, "cat made").await, "x\n");
}

#[tokio::test]
async fn a_sandbox_that_ends_with_its_job_has_no_checkpoints() {
    let world = World::new();
    let service = world.process().await;
    let mut request = fresh("true");
    request.checkpoint = true;
    assert_eq!(kind(service.start_job(&owner(), request)), ErrorKind::InvalidInput);
}
