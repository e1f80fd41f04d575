//! Where programs start in sandboxes from images, and whose the directory is.

use std::sync::Arc;

use engine_native::NativeEngine;
use images::RunConfig;
use sandbox::{
    Checkpoint, Checkpoints, Engine, ErrorKind, Image, Made, Owner, Persistence, Result, SandboxId, SandboxSpec,
    Snapshots,
};

use crate::layer::{Layer, system};
use crate::place::{Place, Sandbox, create, is_root};
use crate::tests;

tests!(
    a_directory_of_root_s_stays_root_s,
    one_of_the_user_is_the_user_s,
    one_that_the_image_lacks_is_made_below_what_it_has,
    a_link_is_followed_and_stays,
    what_nobody_could_work_in_is_passed_over,
    a_file_in_its_place_is_an_error,
    it_is_the_same_after_a_restart_and_in_forks,
    a_directory_of_ours_is_no_change,
    a_saved_image_keeps_it,
    later_processes_know_it,
    spares_are_there_too,
    the_image_tells_its_program,
);

fn works_in(directory: &str) -> RunConfig {
    RunConfig { working_dir: directory.to_owned(), ..RunConfig::default() }
}

fn of_app(directory: &str) -> RunConfig {
    RunConfig { user: "4242:77".to_owned(), ..works_in(directory) }
}

async fn make(engine: &Arc<NativeEngine>, image: &str) -> Result<(Sandbox, Made)> {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.image = image.parse::<Image>()?;
    let id = SandboxId::random()?;
    let made = engine.create(&id, &spec).await?;
    Ok((Sandbox { engine: engine.clone(), id }, made))
}

/// As an ordinary user the files of an image are nobody's.
fn root_s() -> &'static str {
    if is_root() { "0:0" } else { "65534:65534" }
}

async fn a_directory_of_root_s_stays_root_s(place: Place) {
    let files = Layer::new().directory("app", 0o755).file("app/data", 0o644, "of the image\n");
    place.image("app", vec![system(), files.finish()], works_in("/app"));
    let (sandbox, made) = make(&place.engine().await, "app").await.unwrap();
    assert_eq!(made.work_directory.to_string(), "/app");
    assert_eq!(
        sandbox.says("pwd; cat data; stat -c '%a %u:%g' .").await,
        format!("/app\nof the image\n755 {}\n", root_s())
    );
    sandbox.says("! touch x 2>/dev/null; touch /workspace/x /tmp/x; stat -c %u /workspace").await;
    sandbox.destroy().await;
}

async fn one_of_the_user_is_the_user_s(place: Place) {
    let files = Layer::new().owner(4242, 77).directory("srv/app", 0o775).file("srv/app/data", 0o644, "of the image\n");
    place.image("app", vec![system(), files.finish()], of_app("/srv/app"));
    let sandbox = place.sandbox("app").await;
    let said = sandbox.says("pwd; cat data; touch new; stat -c '%a %u:%g' . new").await;
    assert_eq!(said, "/srv/app\nof the image\n775 4242:77\n644 4242:77\n");
    sandbox.destroy().await;
}

async fn one_that_the_image_lacks_is_made_below_what_it_has(place: Place) {
    // What strangers may not read is closed to an ordinary user's sandbox.
    let opt = if is_root() { 0o711 } else { 0o755 };
    let files = Layer::new().directory("opt", opt).owner(4242, 77).directory("opt/team", 0o775);
    place.image("app", vec![system(), files.finish()], works_in("/opt/team/new/here"));
    let sandbox = place.sandbox("app").await;
    let said = sandbox.says("pwd; touch x; stat -c '%a %u:%g' . .. ../.. ../../..").await;
    // Whoever has no ids for them makes what is above as root's.
    let team = if is_root() { "4242:77" } else { "0:0" };
    assert_eq!(said, format!("/opt/team/new/here\n755 1000:1000\n755 0:0\n775 {team}\n{opt:o} 0:0\n"));
    sandbox.destroy().await;
}

