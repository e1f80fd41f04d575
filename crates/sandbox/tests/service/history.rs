//! What is remembered of a sandbox, by whom, for how long, and what is not.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use sandbox::{
    Deed, Environment, ErrorKind, ExecRequest, ExecStatus, ForkRequest, GuestPath, History, Image, OutputCaps, RunCode,
    SandboxId, SandboxService, SandboxSpec, WriteOptions,
};
use tokio::io::AsyncWriteExt;

use crate::support::{World, create, kind, owner, persistent, says, seconds, settle, spec, write};

async fn of(service: &SandboxService, id: &SandboxId) -> History {
    service.history(&owner(), id).await.unwrap()
}

/// One word or two for each entry.
fn shown(history: &History) -> Vec<String> {
    let entry = |deed: &Deed| match deed {
        Deed::Command { argv, status, .. } => format!("{} {}", argv.last().unwrap(), ended(*status)),
        Deed::Code { language, status, .. } => format!("{language} {}", ended(*status)),
        Deed::FileWritten { path, mode, bytes } => format!("write {path} {mode:o} {bytes}"),
        Deed::Unpacked { path, .. } => format!("unpack {path}"),
        Deed::DirectoryMade { path } => format!("mkdir {path}"),
        Deed::Removed { path } => format!("rm {path}"),
        Deed::Renamed { from, to } => format!("mv {from} {to}"),
    };
    history.entries.iter().map(|one| entry(&one.deed)).collect()
}

fn ended(status: Option<ExecStatus>) -> String {
    match status {
        Some(ExecStatus::Exited(code)) => code.to_string(),
        Some(status) => status.as_str().to_owned(),
        None => "?".to_owned(),
    }
}

fn path(text: &str) -> GuestPath {
    text.parse().unwrap()
}

#[tokio::test]
async fn everything_that_was_asked_for_is_there_in_its_order() {
    for spec in [spec(), persistent("lab")] {
        let world = World::new();
        let service = world.process().await;
        let info = create(&service, spec).await;
        let files = service.files(&owner(), &info.id).unwrap();
        let options = WriteOptions { mode: 0o755, ..WriteOptions::default() };
        let mut file = files.write(&path("tool"), options).await.unwrap();
        file.write_all(b"echo hi").await.unwrap();
        file.commit().await.unwrap();
        drop(files.write(&path("given-up"), WriteOptions::default()).await.unwrap());
        files.make_directory(&path("d")).await.unwrap();
        files.rename(&path("tool"), &path("d/tool")).await.unwrap();
        files.unpack(&path("d")).await.unwrap().commit().await.unwrap();
        says(&service, &info.id, "echo x > made").await;
        for code in ["echo 1", "exit 3"] {
            let run = RunCode::new("bash", code, seconds(10));
            let execution = service.run_code(&owner(), &info.id, run).await.unwrap();
            execution.capture(OutputCaps::default()).await.unwrap();
        }
        let run = RunCode::new("c", "syntax error", seconds(10));
        service.run_code(&owner(), &info.id, run).await.unwrap().capture(OutputCaps::default()).await.unwrap();
        files.remove(&path("made")).await.unwrap();
        let request = ExecRequest::new(["no-such-program"], seconds(1)).unwrap();
        assert_eq!(kind(service.exec(&owner(), &info.id, request).await), ErrorKind::NotFound);
        settle().await;

        let history = of(&service, &info.id).await;
        assert_eq!(
            shown(&history),
            [
                "write /workspace/tool 755 7",
                "mkdir /workspace/d",
                "mv /workspace/tool /workspace/d/tool",
                "unpack /workspace/d",
                "echo x > made 0",
                "bash 0",
                "bash 3",
                "c 1",
                "rm /workspace/made",
            ]
        );
        assert_eq!((history.dropped, &history.image), (0, &Image::Host));
        let mut last = 0;
        for entry in &history.entries {
            assert!(entry.started_ns >= last && entry.ended_ns.unwrap() >= entry.started_ns, "{entry:?}");
            last = entry.started_ns;
        }
    }
}

