//! What programs are given, and who else can see it.

use std::time::Duration;

use engine_docker::{DockerConfig, DockerEngine, Flavour};
use sandbox::{Engine, ErrorKind, ExecRequest, Persistence, SandboxId, SandboxSpec};

use crate::Case;
use crate::world::{World, eventually, make, says, spec};

pub const CASES: &[Case] = &[
    ("given::variables_are_not_in_the_labels", |world| Box::pin(variables(world))),
    ("given::the_daemons_resolver_is_not_told", |world| Box::pin(resolver(world))),
    ("given::an_end_is_in_the_labels_where_spares_are_kept_too", |world| Box::pin(deadline(world))),
    ("given::without_what_was_kept_nothing_is_started", |world| Box::pin(lost(world))),
];

const VALUE: &str = "value-of-a-variable";

fn with_variable(persistence: Persistence) -> SandboxSpec {
    let mut spec = SandboxSpec { persistence, ..spec() };
    spec.environment.insert("GIVEN", VALUE).unwrap();
    spec
}

/// Whoever may look at the daemon's containers reads their labels, and hears them with everything that happens to one.
async fn variables(world: World) {
    let engine = world.engine().await;
    let ephemeral = make(&engine, &with_variable(Persistence::Ephemeral)).await;
    let persistent = make(&engine, &with_variable(Persistence::Persistent)).await;
    let said = format!("{VALUE}\n");
    for id in [&ephemeral, &persistent] {
        assert_eq!(says(&engine, id, "printenv GIVEN").await, said);
        let container = world.docker.inspect_container(&format!("sandpen-{id}"), None).await.unwrap();
        let told = serde_json::to_string(&container).unwrap();
        assert!(told.contains(id.as_str()) && !told.contains(VALUE) && !told.contains("GIVEN"), "{told}");
    }
    let path = |id: &SandboxId| world.kept().join("keepsakes").join(id.as_str());
    assert!(!path(&ephemeral).exists(), "it ends with its maker, and so does what was known of it");
    let kept = std::fs::metadata(path(&persistent)).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&kept.permissions()) & 0o777, 0o600);
    drop(engine);
    let next = world.engine().await;
    assert_eq!(says(&next, &persistent, "printenv GIVEN").await, said);
    next.destroy(&persistent).await.unwrap();
    assert!(!path(&persistent).exists());
}

/// A spare's labels were written before it was anybody's, and nobody can change them.
async fn deadline(world: World) {
    let engine = DockerEngine::start(DockerConfig { spares: 1, ..world.config() }).await.unwrap();
    let first = make(&engine, &spec()).await;
    eventually("there is a spare", async || running(&world).await == 2).await;
    let mut bounded = spec();
    bounded.lifetime.total = Some(Duration::from_secs(3600));
    let second = make(&engine, &bounded).await;
    let container = world.docker.inspect_container(&format!("sandpen-{second}"), None).await.unwrap();
    let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
    assert!(labels.get("org.sandpen.deadline").is_some_and(|end| end.parse::<u64>().is_ok()), "{labels:?}");
    for id in [first, second] {
        engine.destroy(&id).await.unwrap();
    }
    engine.close().await;
}

/// How many containers of this installation run.
async fn running(world: &World) -> usize {
    let installation = format!("org.sandpen.installation={}", world.installation());
    let filters = [("label", vec![installation.as_str()]), ("status", vec!["running"])];
    world.listed(&filters.into()).await.len()
}

async fn lost(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &with_variable(Persistence::Persistent)).await;
    says(&engine, &id, "echo 1 > file").await;
    drop(engine);
    std::fs::remove_file(world.kept().join("keepsakes").join(id.as_str())).unwrap();
    let next = world.engine().await;
    let request = ExecRequest::shell("true", Duration::from_secs(30)).unwrap();
    let refused = next.start(&id, &request).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}");
    assert!(next.files(&id).stat(&"/workspace/file".parse().unwrap()).await.is_ok(), "its files can be had");
    next.destroy(&id).await.unwrap();
}

/// Docker copies the settings of its own host, whose addresses and domains are nobody's business inside. Podman leaves those of
/// the image where they are.
async fn resolver(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let settings = says(&engine, &id, "cat /etc/resolv.conf; true").await;
    let mounts = says(&engine, &id, "grep -c ' /etc/resolv.conf ' /proc/mounts").await;
    match world.place.flavour {
        Flavour::Podman => assert_eq!(mounts, "0\n", "{settings}"),
        Flavour::Docker => {
            let lines = settings.lines().filter(|line| !line.starts_with(['#', ';']) && !line.starts_with("options "));
            assert_eq!(lines.collect::<Vec<_>>(), ["nameserver 127.0.0.1"], "{settings}");
        }
    }
    engine.destroy(&id).await.unwrap();
}