async fn a_link_is_followed_and_stays(place: Place) {
    let files = Layer::new().directory("srv", 0o755).link("app", "/srv/late").link("var/here", "../srv");
    place.image("late", vec![system(), files.finish()], works_in("/app"));
    let engine = place.engine().await;
    let (sandbox, made) = make(&engine, "late").await.unwrap();
    assert_eq!(made.work_directory.to_string(), "/srv/late");
    assert_eq!(sandbox.says("pwd -P; touch x; test -L /app && echo link").await, "/srv/late\nlink\n");
    sandbox.destroy().await;
    let files = Layer::new().directory("srv", 0o755).link("var/here", "../srv");
    place.image("there", vec![system(), files.finish()], works_in("/var/here"));
    let (sandbox, made) = make(&engine, "there").await.unwrap();
    assert_eq!(made.work_directory.to_string(), "/srv");
    assert_eq!(sandbox.says("pwd -P; test -L /var/here && echo link").await, "/srv\nlink\n");
    sandbox.destroy().await;
}

async fn what_nobody_could_work_in_is_passed_over(place: Place) {
    let engine = place.engine().await;
    let files = || Layer::new().directory("root", 0o700).directory("run/x", 0o755).finish();
    for (name, directory) in [("one", "/"), ("two", ""), ("three", "/root"), ("four", "/run/x"), ("five", "/proc")] {
        place.image(name, vec![system(), files()], works_in(directory));
        let (sandbox, made) = make(&engine, name).await.unwrap();
        assert_eq!(made.work_directory.to_string(), "/workspace", "{directory:?}");
        assert_eq!(sandbox.says("pwd; touch x").await, "/workspace\n");
        sandbox.destroy().await;
    }
}

async fn a_file_in_its_place_is_an_error(place: Place) {
    place.image("odd", vec![system(), Layer::new().file("app", 0o644, "").finish()], works_in("/app"));
    let refused = create(place.engine().await, "odd", Persistence::Ephemeral).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.message().contains("/app"), "{refused}");
}

async fn it_is_the_same_after_a_restart_and_in_forks(place: Place) {
    let files = Layer::new().directory("opt", 0o755);
    place.image("app", vec![system(), files.finish()], works_in("/opt/app"));
    let sandbox = place.sandbox("app").await;
    let engine = &sandbox.engine;
    let first = engine.checkpoint(&sandbox.id).await.unwrap();
    sandbox.says("touch after").await;
    let fork = SandboxId::random().unwrap();
    engine.fork(&sandbox.id, &fork, &SandboxSpec::new(Owner::local())).await.unwrap();
    let fork = Sandbox { engine: engine.clone(), id: fork };
    let here = "pwd; stat -c '%a %u:%g' .; ls; touch more";
    assert_eq!(fork.says(here).await, "/opt/app\n755 1000:1000\nafter\n");
    assert_eq!(sandbox.says("pwd; ls").await, "/opt/app\nafter\n");
    engine.restore(&sandbox.id, first).await.unwrap();
    assert_eq!(sandbox.says(here).await, "/opt/app\n755 1000:1000\n");
    fork.destroy().await;
    sandbox.destroy().await;
}

async fn a_directory_of_ours_is_no_change(place: Place) {
    let files = Layer::new().directory("opt", 0o775);
    place.image("made", vec![system(), files.finish()], works_in("/opt/app/deep"));
    let files = Layer::new().owner(4242, 77).directory("srv/own", 0o775);
    place.image("own", vec![system(), files.finish()], of_app("/srv/own"));
    let engine = place.engine().await;
    for (image, path) in [("made", "/opt/app/deep/new"), ("own", "/srv/own/new")] {
        let (sandbox, _) = make(&engine, image).await.unwrap();
        let none: Option<Checkpoint> = None;
        assert_eq!(engine.changes(&sandbox.id, none, 10).await.unwrap().entries, [], "{image}");
        sandbox.says("touch new").await;
        let changed = engine.changes(&sandbox.id, none, 10).await.unwrap().entries;
        let paths: Vec<String> = changed.iter().map(|change| change.path.to_string()).collect();
        assert_eq!(paths, [path]);
        sandbox.destroy().await;
    }
}

