//! What an image says of itself, as a sandbox that is made from it has it.

use sandbox::engine::fake::FakeHost;
use sandbox::{
    ErrorKind, ExecStatus, ForkRequest, GuestPath, Image, JobPlace, JobRequest, JobWork, Lifetime, OutputCaps,
    Persistence, RunCode, RunProgram, SandboxSpec, WriteOptions,
};

use crate::jobs::run;
use crate::support::{World, create, kind, owner, persistent, says, seconds, spec};

fn of_app(spec: SandboxSpec) -> SandboxSpec {
    SandboxSpec { image: Image::Named(FakeHost::APP_IMAGE.parse().unwrap()), ..spec }
}

fn app() -> GuestPath {
    "/app".parse().unwrap()
}

fn program(spec: SandboxSpec, arguments: Option<&[&str]>) -> JobRequest {
    let arguments = arguments.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
    let program = RunProgram { arguments, environment: Default::default(), timeout: seconds(60) };
    JobRequest::new(JobPlace::Fresh(Box::new(spec)), JobWork::Program(program))
}

#[tokio::test]
async fn programs_start_where_the_image_says() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, of_app(spec())).await;
    assert_eq!(info.work_directory, app());
    assert_eq!(says(&service, &info.id, "pwd").await, "/app\n");
    let asked = SandboxSpec { work_directory: Some(GuestPath::workspace()), ..of_app(spec()) };
    assert_eq!(create(&service, asked).await.work_directory, GuestPath::workspace());
    assert_eq!(create(&service, spec()).await.work_directory, GuestPath::workspace());
}

#[tokio::test]
async fn code_runs_where_its_user_may_not_write() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, of_app(spec())).await;
    let files = service.files(&owner(), &info.id).unwrap();
    let refused = files.write(&"/app/x".parse().unwrap(), WriteOptions::default()).await.map(drop);
    assert_eq!(kind(refused), ErrorKind::Denied);
    for padding in [0, 40_000] {
        let code = format!("pwd # {}", "x".repeat(padding));
        let run = RunCode::new("bash", code, seconds(60));
        let captured = service.run_code(&owner(), &info.id, run).await.unwrap().capture(OutputCaps::default()).await;
        let captured = captured.unwrap();
        assert_eq!((captured.outcome.status, &*captured.stdout.to_text()), (ExecStatus::Exited(0), "/app\n"));
    }
}

#[tokio::test]
async fn the_image_s_own_program_takes_other_arguments() {
    let world = World::new();
    let service = world.process().await;
    for (arguments, said) in [(None, "hello\n"), (Some(&["a", "b"][..]), "a b\n"), (Some(&[]), "\n")] {
        let job = service.start_job(&owner(), program(of_app(spec()), arguments)).unwrap();
        assert_eq!(job.wait().await.unwrap().outcome.status, ExecStatus::Exited(0));
        assert_eq!(job.output().stdout.to_text(), said);
    }
    let refused = run(&service, program(spec(), None)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.message().contains("no program of its own"), "{refused}");
    let job = service.start_job(&owner(), program(spec(), Some(&["echo", "x"]))).unwrap();
    job.wait().await.unwrap();
    assert_eq!(job.output().stdout.to_text(), "x\n", "without an entry point the arguments are all there is");
}

#[tokio::test]
async fn relative_paths_of_a_run_are_below_the_work_directory() {
    let world = World::new();
    let service = world.process().await;
    let spec = SandboxSpec { work_directory: Some("/srv/here".parse().unwrap()), ..spec() };
    let mut request = crate::jobs::fresh("cat /srv/here/in; pwd; echo x > made");
    request.place = JobPlace::Fresh(Box::new(spec));
    request.files = vec![crate::jobs::file("in", "given"), crate::jobs::file("deep/x", "")];
    request.work_directory = Some("deep".parse().unwrap());
    let job = service.start_job(&owner(), request).unwrap();
    let result = job.wait().await.unwrap();
    assert_eq!(job.output().stdout.to_text(), "given/srv/here/deep\n");
    let made: Vec<String> = result.artifacts.iter().map(|artifact| artifact.path.to_string()).collect();
    assert_eq!(made, ["/srv/here/deep/made"]);
}

#[tokio::test]
async fn what_the_image_said_is_known_to_forks_and_to_later_processes() {
    let world = World::new();
    let service = world.process().await;
    let first = create(&service, of_app(persistent("app"))).await;
    let request = ForkRequest { name: None, persistence: Persistence::Persistent, lifetime: None::<Lifetime> };
    let branch = service.fork(&owner(), &first.id, request).await.unwrap();
    assert_eq!((&branch.work_directory, &branch.program), (&app(), &first.program));
    drop(service);
    let later = world.process().await;
    for id in [first.id, branch.id] {
        let found = later.find(&owner(), id.as_str()).await.unwrap();
        assert_eq!(found.work_directory, app());
        assert_eq!(found.program.argv(None).unwrap(), ["echo", "hello"]);
        assert_eq!(says(&later, &found.id, "pwd").await, "/app\n");
    }
}
