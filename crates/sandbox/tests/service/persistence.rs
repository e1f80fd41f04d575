//! Several processes on one state directory, some of which die in the middle.

use std::fs;
use std::time::Duration;

use sandbox::engine::fake::{FakeHost, Operation};
use sandbox::{
    Engine, ErrorKind, ExecRequest, InstanceId, Lifetime, Recovery, SandboxId, SandboxService, SandboxSpec,
    ServiceSettings, State,
};
use tempfile::TempDir;

use crate::support::{World, create, kind, owner, persistent, record_in, says, seconds, settle, shell};

fn living(name: &str, idle: u64) -> SandboxSpec {
    SandboxSpec { lifetime: Lifetime { idle: seconds(idle), total: None }, ..persistent(name) }
}

#[tokio::test]
async fn another_process_sees_it_a_moment_later_and_may_end_it() {
    let world = World::new();
    let (server, command) = (world.process().await, world.process().await);
    let made = create(&server, persistent("lab")).await;
    says(&server, &made.id, "echo x > notes").await;

    let found = command.find(&owner(), "lab").await.unwrap();
    assert_eq!((&found.id, found.limits, found.created_at.elapsed().is_ok()), (&made.id, made.limits, true));
    assert_eq!(says(&command, &made.id, "cat notes").await, "x\n");
    assert_eq!(command.list(&owner()).await.unwrap().len(), 1);
    command.stop(&owner(), &made.id).await.unwrap();

    assert_eq!(kind(server.find(&owner(), "lab").await), ErrorKind::NotFound);
    assert_eq!(kind(shell(&server, &made.id, "true").await), ErrorKind::NotFound);
    assert!(server.list(&owner()).await.unwrap().is_empty());
    assert!(world.ledger_files().is_empty());

    let again = create(&server, persistent("lab")).await;
    command.stop(&owner(), &again.id).await.unwrap();
    create(&server, persistent("lab")).await;
}

#[tokio::test]
async fn it_outlives_its_maker_with_all_it_was_given() {
    let world = World::new();
    let maker = world.process().await;
    let mut spec = persistent("lab");
    spec.environment.insert("TOKEN", "secret \"quoted\"").unwrap();
    spec.work_directory = Some("/tmp".parse().unwrap());
    spec.limits.processes = 77;
    let made = create(&maker, spec).await;
    drop(maker);
    settle().await;
    for recovery in [Recovery::BeforeStart, Recovery::InBackground] {
        let next = world.process_set(|settings| settings.recovery = recovery).await;
        let found = next.find(&owner(), made.id.as_str()).await.unwrap();
        assert_eq!(found.limits.processes, 77);
        assert_eq!(found.state, State::Live);
        assert_eq!(says(&next, &made.id, "pwd; printenv TOKEN").await, "/tmp\nsecret \"quoted\"\n");
    }
}

#[tokio::test]
async fn what_another_realm_has_is_not_taken_for_lost() {
    let state = TempDir::new().unwrap();
    let (one, two) = (FakeHost::of_realm("one"), FakeHost::of_realm("two"));
    let process = async |host: &FakeHost| {
        let settings = ServiceSettings::new(state.path(), InstanceId::random().unwrap());
        SandboxService::start(host.engine(), settings).await.unwrap()
    };
    let made = create(&process(&one).await, persistent("lab")).await;
    let record = || fs::read(record_in(&state.path().join("ledger"), &made.id).unwrap()).unwrap();
    let before = record();
    let elsewhere = process(&two).await;
    assert_eq!(kind(elsewhere.find(&owner(), "lab").await), ErrorKind::NotFound);
    assert_eq!(kind(elsewhere.stop(&owner(), &made.id).await), ErrorKind::NotFound);
    elsewhere.list(&owner()).await.unwrap();
    let again = process(&one).await;
    assert_eq!(again.find(&owner(), "lab").await.unwrap().id, made.id);
    assert_eq!(record(), before, "it is still the record that its maker wrote");

    let namesake = create(&elsewhere, persistent("lab")).await;
    assert_ne!(namesake.id, made.id, "a name is taken only where its sandbox can be found by it");
    for (service, id) in
        [(&elsewhere, &namesake.id), (&process(&two).await, &namesake.id), (&process(&one).await, &made.id)]
    {
        assert_eq!(service.find(&owner(), "lab").await.unwrap().id, *id);
    }
}

