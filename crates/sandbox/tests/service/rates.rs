//! How much and how often, of all owners and of some of them, also when that changes.

use std::num::NonZeroU32;

use sandbox::{
    Bounds, ErrorKind, ExecRequest, IdempotencyKey, JobPlace, JobRequest, JobWork, Owner, PerMinute, Quota,
    SandboxService,
};

use crate::support::{World, create, kind, owner, seconds, shell, spec};

fn runs(count: u32) -> Quota {
    Quota { runs: Some(PerMinute(NonZeroU32::new(count).unwrap())), ..Quota::default() }
}

fn job(service: &SandboxService, key: Option<&str>) -> sandbox::Result<sandbox::Job> {
    let work = JobWork::Command(ExecRequest::shell("true", seconds(5)).unwrap());
    let mut request = JobRequest::new(JobPlace::Fresh(Box::new(spec())), work);
    request.key = key.map(|key| key.parse::<IdempotencyKey>().unwrap());
    service.start_job(&owner(), request)
}

#[tokio::test(start_paused = true)]
async fn runs_of_one_owner_are_counted_together_and_come_back_with_time() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota = runs(3)).await;
    let info = create(&service, spec()).await;
    shell(&service, &info.id, "true").await.unwrap();
    let first = job(&service, Some("once")).unwrap();
    // The same again is no other run.
    assert_eq!(job(&service, Some("once")).unwrap().id(), first.id());
    shell(&service, &info.id, "true").await.unwrap();
    let refused = shell(&service, &info.id, "true").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert_eq!(refused.message(), "you may start 3 runs in a minute, and have");
    assert!(refused.hint().unwrap().starts_with("try again in "), "{refused:?}");
    assert_eq!(job(&service, None).unwrap_err().kind(), ErrorKind::LimitExceeded);
    let other: Owner = "other".parse().unwrap();
    let theirs = service.create(&other, spec()).await.unwrap();
    service.exec(&other, &theirs.id, ExecRequest::shell("true", seconds(5)).unwrap()).await.unwrap();
    tokio::time::sleep(seconds(20)).await;
    shell(&service, &info.id, "true").await.unwrap();
    assert_eq!(kind(shell(&service, &info.id, "true").await), ErrorKind::LimitExceeded);
}

#[tokio::test]
async fn some_owners_have_other_bounds_and_all_of_them_can_change() {
    let world = World::new();
    let (rich, poor): (Owner, Owner) = ("rich".parse().unwrap(), "poor".parse().unwrap());
    let bounds = |sandboxes| Quota { sandboxes, ..Quota::default() };
    let service = world
        .process_set(|settings| {
            settings.quota = bounds(1);
            settings.quota_of.insert(rich.clone(), bounds(2));
        })
        .await;
    for owner in [&rich, &rich, &poor] {
        service.create(owner, spec()).await.unwrap();
    }
    for owner in [&rich, &poor] {
        assert_eq!(kind(service.create(owner, spec()).await), ErrorKind::LimitExceeded);
    }
    service.set_bounds(Bounds { usual: bounds(2), of: [(rich.clone(), bounds(1))].into() });
    service.create(&poor, spec()).await.unwrap();
    assert_eq!(kind(service.create(&rich, spec()).await), ErrorKind::LimitExceeded);
    assert_eq!(service.list(&rich).await.unwrap().len(), 2, "what was there stays");
}

#[tokio::test]
async fn processors_are_counted_over_all_sandboxes() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota.cpu_millis = Some(2500)).await;
    let mut half = spec();
    half.limits.cpu_millis = 500;
    for spec in [spec(), spec(), half.clone()] {
        create(&service, spec).await;
    }
    let refused = service.create(&owner(), half).await.unwrap_err();
    assert_eq!(refused.message(), "0.5 more processors would make 3, and 2.5 are allowed");
}
