//! Which files of a run its caller is shown.

use sandbox::{ByteRange, ErrorKind, Files, JobPlace, JobResult, ListOptions, SandboxId, SandboxService, WriteOptions};
use tokio::io::AsyncWriteExt;

use super::{code, file, fresh, inside, run};
use crate::support::{World, create, kind, owner, says, spec};

fn names(result: &JobResult) -> Vec<String> {
    let name = |path: String| path.strip_prefix("/workspace/").unwrap_or(&path).to_owned();
    result.artifacts.iter().map(|artifact| name(artifact.path.to_string())).collect()
}

async fn write(service: &SandboxService, id: &SandboxId, path: &str, contents: &str) {
    let files: Box<dyn Files> = service.files(&owner(), id).unwrap();
    let mut file = files.write(&path.parse().unwrap(), WriteOptions::default()).await.unwrap();
    file.write_all(contents.as_bytes()).await.unwrap();
    file.commit().await.unwrap();
}

#[tokio::test]
async fn new_and_changed_files_and_no_others() {
    let world = World::new();
    let service = world.process().await;
    let mut request = fresh("mkdir -p plots; echo b > plots/b.png; echo abc > a.txt; echo more >> changed; cat same");
    request.files = vec![file("/workspace/same", "x"), file("/workspace/changed", "x"), file("/tmp/elsewhere", "x")];
    let result = run(&service, request).await.unwrap();
    assert_eq!(names(&result), ["a.txt", "changed", "plots/b.png"]);
    assert_eq!((result.artifacts[0].bytes, result.artifacts_left_out), (4, 0));
}

#[tokio::test]
async fn what_is_not_a_regular_file_of_somebodys_work_is_left_out() {
    let world = World::new();
    let service = world.process().await;
    let script = "mkdir -p .git __pycache__ node_modules/x target a/.cache; echo x > .git/config; \
                  echo x > __pycache__/m.pyc; echo x > node_modules/x/index.js; echo x > target/program; \
                  echo x > a/.cache/y; ln -s /etc/passwd link; mkfifo fifo; echo x > /tmp/scratch; echo x > .env";
    let result = run(&service, fresh(script)).await.unwrap();
    assert_eq!(names(&result), [".env"]);
}

#[tokio::test]
async fn the_code_of_a_run_is_not_what_it_made() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    for (language, text) in [("bash", "true"), ("c", "true"), ("bash", &format!("true # {}", "x".repeat(20_000)))] {
        let mut request = code(language, text);
        assert_eq!(names(&run(&service, request.clone()).await.unwrap()), Vec::<String>::new());
        request.place = JobPlace::Existing(info.id.clone());
        assert_eq!(names(&run(&service, request).await.unwrap()), Vec::<String>::new());
        let files = service.files(&owner(), &info.id).unwrap();
        for directory in ["/workspace", "/tmp"] {
            let listing =
                files.list(&directory.parse().unwrap(), ListOptions { recursive: true, max_entries: 9 }).await;
            assert_eq!(listing.unwrap().entries, [], "it is gone when the end is told");
        }
    }
}

#[tokio::test]
async fn in_an_existing_sandbox_only_what_this_run_changed() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    // Each follows the last at once, within one tick of the clock of files.
    for round in 0..20 {
        write(&service, &info.id, "input", &round.to_string()).await;
        says(&service, &info.id, "echo x > by-a-command").await;
        let result = run(&service, inside(&info.id, &format!("echo y > made{round}; cat input"))).await.unwrap();
        assert_eq!(names(&result), [format!("made{round}")]);
        let result = run(&service, inside(&info.id, "cat input")).await.unwrap();
        assert_eq!(names(&result), Vec::<String>::new());
    }
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let result = run(&service, inside(&info.id, "echo z >> made0")).await.unwrap();
    assert_eq!(names(&result), ["made0"]);
}

#[tokio::test]
async fn many_are_counted_and_some_are_named() {
    let world = World::new();
    let service = world.process().await;
    let script: String = (0..130).map(|number| format!("echo x > file{number:03}\n")).collect();
    let result = run(&service, fresh(&script)).await.unwrap();
    assert_eq!((result.artifacts.len(), result.artifacts_left_out), (100, 30));
    assert_eq!(names(&result)[99], "file099");
}

#[tokio::test]
async fn a_flood_of_noise_does_not_hide_the_result() {
    let world = World::new();
    let service = world.process().await;
    let noise: String = (0..2500).map(|number| format!("touch node_modules/{number}\n")).collect();
    let script = format!("mkdir -p node_modules results/deep\n{noise}echo x > results/deep/plot.png; echo y > zzz");
    let result = run(&service, fresh_script(&script)).await.unwrap();
    assert_eq!(names(&result), ["results/deep/plot.png", "zzz"]);
}

/// Too long for an argument.
fn fresh_script(script: &str) -> sandbox::JobRequest {
    code("bash", script)
}

#[tokio::test]
async fn a_work_directory_that_is_the_root_has_none() {
    let world = World::new();
    let service = world.process().await;
    let mut request = fresh("echo x > /tmp/made");
    let spec = sandbox::SandboxSpec { work_directory: Some(sandbox::GuestPath::root()), ..spec() };
    request.place = sandbox::JobPlace::Fresh(Box::new(spec));
    assert_eq!(names(&run(&service, request).await.unwrap()), Vec::<String>::new());
}

#[tokio::test]
async fn files_of_a_live_sandbox_are_read_where_they_are() {
    let world = World::new();
    let service = world.process_set(|settings| settings.jobs.artifact_bytes = 5).await;
    let info = create(&service, spec()).await;
    run(&service, inside(&info.id, "echo 0123456789 > out")).await.unwrap();
    let range = ByteRange { offset: 2, length: None };
    let read = service.read_artifact(&owner(), &info.id, &"out".parse().unwrap(), range).await;
    let (stat, bytes) = read.unwrap();
    assert_eq!((stat.bytes, bytes.as_slice()), (11, b"23456".as_slice()), "no more at once than a file may have");
    assert!(service.kept_artifacts(&owner(), &info.id).is_empty());
    service.stop(&owner(), &info.id).await.unwrap();
    let error = service.read_artifact(&owner(), &info.id, &"out".parse().unwrap(), range).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.hint().unwrap().contains("create a sandbox"));
    assert_eq!(kind(service.work_directory(&owner(), &info.id)), ErrorKind::NotFound);
}
