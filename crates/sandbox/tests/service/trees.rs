//! Saving, branching and going back: whose they are, who waits for them, and what they count for.

use std::time::Duration;

use sandbox::engine::fake::{FakeHost, Operation};
use sandbox::{
    Checkpoint, ErrorKind, ExecRequest, ForkRequest, Image, Lifetime, Network, Owner, Persistence, Role,
    SandboxService, SandboxSpec, SavedName,
};

use crate::support::{
    World, create, drain, kind, living, owner, persistent, poll_times, says, seconds, settle, spec, words, write,
};

fn name(text: &str) -> SavedName {
    text.parse().unwrap()
}

fn from(text: &str) -> SandboxSpec {
    SandboxSpec { image: Image::Saved(name(text)), ..spec() }
}

fn fork_named(text: &str) -> ForkRequest {
    ForkRequest { name: Some(text.parse().unwrap()), persistence: Persistence::Persistent, ..ForkRequest::default() }
}

#[tokio::test]
async fn a_sandbox_of_somebody_else_is_not_there() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let checkpoint = service.checkpoint(&owner(), &info.id).await.unwrap();
    service.save(&owner(), &info.id, &name("lab")).await.unwrap();
    let other: Owner = "other".parse().unwrap();
    let kinds = [
        kind(service.save(&other, &info.id, &name("mine")).await),
        kind(service.fork(&other, &info.id, ForkRequest::default()).await),
        kind(service.checkpoint(&other, &info.id).await),
        kind(service.changes(&other, &info.id, None, 10).await),
        kind(service.restore(&other, &info.id, checkpoint).await),
        kind(service.history(&other, &info.id).await),
        kind(service.create(&other, from("lab")).await),
    ];
    assert_eq!(kinds, [ErrorKind::NotFound; 7]);
    assert!(service.saved(&other).await.unwrap().is_empty());
    assert!(!service.forget(&other, &name("lab")).await.unwrap());
    assert_eq!(service.saved(&owner()).await.unwrap().len(), 1);
    assert_eq!(world.host.existing(), [info.id]);
}

#[tokio::test]
async fn an_engine_that_cannot_says_so() {
    let world = World::new();
    let service = SandboxService::start(world.engine(), world.settings()).await.unwrap();
    let info = create(&service, spec()).await;
    let errors = [
        service.save(&owner(), &info.id, &name("lab")).await.unwrap_err(),
        service.saved(&owner()).await.unwrap_err(),
        service.forget(&owner(), &name("lab")).await.unwrap_err(),
        service.fork(&owner(), &info.id, ForkRequest::default()).await.unwrap_err(),
        service.checkpoint(&owner(), &info.id).await.unwrap_err(),
        service.changes(&owner(), &info.id, None, 10).await.unwrap_err(),
        service.restore(&owner(), &info.id, Checkpoint(1)).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("fake engine") && error.hint().is_some(), "{error:?}");
    }
    assert!(service.history(&owner(), &info.id).await.is_ok(), "a history needs no power");
}

#[tokio::test]
async fn what_happens_to_trees_is_told() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let mut events = service.subscribe();
    write(&service, &info.id, "file", b"x").await;
    let checkpoint = service.checkpoint(&owner(), &info.id).await.unwrap();
    service.restore(&owner(), &info.id, checkpoint).await.unwrap();
    assert_eq!(kind(service.restore(&owner(), &info.id, Checkpoint(99)).await), ErrorKind::NotFound);
    service.save(&owner(), &info.id, &name("lab")).await.unwrap();
    service.fork(&owner(), &info.id, ForkRequest::default()).await.unwrap();
    service.forget(&owner(), &name("lab")).await.unwrap();
    service.forget(&owner(), &name("lab")).await.unwrap();
    assert_eq!(
        words(&drain(&mut events)),
        ["file_written", "checkpointed", "restored", "tree_failed", "saved", "forked", "created", "forgotten"]
    );
}