async fn a_saved_image_keeps_it(place: Place) {
    let kept = Layer::new().directory("app", 0o755).finish();
    place.image("kept", vec![system(), kept], works_in("/app"));
    place.image("made", vec![system()], works_in("/opt/app"));
    let own = Layer::new().owner(4242, 77).directory("srv/own", 0o775).finish();
    place.image("own", vec![system(), own], of_app("/srv/own"));
    let engine = place.engine().await;
    let owner = if is_root() { "0:0" } else { "65534:65534" };
    for (image, directory, facts) in [
        ("kept", "/app", format!("755 {owner}")),
        ("made", "/opt/app", "755 1000:1000".to_owned()),
        ("own", "/srv/own", "775 4242:77".to_owned()),
    ] {
        let (first, _) = make(&engine, image).await.unwrap();
        first.says("echo 1 >/workspace/one; touch two 2>/dev/null || true").await;
        engine.save(&first.id, &image.parse().unwrap()).await.unwrap();
        first.destroy().await;
        let (second, made) = make(&engine, &format!("saved:{image}")).await.unwrap();
        assert_eq!(made.work_directory.to_string(), directory);
        let said = second.says("pwd; stat -c '%a %u:%g' .; cat /workspace/one").await;
        assert_eq!(said, format!("{directory}\n{facts}\n1\n"));
        if image != "kept" {
            second.says("test -e two; touch three").await;
        }
        second.destroy().await;
    }
}

async fn later_processes_know_it(place: Place) {
    place.image("app", vec![system()], works_in("/opt/app"));
    let first = create(place.engine().await, "app", Persistence::Persistent).await.unwrap();
    first.says("touch one").await;
    let later = Sandbox { engine: place.engine().await, id: first.id.clone() };
    drop(first);
    assert_eq!(later.says("pwd; ls").await, "/opt/app\none\n");
    let checkpoint = later.engine.checkpoint(&later.id).await.unwrap();
    later.says("touch two").await;
    later.engine.restore(&later.id, checkpoint).await.unwrap();
    assert_eq!(later.says("pwd; ls").await, "/opt/app\none\n");
    later.destroy().await;
}

async fn spares_are_there_too(place: Place) {
    place.image("one", vec![system()], works_in("/opt/one"));
    place.image("two", vec![system()], works_in("/opt/two"));
    let engine = place.engine_with_spares(1).await;
    for round in 0..3 {
        for image in ["one", "two"] {
            let (sandbox, made) = make(&engine, image).await.unwrap();
            assert_eq!(made.work_directory.to_string(), format!("/opt/{image}"));
            assert_eq!(sandbox.says("pwd; touch x; ls").await, format!("/opt/{image}\nx\n"), "round {round}");
            sandbox.destroy().await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

async fn the_image_tells_its_program(place: Place) {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let run = RunConfig { entrypoint: words(&["echo", "-n"]), cmd: words(&["hello"]), ..RunConfig::default() };
    place.image("app", vec![system()], run);
    let engine = place.engine().await;
    let (sandbox, made) = make(&engine, "app").await.unwrap();
    assert_eq!(made.program.argv(None).unwrap(), ["echo", "-n", "hello"]);
    assert_eq!(made.program.argv(Some(&words(&["other"]))).unwrap(), ["echo", "-n", "other"]);
    engine.save(&sandbox.id, &"app".parse().unwrap()).await.unwrap();
    sandbox.destroy().await;
    let (saved, made_again) = make(&engine, "saved:app").await.unwrap();
    assert_eq!(made_again, made);
    saved.destroy().await;
    let (host, made) = make(&engine, "host").await.unwrap();
    assert_eq!(made.program.argv(None).unwrap_err().kind(), ErrorKind::InvalidInput);
    host.destroy().await;
}
