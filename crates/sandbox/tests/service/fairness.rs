//! Creates of many owners at once, on an engine that takes its time.

use std::time::Duration;

use sandbox::engine::fake::Operation;
use sandbox::{ErrorKind, Owner, SandboxInfo, SandboxService};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{World, kind, poll_times, settle, spec};

const CREATE: Duration = Duration::from_millis(100);

fn named(name: &str) -> Owner {
    name.parse().unwrap()
}

async fn busy_world(slots: usize, places: usize) -> (World, SandboxService) {
    let world = World::new();
    let mut settings = world.settings();
    settings.create_slots = slots;
    settings.create_queue = places;
    let service = world.process_with(settings).await;
    world.host.delay(Operation::Create, CREATE);
    (world, service)
}

/// What `count` creates at once came to, and when.
fn storm(service: &SandboxService, owner: &Owner, count: usize) -> JoinSet<(sandbox::Result<SandboxInfo>, Instant)> {
    let mut creates = JoinSet::new();
    for _ in 0..count {
        let (service, owner) = (service.clone(), owner.clone());
        creates.spawn(async move { (service.create(&owner, spec()).await, Instant::now()) });
    }
    creates
}

/// How long one create takes, in units of one on an idle service.
async fn time_one(service: &SandboxService, owner: &Owner) -> f64 {
    let started = Instant::now();
    service.create(owner, spec()).await.unwrap();
    started.elapsed().as_secs_f64() / CREATE.as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_one_owner_costs_another_at_most_twice_its_idle_time() {
    for slots in 1..=8 {
        let (_world, service) = busy_world(slots, 32).await;
        let mut storm = storm(&service, &named("greedy"), 1000);
        settle().await;
        for _ in 0..5 {
            let took = time_one(&service, &named("modest")).await;
            let most = if slots == 1 { 2.05 } else { 1.05 };
            assert!(took <= most, "{slots} slots: {took} times its idle time");
            // Somewhere else in the rhythm of the storm.
            tokio::time::sleep(CREATE.mul_f64(0.3)).await;
        }
        let (mut made, mut busy) = (0, 0);
        while let Some(ended) = storm.join_next().await {
            match ended.unwrap().0 {
                Ok(_) => made += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
                    assert!(error.message().contains("busy") && error.hint().is_some());
                    busy += 1;
                }
            }
        }
        assert_eq!((made, busy), (slots.div_ceil(2) + 16, 1000 - slots.div_ceil(2) - 16), "{slots} slots");
    }
}

#[tokio::test(start_paused = true)]
async fn storms_of_several_owners_cost_another_one_turn_of_each() {
    for (slots, storms) in [(1, 3), (2, 2), (2, 4), (4, 3), (4, 8), (8, 4), (8, 6)] {
        let (_world, service) = busy_world(slots, 10_000).await;
        let _storms: Vec<_> = (0..storms).map(|n| storm(&service, &named(&format!("greedy-{n}")), 50)).collect();
        settle().await;
        let took = time_one(&service, &named("modest")).await;
        let most = 1.0 + ((storms + 1) as f64 / slots as f64).ceil();
        assert!(took <= most + 0.05, "{slots} slots, {storms} storms: {took} times its idle time");
    }
}

#[tokio::test(start_paused = true)]
async fn owners_with_as_much_to_do_are_done_together() {
    let (_world, service) = busy_world(6, 1000).await;
    let started = Instant::now();
    let storms: Vec<_> = (0..4).map(|n| storm(&service, &named(&format!("owner-{n}")), 30)).collect();
    let mut ends = Vec::new();
    for mut storm in storms {
        let mut last = started;
        while let Some(ended) = storm.join_next().await {
            let (made, at) = ended.unwrap();
            made.unwrap();
            last = last.max(at);
        }
        ends.push((last - started).as_secs_f64());
    }
    let (first, last) = ends.iter().fold((f64::MAX, 0.0_f64), |(first, last), end| (first.min(*end), last.max(*end)));
    assert!(last <= first * 1.2, "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_of_one_owner_refuses_nobody_else() {
    let (_world, service) = busy_world(2, 8).await;
    let _storm = storm(&service, &named("greedy"), 100);
    settle().await;
    assert_eq!(kind(service.create(&named("greedy"), spec()).await), ErrorKind::LimitExceeded);
    let mut others = storm(&service, &named("other"), 3);
    while let Some(ended) = others.join_next().await {
        ended.unwrap().0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn creates_of_one_owner_are_made_in_their_order() {
    let (_world, service) = busy_world(1, 1000).await;
    let owner = named("orderly");
    let mut creates = Vec::new();
    for number in 0..20 {
        let (service, owner) = (service.clone(), owner.clone());
        creates.push(tokio::spawn(async move { (number, service.create(&owner, spec()).await.unwrap()) }));
        settle().await;
    }
    let mut made = Vec::new();
    for create in creates {
        let (number, info) = create.await.unwrap();
        made.push((info.created_at, number));
    }
    assert!(made.is_sorted(), "{made:?}");
}

/// A caller goes away after any number of polls: while it waits, in the moment of its turn, while its sandbox is made.
#[tokio::test(start_paused = true)]
async fn whoever_goes_away_while_waiting_takes_nothing_along() {
    for slots in [1, 2] {
        let mut delivered = 0;
        for polls in 0..260 {
            let (world, service) = busy_world(slots, 4).await;
            let (greedy, modest) = (named("greedy"), named("modest"));
            let mut others = storm(&service, &greedy, slots.div_ceil(2) + 2);
            tokio::task::yield_now().await;
            let leaver = if polls % 2 == 0 { &greedy } else { &modest };
            let made = poll_times(service.create(leaver, spec()), polls).await;
            // Both places that another owner could have are free again, and slots move on to those who still wait.
            let mut after = storm(&service, &modest, 1);
            let mut expected = usize::from(made.as_ref().is_some_and(Result::is_ok));
            while let Some(ended) = others.join_next().await {
                ended.unwrap().0.unwrap();
                expected += 1;
            }
            while let Some(ended) = after.join_next().await {
                ended.unwrap().0.unwrap();
                expected += 1;
            }
            delivered += usize::from(made.is_some());
            tokio::time::sleep(CREATE * 3).await;
            assert_eq!(world.host.existing().len(), expected, "{slots} slots, {polls} polls");
            // All slots are free: as many as an owner may have start at once.
            let started = Instant::now();
            let mut all = storm(&service, &greedy, slots.div_ceil(2));
            while let Some(ended) = all.join_next().await {
                ended.unwrap().0.unwrap();
            }
            assert!(started.elapsed() < CREATE.mul_f64(1.5), "{slots} slots, {polls} polls: a slot is lost");
        }
        assert!(delivered > 0 && delivered < 260, "{delivered} were delivered");
    }
}

/// On real threads, where a turn comes while its holder goes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turns_that_race_with_their_end_are_not_lost() {
    let (world, service) = busy_world(2, 64).await;
    world.host.delay(Operation::Create, Duration::from_micros(200));
    let mut callers = JoinSet::new();
    for number in 0..400_u64 {
        let (service, owner) = (service.clone(), named(&format!("owner-{}", number % 5)));
        callers.spawn(async move {
            let patience = Duration::from_micros(number * 37 % 4000);
            let _ = tokio::time::timeout(patience, service.create(&owner, spec())).await;
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    for number in 0..5 {
        let owner = named(&format!("owner-{number}"));
        let made = tokio::time::timeout(Duration::from_secs(10), service.create(&owner, spec())).await;
        made.expect("a slot was lost").unwrap();
    }
}