#[tokio::test]
async fn a_fork_is_its_source_but_for_what_was_asked() {
    let world = World::new();
    let service = world.process().await;
    let mut first = living(60, Some(600));
    first.environment.insert("WHICH", "source").unwrap();
    first.network = Network::Internet;
    first.limits.processes = 77;
    let source = create(&service, first).await;
    write(&service, &source.id, "file", b"x").await;
    let branch = service.fork(&owner(), &source.id, ForkRequest::default()).await.unwrap();
    assert_ne!(branch.id, source.id);
    assert_eq!((branch.limits, &branch.network, branch.lifetime), (source.limits, &source.network, source.lifetime));
    assert_eq!((branch.name, branch.persistence), (None, Persistence::Ephemeral));
    assert_eq!(says(&service, &branch.id, "cat file; printenv WHICH").await, "xsource\n");

    let lifetime = Lifetime { idle: seconds(5), total: None };
    let asked = ForkRequest { lifetime: Some(lifetime), ..fork_named("branch") };
    let kept = service.fork(&owner(), &source.id, asked).await.unwrap();
    assert_eq!((kept.persistence, kept.lifetime), (Persistence::Persistent, lifetime));
    let next = world.process().await;
    assert_eq!(next.find(&owner(), "branch").await.unwrap().id, kept.id);
    assert_eq!(says(&next, &kept.id, "cat file; printenv WHICH").await, "xsource\n");
    next.stop(&owner(), &kept.id).await.unwrap();
    assert!(world.ledger_files().is_empty());
    assert_eq!(says(&service, &source.id, "cat file").await, "x");
}

#[tokio::test]
async fn what_no_caller_can_ask_for_is_not_branched() {
    let world = World::new();
    let service = world.process().await;
    let builder = create(&service, SandboxSpec { role: Role::Builder, ..spec() }).await;
    assert_eq!(kind(service.fork(&owner(), &builder.id, ForkRequest::default()).await), ErrorKind::Unsupported);
    assert_eq!(world.host.existing(), [builder.id]);

    let private_hosts = vec!["index.internal".parse().unwrap()];
    let network: Network = "index.internal".parse().unwrap();
    let source = create(&service, SandboxSpec { private_hosts, network: network.clone(), ..spec() }).await;
    let branch = service.fork(&owner(), &source.id, ForkRequest::default()).await.unwrap();
    assert_eq!(branch.network, network);
    assert!(world.host.spec(&branch.id).unwrap().private_hosts.is_empty());
    assert_eq!(world.host.spec(&source.id).unwrap().private_hosts.len(), 1);
}