#[tokio::test]
async fn commands_are_there_with_all_that_they_were_given() {
    let world = World::new();
    let service = world.process().await;
    let mut with = spec();
    with.environment.insert("LANG", "C").unwrap();
    let info = create(&service, with).await;
    let mut request = ExecRequest::new(["sh", "-c", "printenv DEBUG"], seconds(10)).unwrap();
    request.environment.insert("DEBUG", "1").unwrap();
    request.work_directory = Some(path("/tmp"));
    let execution = service.exec(&owner(), &info.id, request.clone()).await.unwrap();
    execution.capture(OutputCaps::default()).await.unwrap();
    let mut run = RunCode::new("sh", "echo $1", seconds(10));
    run.arguments = vec!["one two".to_owned()];
    service.run_code(&owner(), &info.id, run).await.unwrap().capture(OutputCaps::default()).await.unwrap();
    let history = of(&service, &info.id).await;
    assert_eq!(history.environment.values.get("LANG"), Some("C"));
    assert_eq!(history.work_directory, path("/workspace"));
    match &history.entries[0].deed {
        Deed::Command { argv, environment, work_directory, status } => {
            assert_eq!((argv.as_slice(), work_directory), (request.argv(), &path("/tmp")));
            assert_eq!((environment.values.get("DEBUG"), *status), (Some("1"), Some(ExecStatus::Exited(0))));
        }
        other => panic!("{other:?}"),
    }
    match &history.entries[1].deed {
        Deed::Code { code, arguments, work_directory, .. } => {
            assert_eq!((code.as_deref(), arguments.as_slice()), (Some(&b"echo $1"[..]), &["one two".to_owned()][..]));
            assert_eq!(work_directory, &path("/workspace"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_still_runs_has_no_end() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let running = service.exec(&owner(), &info.id, ExecRequest::shell("sleep 60", seconds(60)).unwrap()).await.unwrap();
    let history = of(&service, &info.id).await;
    assert_eq!((shown(&history), history.entries[0].ended_ns), (vec!["sleep 60 ?".to_owned()], None));
    running.cancel().await.unwrap();
    running.wait().await.unwrap();
    assert_eq!(shown(&of(&service, &info.id).await), ["sleep 60 cancelled"]);
}

#[tokio::test]
async fn values_that_the_operator_passes_through_are_not_told() {
    for with in [spec(), persistent("lab")] {
        let world = World::new();
        let service = world.process_set(|settings| settings.passed_through = ["TOKEN".to_owned()].into()).await;
        let mut environment = Environment::default();
        environment.insert("TOKEN", "hush-hush").unwrap();
        environment.insert("LANG", "C").unwrap();
        let is_persistent = with.name.is_some();
        let info = create(&service, SandboxSpec { environment: environment.clone(), ..with }).await;
        let mut request = ExecRequest::shell("true", seconds(10)).unwrap();
        request.environment = environment.clone();
        service.exec(&owner(), &info.id, request).await.unwrap().capture(OutputCaps::default()).await.unwrap();
        let mut run = RunCode::new("bash", "true", seconds(10));
        run.environment = environment;
        service.run_code(&owner(), &info.id, run).await.unwrap().capture(OutputCaps::default()).await.unwrap();
        // Whoever looks later need not be told again what to keep quiet about.
        let reader = if is_persistent { world.process().await } else { service.clone() };
        let history = of(&reader, &info.id).await;
        assert_eq!(history.entries.len(), 2);
        assert!(!format!("{history:?}").contains("hush-hush"), "{history:?}");
        let told = format!("{history:?}");
        assert_eq!(told.matches("withheld: {\"TOKEN\"}").count(), 3, "{told}");
        if is_persistent {
            let written = fs::read_to_string(world.state.path().join(format!("ledger/{}.history", info.id))).unwrap();
            assert!(written.contains("TOKEN") && !written.contains("hush-hush"), "{written}");
        }
        let branch = service.fork(&owner(), &info.id, ForkRequest::default()).await.unwrap();
        let inherited = of(&service, &branch.id).await;
        assert!(!format!("{inherited:?}").contains("hush-hush"), "{inherited:?}");
    }
}

#[tokio::test]
async fn no_value_is_told_when_nobody_knows_which_may_be() {
    let world = World::new();
    let service = world.process_set(|settings| settings.passed_through = ["TOKEN".to_owned()].into()).await;
    let mut environment = Environment::default();
    environment.insert("TOKEN", "hush-hush").unwrap();
    let info = create(&service, SandboxSpec { environment, ..persistent("lab") }).await;
    let file = world.state.path().join(format!("ledger/{}.history", info.id));
    fs::write(&file, "{\n").unwrap();
    let reader = world.process().await;
    assert!(!format!("{:?}", of(&reader, &info.id).await).contains("hush-hush"));
    let branch = reader.fork(&owner(), &info.id, ForkRequest::default()).await.unwrap();
    assert!(!format!("{:?}", of(&reader, &branch.id).await).contains("hush-hush"));

    // As with a sandbox of an earlier version.
    fs::remove_file(&file).unwrap();
    drop((service, reader));
    settle().await;
    let history = of(&world.process().await, &info.id).await;
    assert!(!format!("{history:?}").contains("hush-hush") && history.dropped > 0, "{history:?}");
}

#[tokio::test]
async fn several_processes_add_to_one_history() {
    let world = World::new();
    let (first, second) = (world.process().await, world.process().await);
    let info = create(&first, persistent("lab")).await;
    let file = world.state.path().join(format!("ledger/{}.history", info.id));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for (number, service) in [&first, &second, &first, &second].into_iter().enumerate() {
        says(service, &info.id, &format!("echo {number}")).await;
    }
    write(&second, &info.id, "file", b"x").await;
    drop((first, second));
    settle().await;
    let third = world.process().await;
    let expected = ["echo 0 0", "echo 1 0", "echo 2 0", "echo 3 0", "write /workspace/file 644 1"];
    assert_eq!(shown(&of(&third, &info.id).await), expected);

    // As a process leaves it that dies in the middle of a line.
    let mut torn = fs::OpenOptions::new().append(true).open(&file).unwrap();
    std::io::Write::write_all(&mut torn, b"{\"began\":{\"key\":1,").unwrap();
    says(&third, &info.id, "echo 5").await;
    let history = of(&third, &info.id).await;
    assert_eq!((shown(&history).last().unwrap().as_str(), history.dropped), ("echo 5 0", 1));
    third.stop(&owner(), &info.id).await.unwrap();
    assert!(world.ledger_files().is_empty(), "{:?}", world.ledger_files());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_when_many_add_at_once() {
    let world = World::new();
    let mut services = Vec::new();
    for _ in 0..4 {
        services.push(world.process().await);
    }
    let info = create(&services[0], persistent("lab")).await;
    let tasks: Vec<_> = services
        .iter()
        .enumerate()
        .map(|(number, service)| {
            let (service, id) = (service.clone(), info.id.clone());
            tokio::spawn(async move {
                for round in 0..20 {
                    says(&service, &id, &format!("echo {number}-{round}")).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let history = of(&services[3], &info.id).await;
    let mut found = shown(&history);
    found.sort();
    let mut expected: Vec<_> =
        (0..4).flat_map(|number| (0..20).map(move |round| format!("echo {number}-{round} 0"))).collect();
    expected.sort();
    assert_eq!((found, history.dropped), (expected, 0));
}

#[tokio::test]
async fn it_is_bounded_and_says_so() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let files = service.files(&owner(), &info.id).unwrap();
    for number in 0..2500 {
        files.make_directory(&path(&format!("d{}", number % 10))).await.unwrap();
    }
    let history = of(&service, &info.id).await;
    assert_eq!(history.entries.len() as u64 + history.dropped, 2500);
    assert!(history.entries.len() >= 1000 && history.dropped > 0, "{} are left", history.entries.len());

    let info = create(&service, persistent("lab")).await;
    let long = format!("true # {}", "x".repeat(90_000));
    for _ in 0..30 {
        says(&service, &info.id, &long).await;
    }
    says(&service, &info.id, "echo last").await;
    let history = of(&service, &info.id).await;
    assert_eq!(history.entries.len() as u64 + history.dropped, 31);
    assert!(history.dropped > 0 && history.entries.len() > 1);
    assert_eq!(shown(&history).last().unwrap(), "echo last 0");
    let file = world.state.path().join(format!("ledger/{}.history", info.id));
    assert!(fs::metadata(&file).unwrap().len() < 2 << 20);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let run = RunCode::new("bash", format!("true # {}", "x".repeat(200_000)), seconds(10));
    service.run_code(&owner(), &info.id, run).await.unwrap().capture(OutputCaps::default()).await.unwrap();
    let history = of(&service, &info.id).await;
    assert!(matches!(&history.entries.last().unwrap().deed, Deed::Code { code: None, .. }), "it is too long to keep");
}

#[tokio::test]
async fn what_a_restore_undid_was_not_done() {
    for with in [spec(), persistent("lab")] {
        let world = World::new();
        let service = world.process().await;
        let info = create(&service, with).await;
        says(&service, &info.id, "echo 1 > one").await;
        let checkpoint = service.checkpoint(&owner(), &info.id).await.unwrap();
        says(&service, &info.id, "echo 2 > two").await;
        let later = service.checkpoint(&owner(), &info.id).await.unwrap();
        says(&service, &info.id, "echo 3 > three").await;
        service.restore(&owner(), &info.id, later).await.unwrap();
        assert_eq!(shown(&of(&service, &info.id).await), ["echo 1 > one 0", "echo 2 > two 0"]);
        service.restore(&owner(), &info.id, checkpoint).await.unwrap();
        says(&service, &info.id, "echo 4 > four").await;
        assert_eq!(shown(&of(&service, &info.id).await), ["echo 1 > one 0", "echo 4 > four 0"]);
    }
}

#[tokio::test]
async fn a_branch_begins_with_what_was_done_before() {
    let world = World::new();
    let service = world.process().await;
    for (with, into) in [(spec(), Some("a")), (persistent("lab"), None)] {
        let source = create(&service, with).await;
        says(&service, &source.id, "echo 1 > one").await;
        service.checkpoint(&owner(), &source.id).await.unwrap();
        says(&service, &source.id, "echo 2 > two").await;
        let mut request = ForkRequest { name: into.map(|name| name.parse().unwrap()), ..ForkRequest::default() };
        if into.is_some() {
            request.persistence = sandbox::Persistence::Persistent;
        }
        let branch = service.fork(&owner(), &source.id, request).await.unwrap();
        says(&service, &source.id, "echo 3 > three").await;
        let own = service.checkpoint(&owner(), &branch.id).await.unwrap();
        says(&service, &branch.id, "echo 4 > four").await;
        assert_eq!(shown(&of(&service, &branch.id).await), ["echo 1 > one 0", "echo 2 > two 0", "echo 4 > four 0"]);
        service.restore(&owner(), &branch.id, own).await.unwrap();
        assert_eq!(shown(&of(&service, &branch.id).await), ["echo 1 > one 0", "echo 2 > two 0"]);
        assert_eq!(shown(&of(&service, &source.id).await).len(), 3);
    }
}
