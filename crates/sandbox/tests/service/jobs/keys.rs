//! Requests that come twice.

use sandbox::{ErrorKind, IdempotencyKey, JobRequest};

use super::{file, fresh, inside, start, status, stdout};
use crate::support::{World, create, kind, owner, seconds, spec};

fn keyed(mut request: JobRequest, key: &str) -> JobRequest {
    request.key = Some(key.parse::<IdempotencyKey>().unwrap());
    request
}

#[tokio::test]
async fn the_same_request_with_the_same_key_is_the_same_job() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let request = keyed(inside(&info.id, "echo run >> log; cat log"), "one");
    let first = start(&service, request.clone());
    let again = start(&service, request.clone());
    assert_eq!(first.id(), again.id());
    status(&first).await;
    let later = start(&service, request.clone());
    assert_eq!((later.id(), stdout(&later).as_str()), (first.id(), "run\n"));
    service.stop(&owner(), &info.id).await.unwrap();
    assert_eq!(start(&service, request.clone()).id(), first.id(), "also when it could not be started anew");
    assert_eq!(service.jobs(&owner()).len(), 1);
}

#[tokio::test]
async fn a_key_belongs_to_one_request_of_one_owner() {
    let world = World::new();
    let service = world.process().await;
    let first = start(&service, keyed(fresh("true"), "one"));
    let error = service.start_job(&owner(), keyed(fresh("false"), "one")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.hint().unwrap().contains("new key"));
    let mut with_a_file = keyed(fresh("true"), "one");
    with_a_file.files.push(file("/workspace/a", "b"));
    assert_eq!(kind(service.start_job(&owner(), with_a_file)), ErrorKind::AlreadyExists);
    assert_ne!(start(&service, keyed(fresh("true"), "two")).id(), first.id());
    assert_ne!(start(&service, fresh("true")).id(), first.id());
    let other = service.start_job(&"other".parse().unwrap(), keyed(fresh("true"), "one")).unwrap();
    assert_ne!(other.id(), first.id());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_at_once_one_runs() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    for round in 0..20 {
        let request = keyed(inside(&info.id, &format!("echo run >> log{round}; cat log{round}")), &round.to_string());
        let starts: Vec<_> = (0..20)
            .map(|_| {
                let (service, request) = (service.clone(), request.clone());
                tokio::spawn(async move { service.start_job(&owner(), request).unwrap() })
            })
            .collect();
        let mut ids = std::collections::HashSet::new();
        for started in starts {
            let job = started.await.unwrap();
            status(&job).await;
            assert_eq!(stdout(&job), "run\n");
            ids.insert(job.id().clone());
        }
        assert_eq!(ids.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_free_again_when_its_job_is_forgotten() {
    let world = World::new();
    let service = world.process().await;
    let request = keyed(fresh("true"), "one");
    let first = start(&service, request.clone());
    status(&first).await;
    tokio::time::sleep(seconds(11 * 60)).await;
    assert_ne!(start(&service, request).id(), first.id());
}