#[tokio::test]
async fn a_fork_counts_as_a_create_does() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota.sandboxes = 2).await;
    let source = create(&service, persistent("lab")).await;
    assert_eq!(kind(service.fork(&owner(), &source.id, fork_named("lab")).await), ErrorKind::AlreadyExists);
    let branch = service.fork(&owner(), &source.id, fork_named("branch")).await.unwrap();
    assert_eq!(kind(service.fork(&owner(), &source.id, ForkRequest::default()).await), ErrorKind::LimitExceeded);
    let asked = ForkRequest { lifetime: Some(Lifetime { idle: Duration::MAX, total: None }), ..ForkRequest::default() };
    service.stop(&owner(), &branch.id).await.unwrap();
    assert_eq!(kind(service.fork(&owner(), &source.id, asked).await), ErrorKind::LimitExceeded);
    world.host.fail(Operation::Fork, 1, ErrorKind::Unavailable);
    assert_eq!(kind(service.fork(&owner(), &source.id, fork_named("branch")).await), ErrorKind::Unavailable);
    service.fork(&owner(), &source.id, fork_named("branch")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fork_waits_its_turn_and_expires_by_itself() {
    let world = World::new();
    let mut settings = world.settings();
    settings.create_slots = 1;
    settings.create_queue = 1;
    let service = world.process_with(settings).await;
    let source = create(&service, living(1000, None)).await;
    world.host.delay(Operation::Fork, seconds(1));
    let fork = |idle| {
        let (service, source) = (service.clone(), source.id.clone());
        let lifetime = Some(Lifetime { idle: seconds(idle), total: None });
        let request = ForkRequest { lifetime, ..ForkRequest::default() };
        tokio::spawn(async move { service.fork(&owner(), &source, request).await })
    };
    let (first, second) = (fork(100), fork(200));
    settle().await;
    assert_eq!(kind(fork(300).await.unwrap()), ErrorKind::LimitExceeded, "there is one slot and one place to wait");
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    tokio::time::sleep(seconds(150)).await;
    settle().await;
    assert!(!world.host.existing().contains(&first.id));
    assert!(world.host.existing().contains(&second.id));
}

#[tokio::test(start_paused = true)]
async fn a_fork_without_a_caller_leaves_nothing() {
    for request in [ForkRequest::default(), fork_named("branch")] {
        let mut delivered = 0;
        for polls in 0..40 {
            let world = World::new();
            let service = world.process().await;
            let source = create(&service, spec()).await;
            world.host.delay(Operation::Fork, Duration::from_millis(10));
            let made = poll_times(service.fork(&owner(), &source.id, request.clone()), polls).await;
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let expected = match made {
                Some(info) => {
                    delivered += 1;
                    vec![source.id.clone(), info.unwrap().id]
                }
                None => {
                    assert!(world.ledger_files().is_empty(), "{polls} polls: {:?}", world.ledger_files());
                    vec![source.id.clone()]
                }
            };
            let mut existing = world.host.existing();
            existing.sort_by_key(|id| *id != source.id);
            assert_eq!(existing, expected, "{polls} polls");
        }
        assert!(delivered > 0 && delivered < 40, "{delivered} of 40 were delivered");
    }
}

#[tokio::test(start_paused = true)]
async fn work_on_a_tree_is_finished_without_its_caller() {
    for operation in [Operation::Save, Operation::Checkpoint, Operation::Restore, Operation::Forget] {
        let world = World::new();
        let service = world.process().await;
        let info = create(&service, spec()).await;
        let empty = service.checkpoint(&owner(), &info.id).await.unwrap();
        write(&service, &info.id, "file", b"x").await;
        service.save(&owner(), &info.id, &name("old")).await.unwrap();
        world.host.delay(operation, seconds(1));
        // Long enough to have begun, and not to have ended.
        let begun = match operation {
            Operation::Save => poll_times(service.save(&owner(), &info.id, &name("new")), 50).await.is_none(),
            Operation::Checkpoint => poll_times(service.checkpoint(&owner(), &info.id), 50).await.is_none(),
            Operation::Restore => poll_times(service.restore(&owner(), &info.id, empty), 50).await.is_none(),
            _ => poll_times(service.forget(&owner(), &name("old")), 50).await.is_none(),
        };
        assert!(begun, "{operation:?}");
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let names: Vec<String> =
            service.saved(&owner()).await.unwrap().into_iter().map(|saved| saved.name.to_string()).collect();
        let files = says(&service, &info.id, "test -e file && echo there || echo gone").await;
        let since = service.changes(&owner(), &info.id, Some(Checkpoint(2)), 10).await;
        let found = (names.join(" "), files.trim(), since.is_ok());
        let expected = match operation {
            Operation::Save => ("new old".to_owned(), "there", false),
            Operation::Checkpoint => ("old".to_owned(), "there", true),
            Operation::Restore => ("old".to_owned(), "gone", false),
            _ => (String::new(), "there", false),
        };
        assert_eq!(found, expected, "{operation:?}");
        let saving = std::fs::read_dir(world.state.path().join("ledger/saving")).unwrap();
        assert_eq!(saving.count(), 0, "{operation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_on_a_tree_is_use() {
    let world = World::new();
    let service = world.process().await;
    for persistence in [Persistence::Ephemeral, Persistence::Persistent] {
        let info = create(&service, SandboxSpec { persistence, ..living(10, None) }).await;
        for operation in [Operation::Save, Operation::Fork, Operation::Checkpoint, Operation::Changes] {
            // Longer than its idle time.
            world.host.delay(operation, seconds(15));
            tokio::time::sleep(seconds(8)).await;
            match operation {
                Operation::Save => drop(service.save(&owner(), &info.id, &name("lab")).await.unwrap()),
                Operation::Fork => {
                    drop(service.fork(&owner(), &info.id, ForkRequest::default()).await.unwrap());
                }
                Operation::Checkpoint => drop(service.checkpoint(&owner(), &info.id).await.unwrap()),
                _ => drop(service.changes(&owner(), &info.id, None, 1).await.unwrap()),
            }
        }
        tokio::time::sleep(seconds(8)).await;
        assert!(world.host.existing().contains(&info.id), "{persistence:?}");
        tokio::time::sleep(seconds(8)).await;
        settle().await;
        assert!(!world.host.existing().contains(&info.id), "{persistence:?}");
    }
}

#[tokio::test]
async fn one_that_died_is_found_out_and_forgotten() {
    let world = World::new();
    let service = world.process().await;
    for number in 0..5 {
        let info = create(&service, spec()).await;
        world.host.kill(&info.id);
        let found = match number {
            0 => kind(service.save(&owner(), &info.id, &name("lab")).await),
            1 => kind(service.fork(&owner(), &info.id, ForkRequest::default()).await),
            2 => kind(service.checkpoint(&owner(), &info.id).await),
            3 => kind(service.changes(&owner(), &info.id, None, 1).await),
            _ => kind(service.restore(&owner(), &info.id, Checkpoint(1)).await),
        };
        assert_eq!(found, ErrorKind::NotFound, "{number}");
        assert_eq!(kind(service.find(&owner(), info.id.as_str()).await), ErrorKind::NotFound, "{number}");
    }
}

#[tokio::test]
async fn a_command_that_runs_keeps_files_from_going_back() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let checkpoint = service.checkpoint(&owner(), &info.id).await.unwrap();
    let request = ExecRequest::shell("sleep 60", seconds(60)).unwrap();
    let running = service.exec(&owner(), &info.id, request).await.unwrap();
    assert_eq!(kind(service.checkpoint(&owner(), &info.id).await), ErrorKind::WrongState);
    assert_eq!(kind(service.restore(&owner(), &info.id, checkpoint).await), ErrorKind::WrongState);
    running.cancel().await.unwrap();
    running.wait().await.unwrap();
    service.restore(&owner(), &info.id, checkpoint).await.unwrap();
}

#[tokio::test]
async fn a_tree_that_no_image_can_hold_is_not_saved() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let files = service.files(&owner(), &info.id).unwrap();
    for number in 0..FakeHost::MOST_IMAGE_ENTRIES {
        files.make_directory(&format!("d{number}").parse().unwrap()).await.unwrap();
    }
    assert_eq!(kind(service.save(&owner(), &info.id, &name("lab")).await), ErrorKind::LimitExceeded);
    assert!(service.saved(&owner()).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_known_of_a_saved_image_ends_with_it() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let image = from("lab").image;
    let asked = || world.host.calls(Operation::Create);
    service.save(&owner(), &info.id, &name("lab")).await.unwrap();
    let before = asked();
    for _ in 0..2 {
        service.languages(&owner(), &image).await.unwrap();
    }
    assert_eq!(asked(), before + 1);
    service.save(&owner(), &info.id, &name("lab")).await.unwrap();
    service.languages(&owner(), &image).await.unwrap();
    assert_eq!(asked(), before + 2, "another image has this name now");
    service.forget(&owner(), &name("lab")).await.unwrap();
    assert_eq!(kind(service.languages(&owner(), &image).await), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_name_is_asked_again_after_a_while() {
    let world = World::new();
    let service = world.process().await;
    for (image, again) in [(FakeHost::IMAGE, 1), ("host", 0)] {
        let image: Image = image.parse().unwrap();
        service.languages(&owner(), &image).await.unwrap();
        let before = world.host.calls(Operation::Create);
        service.languages(&owner(), &image).await.unwrap();
        assert_eq!(world.host.calls(Operation::Create), before);
        tokio::time::sleep(seconds(120)).await;
        service.languages(&owner(), &image).await.unwrap();
        assert_eq!(world.host.calls(Operation::Create), before + again, "{image}");
    }
}