#[tokio::test]
async fn records_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let service = world.process().await;
    create(&service, persistent("lab")).await;
    let ledger = world.state.path().join("ledger");
    assert_eq!(fs::metadata(&ledger).unwrap().permissions().mode() & 0o777, 0o700);
    for name in world.ledger_files() {
        assert_eq!(fs::metadata(ledger.join(&name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_who_want_one_name_one_gets_it() {
    let world = World::new();
    let mut processes = Vec::new();
    for _ in 0..8 {
        processes.push(world.process().await);
    }
    let tasks: Vec<_> = processes
        .iter()
        .cloned()
        .map(|service| tokio::spawn(async move { service.create(&owner(), persistent("lab")).await }))
        .collect();
    let mut made = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
        }
    }
    assert_eq!((made, world.host.existing().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_processes_lose_and_double_nothing() {
    let world = World::new();
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(world.process().await);
    }
    let mut tasks = Vec::new();
    for (number, service) in processes.iter().enumerate() {
        let others = processes.clone();
        let service = service.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                let name = format!("n{number}-{round}");
                let made = create(&service, persistent(&name)).await;
                let other = &others[(number + round) % others.len()];
                assert_eq!(other.find(&owner(), &name).await.unwrap().id, made.id);
                let racers = [&others[round % 4], &others[(round + 1) % 4]];
                let owner = owner();
                let (first, second) = tokio::join!(racers[0].stop(&owner, &made.id), racers[1].stop(&owner, &made.id));
                assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
                for result in [first, second] {
                    let fine = result.as_ref().is_ok_and(|()| true)
                        || matches!(result.as_ref().unwrap_err().kind(), ErrorKind::NotFound | ErrorKind::WrongState);
                    assert!(fine, "{result:?}");
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(world.host.existing().is_empty());
    assert!(world.ledger_files().is_empty(), "{:?}", world.ledger_files());
}

/// A process that dies in `create` or `stop`: the runtime that runs its tasks is gone, and its locks with it.
fn die_while(world: &World, operation: Operation, doing: impl AsyncFnOnce(sandbox::SandboxService)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let service = world.process().await;
        world.host.delay(operation, seconds(60));
        let before = world.host.calls(operation);
        let reached = async {
            while world.host.calls(operation) == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = doing(service) => panic!("it ended before it could be interrupted"),
            () = reached => {}
        }
    });
    runtime.shutdown_background();
    world.host.delay(operation, Duration::ZERO);
}

#[test]
fn what_a_dead_process_began_is_finished() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    die_while(&world, Operation::Create, async |service| {
        let _ = service.create(&owner(), persistent("half")).await;
    });
    assert!(!world.ledger_files().is_empty(), "the intent is on disk");
    runtime.block_on(async {
        let service = world.process().await;
        assert!(service.list(&owner()).await.unwrap().is_empty());
        assert!(world.ledger_files().is_empty(), "{:?}", world.ledger_files());
        create(&service, persistent("half")).await;
    });
    // After the engine has made it, but before anybody was told.
    runtime.block_on(async {
        let service = world.process().await;
        let found = service.find(&owner(), "half").await.unwrap();
        service.stop(&owner(), &found.id).await.unwrap();
    });
    die_while(&world, Operation::SetDeadline, async |service| {
        let _ = service.create(&owner(), persistent("half")).await;
    });
    assert_eq!(world.host.existing().len(), 1);
    runtime.block_on(async {
        let service = world.process().await;
        assert!(service.list(&owner()).await.unwrap().is_empty());
        assert!(world.host.existing().is_empty());
        create(&service, persistent("half")).await;
    });
    die_while(&world, Operation::Destroy, async |service| {
        let found = service.find(&owner(), "half").await.unwrap();
        let _ = service.stop(&owner(), &found.id).await;
    });
    assert_eq!(world.host.existing().len(), 1, "its maker died before the engine was done");
    runtime.block_on(async {
        let service = world.process().await;
        assert!(service.list(&owner()).await.unwrap().is_empty());
    });
    assert!(world.host.existing().is_empty());
    assert!(world.ledger_files().is_empty());
}

#[test]
fn a_create_that_another_process_is_at_is_left_alone() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let slow = world.process().await;
        world.host.delay(Operation::Create, Duration::from_millis(300));
        let creating = tokio::spawn(async move { slow.create(&owner(), persistent("slow")).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let other = world.process().await;
        assert!(other.list(&owner()).await.unwrap().is_empty());
        assert_eq!(kind(other.find(&owner(), "slow").await), ErrorKind::WrongState);
        assert_eq!(kind(other.create(&owner(), persistent("slow")).await), ErrorKind::AlreadyExists);
        let made = creating.await.unwrap().unwrap();
        assert_eq!(other.find(&owner(), "slow").await.unwrap().id, made.id);
    });
}

#[tokio::test]
async fn one_that_is_gone_is_forgotten() {
    let world = World::new();
    let service = world.process().await;
    let made = create(&service, persistent("lab")).await;
    world.host.kill(&made.id);
    assert!(world.process().await.list(&owner()).await.unwrap().is_empty());
    assert!(world.ledger_files().is_empty());
    assert_eq!(kind(service.find(&owner(), "lab").await), ErrorKind::NotFound);
}

#[tokio::test]
async fn garbage_is_put_aside_and_its_sandbox_adopted() {
    let world = World::new();
    let service = world.process().await;
    let made = create(&service, persistent("lab")).await;
    drop(service);
    settle().await;
    let ledger = world.state.path().join("ledger");
    let record = world.record(&made.id);
    for garbage in ["", "{", "{\"version\": 1}", "{\"version\": 0}", "[]", "\u{0}\u{0}\u{0}", &"[".repeat(100_000)] {
        fs::write(&record, garbage).unwrap();
        let stray = SandboxId::random().unwrap();
        fs::write(ledger.join(format!("{stray}.0123456789abcdef.json")), garbage).unwrap();
        fs::write(ledger.join(format!("{stray}.new")), garbage).unwrap();
        fs::write(ledger.join("not-ours.txt"), garbage).unwrap();
        let service = world.process().await;
        let found = service.find(&owner(), "lab").await.unwrap();
        assert_eq!(found.id, made.id, "{garbage:.20}");
        assert_eq!(says(&service, &made.id, "echo alive").await, "alive\n");
        assert_eq!(service.list(&owner()).await.unwrap().len(), 1);
        assert!(record_in(&ledger.join("quarantine"), &made.id).is_some());
        assert!(!ledger.join(format!("{stray}.new")).exists());
    }
}

/// It was told not to be there while a sweep had its lock.
#[tokio::test]
async fn one_whose_record_is_garbage_is_found_while_somebody_is_at_work_on_it() {
    let world = World::new();
    let (server, command) = (world.process().await, world.process().await);
    let made = create(&server, persistent("lab")).await;
    let ledger = world.state.path().join("ledger");
    fs::write(world.record(&made.id), "{").unwrap();
    let at_work = fs::File::options().write(true).open(ledger.join(format!("{}.lock", made.id))).unwrap();
    at_work.lock().unwrap();
    let id = made.id.clone();
    let finding = tokio::spawn(async move { command.find(&owner(), id.as_str()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!finding.is_finished(), "whoever has the lock has not said what becomes of it");
    drop(at_work);
    assert_eq!(finding.await.unwrap().unwrap().id, made.id);
}

#[tokio::test]
async fn the_record_of_a_later_version_is_left_alone() {
    let world = World::new();
    let service = world.process().await;
    let made = create(&service, persistent("lab")).await;
    let path = world.record(&made.id);
    let later = fs::read_to_string(&path).unwrap().replace("\"version\": 1", "\"version\": 2");
    fs::write(&path, &later).unwrap();
    let old = world.process().await;
    assert_eq!(kind(old.find(&owner(), made.id.as_str()).await), ErrorKind::NotFound);
    assert!(old.list(&owner()).await.unwrap().is_empty());
    assert_eq!(fs::read_to_string(&path).unwrap(), later);
    assert_eq!(world.host.existing(), std::slice::from_ref(&made.id));
    world.host.kill(&made.id);
    world.process().await;
    assert!(world.ledger_files().is_empty(), "without its sandbox it is only a file");
}

#[tokio::test]
async fn a_record_under_a_wrong_name_is_not_believed() {
    let world = World::new();
    let service = world.process().await;
    let made = create(&service, persistent("lab")).await;
    let ledger = world.state.path().join("ledger");
    let other = SandboxId::random().unwrap();
    let record = world.record(&made.id);
    let name = record.file_name().unwrap().to_str().unwrap();
    let renamed = [name.replace(made.id.as_str(), other.as_str()), format!("{}.0123456789abcdef.json", made.id)];
    for wrong in &renamed {
        fs::copy(&record, ledger.join(wrong)).unwrap();
    }
    assert_eq!(world.process().await.list(&owner()).await.unwrap().len(), 1);
    for wrong in &renamed {
        assert!(ledger.join("quarantine").join(wrong).exists(), "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn use_in_one_process_holds_off_expiry_in_another() {
    let world = World::new();
    let (server, command) = (world.process().await, world.process().await);
    let made = create(&server, living("lab", 10)).await;
    let request = ExecRequest::shell("sleep 100", seconds(1000)).unwrap();
    let execution = command.exec(&owner(), &made.id, request).await.unwrap();
    tokio::time::sleep(seconds(99)).await;
    assert_eq!(world.host.existing(), std::slice::from_ref(&made.id));
    execution.wait().await.unwrap();
    tokio::time::sleep(seconds(8)).await;
    assert_eq!(world.host.existing(), [made.id]);
    tokio::time::sleep(seconds(6)).await;
    assert!(world.host.existing().is_empty());
    assert!(world.ledger_files().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_short_call_does_not_shorten_the_life_of_a_long_one() {
    let world = World::new();
    let server = world.process().await;
    let made = create(&server, living("lab", 10)).await;
    let request = ExecRequest::shell("sleep 100", seconds(1000)).unwrap();
    let execution = server.exec(&owner(), &made.id, request).await.unwrap();
    let command = world.process().await;
    says(&command, &made.id, "true").await;
    drop(command);
    tokio::time::sleep(seconds(99)).await;
    assert_eq!(execution.wait().await.unwrap().status, sandbox::ExecStatus::Exited(0));
}

#[tokio::test(start_paused = true)]
async fn without_any_process_the_engine_ends_it() {
    let world = World::new();
    let command = world.process().await;
    create(&command, living("lab", 60)).await;
    drop(command);
    tokio::time::sleep(seconds(59)).await;
    assert_eq!(world.host.existing().len(), 1);
    tokio::time::sleep(seconds(60)).await;
    assert!(world.host.existing().is_empty());
    assert!(world.process().await.list(&owner()).await.unwrap().is_empty());
    assert!(world.ledger_files().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_by_one_process_is_in_force_in_all() {
    let world = World::new();
    let (server, command) = (world.process().await, world.process().await);
    let made = create(&server, living("lab", 10)).await;
    tokio::time::sleep(seconds(5)).await;
    let lifetime = Lifetime { idle: seconds(1000), total: Some(seconds(5000)) };
    command.renew(&owner(), &made.id, Some(lifetime)).await.unwrap();
    drop(command);
    tokio::time::sleep(seconds(900)).await;
    assert_eq!(world.host.existing(), std::slice::from_ref(&made.id));
    assert_eq!(server.find(&owner(), "lab").await.unwrap().lifetime, lifetime);
    tokio::time::sleep(seconds(150)).await;
    assert!(world.host.existing().is_empty());
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_used_is_said_so() {
    let world = World::new();
    let mut settings = world.settings();
    settings.state_dir = world.state.path().join("file");
    fs::write(&settings.state_dir, "").unwrap();
    let started = sandbox::SandboxService::start(world.engine(), settings).await;
    let error = started.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.message().contains("file"), "host paths are for the log: {error}");
}

#[tokio::test]
async fn sandboxes_of_another_engine_are_left_alone() {
    let world = World::new();
    let service = world.process().await;
    let made = create(&service, persistent("lab")).await;
    let path = world.record(&made.id);
    let foreign = fs::read_to_string(&path).unwrap().replace("\"fake\"", "\"docker\"");
    fs::write(&path, foreign).unwrap();
    world.engine().destroy(&made.id).await.unwrap();
    let other = world.process().await;
    assert!(other.list(&owner()).await.unwrap().is_empty());
    assert!(path.exists());
}
