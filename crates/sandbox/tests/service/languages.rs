use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use sandbox::engine::fake::FakeHost;
use sandbox::{
    ErrorKind, ExecStatus, Image, ImageName, ImageRunner, ImageRunners, ListOptions, OutputCaps, Result, RunCode,
    SandboxId, SandboxService, SandboxSpec, ServiceSettings,
};

use crate::support::{World, create, kind, owner, seconds, settle, spec};

async fn run(
    service: &SandboxService,
    id: &SandboxId,
    language: &str,
    code: &str,
    arguments: &[&str],
) -> (ExecStatus, String, String) {
    let mut run = RunCode::new(language, code, seconds(10));
    run.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let execution = service.run_code(&owner(), id, run).await.unwrap();
    let captured = execution.capture(OutputCaps::default()).await.unwrap();
    (captured.outcome.status, captured.stdout.to_text(), captured.stderr.to_text())
}

#[tokio::test]
async fn code_runs_with_its_arguments() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let (status, stdout, _) = run(&service, &info.id, "Bash", "echo $1; pwd; exit 3", &["hi there"]).await;
    assert_eq!((status, stdout.as_str()), (ExecStatus::Exited(3), "hi there\n/workspace\n"));
}

#[tokio::test]
async fn built_code_runs_and_a_failed_build_is_an_outcome() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let (status, stdout, _) = run(&service, &info.id, "c", "echo built", &[]).await;
    assert_eq!((status, stdout.as_str()), (ExecStatus::Exited(0), "built\n"));
    let (status, stdout, stderr) = run(&service, &info.id, "c", "syntax error", &[]).await;
    assert_eq!((status, stdout.as_str()), (ExecStatus::Exited(1), ""));
    assert!(stderr.contains("syntax error"), "{stderr}");
}

#[tokio::test]
async fn a_run_leaves_no_litter() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    for (language, code) in [("bash", "echo a"), ("c", "echo b"), ("c", "syntax error"), ("python", "print(1)")] {
        let run = RunCode::new(language, code, seconds(10));
        if let Ok(execution) = service.run_code(&owner(), &info.id, run).await {
            execution.capture(OutputCaps::default()).await.unwrap();
        }
        settle().await;
        let files = service.files(&owner(), &info.id).unwrap();
        for directory in ["/workspace", "/tmp"] {
            let options = ListOptions { recursive: true, max_entries: 10 };
            let listing = files.list(&directory.parse().unwrap(), options).await.unwrap();
            assert!(listing.entries.is_empty(), "{language}: {listing:?}");
        }
    }
}

#[tokio::test]
async fn a_language_that_the_image_lacks_says_what_to_do() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let error = service.run_code(&owner(), &info.id, RunCode::new("ruby", "puts 1", seconds(1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("apt: ruby"));
    let error = service.run_code(&owner(), &info.id, RunCode::new("rubi", "puts 1", seconds(1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.hint().unwrap().contains("did you mean ruby"));
}

#[tokio::test]
async fn a_missing_directory_is_not_taken_for_a_missing_language() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let mut run = RunCode::new("bash", "pwd", seconds(1));
    run.work_directory = Some("/nowhere".parse().unwrap());
    let error = service.run_code(&owner(), &info.id, run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("/nowhere"), "{error}");
    world.host.kill(&info.id);
    let run = RunCode::new("bash", "pwd", seconds(1));
    assert_eq!(kind(service.run_code(&owner(), &info.id, run).await), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_program_that_fails_its_check_is_passed_over_and_asked_once() {
    let world = World::new();
    let mut settings = world.settings();
    let runner = |check: &str| {
        format!(
            "[[runner]]\nname = \"x\"\ntitle = \"X\"\nfile = \"x.sh\"\nplace = \"work\"\n\
             run = [[\"bash\", \"{{file}}\"], [\"echo\", \"second\"]]\ncheck = {{ bash = [\"{check}\"] }}"
        )
    };
    settings.runners = settings.runners.overlaid_by(&runner("false")).unwrap();
    let service = world.process_with(settings.clone()).await;
    let info = create(&service, spec()).await;
    let calls = world.host.calls(sandbox::engine::fake::Operation::Start);
    for _ in 0..3 {
        assert_eq!(run(&service, &info.id, "x", "echo first", &[]).await.1, "second\n");
    }
    assert_eq!(world.host.calls(sandbox::engine::fake::Operation::Start), calls + 4);
    settings.runners = settings.runners.overlaid_by(&runner("true")).unwrap();
    let service = world.process_with(settings).await;
    let info = create(&service, spec()).await;
    assert_eq!(run(&service, &info.id, "x", "echo first", &[]).await.1, "first\n");
}

#[tokio::test]
async fn languages_are_asked_for_once_and_leave_no_sandbox() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let languages = service.languages(&owner(), &spec().image).await.unwrap();
    let names: Vec<_> = languages.iter().map(|language| language.name.as_str()).collect();
    let known: Vec<_> = service.runners().iter().map(|runner| runner.name.as_str()).collect();
    assert_eq!(names, known);
    for language in &languages {
        assert_ne!(language.version.is_some(), language.remedy.is_some(), "{language:?}");
    }
    assert!(service.list(&owner()).await.unwrap().is_empty());
    while events.try_recv().is_ok() {}
    assert_eq!(service.languages(&owner(), &spec().image).await.unwrap(), languages);
    assert!(events.try_recv().is_err(), "a second sandbox was made to ask again");
}

/// Images that say of themselves what they run, and that come and go.
#[derive(Debug, Default)]
struct Found(Mutex<Vec<ImageRunner>>);

#[async_trait]
impl ImageRunners for Found {
    async fn list(&self) -> Result<Vec<ImageRunner>> {
        Ok(self.0.lock().unwrap().clone())
    }
}

#[tokio::test]
async fn an_image_that_runs_a_language_is_found_while_the_service_runs() {
    let world = World::new();
    let found = Arc::new(Found::default());
    let settings = ServiceSettings { image_runners: Some(found.clone()), ..world.settings() };
    let service = world.process_with(settings).await;
    let image = |language: &'static str| {
        let service = service.clone();
        async move { service.image_for(language, Image::Host).await.unwrap().to_string() }
    };
    assert_eq!(image("py").await, "docker.io/library/python:3.13-slim");
    assert_eq!(image("lua").await, "host");
    let asked: Image = "debian:12".parse().unwrap();
    found.0.lock().unwrap().push(ImageRunner {
        language: "py".to_owned(),
        image: FakeHost::IMAGE.parse().unwrap(),
        command: vec!["cat".to_owned()],
    });
    assert_eq!(image("python").await, FakeHost::IMAGE);
    assert_eq!(service.image_for("python", asked.clone()).await.unwrap(), asked);
    let languages = service.languages(&owner(), &Image::Host).await.unwrap();
    let version = |name: &str| languages.iter().find(|language| language.name == name).unwrap().version.clone();
    assert_eq!(version("python"), Some(format!("on the image {}", FakeHost::IMAGE)));
    assert_eq!(version("lua"), None);
}

/// Images of a daemon that fetches nothing, and has this one alone.
#[derive(Debug)]
struct Only(&'static str);

#[async_trait]
impl ImageRunners for Only {
    async fn list(&self) -> Result<Vec<ImageRunner>> {
        Ok(Vec::new())
    }

    async fn can_be_had(&self, image: &ImageName) -> Result<bool> {
        Ok(image.as_str() == self.0)
    }
}

#[tokio::test]
async fn a_language_whose_published_image_cannot_be_had_is_not_there() {
    let world = World::new();
    let only = "docker.io/library/ruby:3.4-slim";
    let settings = ServiceSettings { image_runners: Some(Arc::new(Only(only))), ..world.settings() };
    let service = world.process_with(settings).await;
    let languages = service.languages(&owner(), &Image::Host).await.unwrap();
    let found: Vec<_> = languages.into_iter().filter(|language| language.version.is_some()).collect();
    let names: Vec<_> = found.iter().map(|language| language.name.as_str()).collect();
    assert_eq!(names, ["ruby"]);
    assert_eq!(found[0].version, Some(format!("on the image {only}")));
}

#[tokio::test]
async fn a_language_that_only_an_image_knows_needs_no_restart() {
    let world = World::new();
    let found = Arc::new(Found::default());
    let settings = ServiceSettings { image_runners: Some(found.clone()), ..world.settings() };
    let service = world.process_with(settings).await;
    assert_eq!(service.runner("shout").await.unwrap_err().kind(), ErrorKind::NotFound);
    found.0.lock().unwrap().push(ImageRunner {
        language: "shout".to_owned(),
        image: FakeHost::IMAGE.parse().unwrap(),
        command: vec!["cat".to_owned()],
    });
    assert!(service.current_runners().await.unwrap().find("shout").is_ok());
    let image = service.image_for("shout", Image::Host).await.unwrap();
    let info = create(&service, SandboxSpec { image, ..spec() }).await;
    assert_eq!(run(&service, &info.id, "Shout", "loud", &[]).await.1, "loud");
}

#[tokio::test]
async fn an_entry_point_reads_the_code() {
    let world = World::new();
    let found = Found(Mutex::new(vec![ImageRunner {
        language: "python".to_owned(),
        image: FakeHost::IMAGE.parse().unwrap(),
        command: vec!["cat".to_owned()],
    }]));
    let settings = ServiceSettings { image_runners: Some(Arc::new(found)), ..world.settings() };
    let service = world.process_with(settings).await;
    let image = service.image_for("python", Image::Host).await.unwrap();
    let info = create(&service, SandboxSpec { image, ..spec() }).await;
    let code = "print(1)\n".repeat(50_000);
    let (status, stdout, _) = run(&service, &info.id, "py", &code, &[]).await;
    assert_eq!(status, ExecStatus::Exited(0));
    assert_eq!(stdout.lines().next(), Some("print(1)"));
    assert_eq!(run(&service, &info.id, "bash", "echo plain", &[]).await.1, "plain\n");
}
