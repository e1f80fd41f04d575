//! Images that come into the way of what is ours, by mistake or on purpose.

use std::time::Duration;

use bollard::models::ContainerConfig;
use engine_docker::Flavour;
use sandbox::{Engine, ErrorKind, ExecRequest, OnDisconnect, OutputTarget, Persistence, SandboxId, SandboxSpec};
use tar::EntryType;

use crate::Case;
use crate::world::{World, eventually, make, root_spec, says, spec};

pub const CASES: &[Case] = &[
    ("odd::files_where_process_1_is_are_covered", |world| Box::pin(covered(world))),
    ("odd::what_is_no_directory_there_is_refused", |world| Box::pin(in_the_way(world))),
    ("odd::files_are_not_kept_elsewhere", |world| Box::pin(kept_elsewhere(world))),
    ("odd::a_volume_that_leads_to_run_is_not_the_programs", |world| Box::pin(volume_at_run(world))),
    ("odd::volumes_over_what_is_ours_are_refused", |world| Box::pin(volumes_over_ours(world))),
    ("odd::variables_of_any_name_stay_the_images", |world| Box::pin(variables(world))),
    ("odd::checks_and_triggers_are_not_run", |world| Box::pin(checks_and_triggers(world))),
    ("odd::a_user_by_a_number_needs_no_name", |world| Box::pin(nameless_user(world))),
];

fn from(image: &str) -> SandboxSpec {
    SandboxSpec { image: image.parse().unwrap(), ..spec() }
}

/// One file of an archive: its name, what it is, and what it holds or leads to.
type Entry<'a> = (&'a str, EntryType, &'a str);

fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for &(name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(0);
        match kind {
            EntryType::Symlink => archive.append_link(&mut header, name, content).unwrap(),
            EntryType::Directory => archive.append_data(&mut header, name, std::io::empty()).unwrap(),
            _ => {
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, name, content.as_bytes()).unwrap();
            }
        }
    }
    archive.into_inner().unwrap()
}

async fn image_with(world: &World, name: &str, entries: &[Entry<'_>]) -> String {
    world.image_with(name, "LABEL odd=1", Some(archive(entries)), ContainerConfig::default()).await
}

async fn covered(world: World) {
    let entries = [
        (".sandpen", EntryType::Directory, ""),
        (".sandpen/init", EntryType::Regular, "#!/bin/sh\necho taken over\n"),
        (".sandpen/other", EntryType::Regular, "of the image"),
    ];
    let image = image_with(&world, "sandpen-covered", &entries).await;
    let engine = world.engine().await;
    let id = make(&engine, &from(&image)).await;
    let script =
        "cat /.sandpen/other 2> /dev/null; head -c 4 /.sandpen/init | tail -c 3; echo; readlink /proc/self/cwd";
    assert_eq!(says(&engine, &id, script).await, "ELF\n/workspace\n");
    engine.destroy(&id).await.unwrap();
    // Where the volume is not there yet, it must not be filled from the image.
    drop(engine);
    world.remove_image(&image).await;
}

async fn in_the_way(world: World) {
    let link = [("elsewhere", EntryType::Directory, ""), (".sandpen", EntryType::Symlink, "/elsewhere")];
    let upwards = [(".sandpen", EntryType::Symlink, "/")];
    let nowhere = [(".sandpen", EntryType::Symlink, "/nowhere")];
    let file = [(".sandpen", EntryType::Regular, "a file")];
    let engine = world.engine().await;
    for (number, entries) in [&link[..], &upwards, &nowhere, &file].into_iter().enumerate() {
        let image = image_with(&world, &format!("sandpen-in-the-way-{number}"), entries).await;
        let id = SandboxId::random().unwrap();
        let refused = engine.create(&id, &from(&image)).await.expect_err(&format!("{entries:?}"));
        assert_eq!(refused.kind(), ErrorKind::Denied, "{entries:?}: {refused:?}");
        assert!(world.containers(&format!("sandpen-{id}")).await.is_empty());
        world.remove_image(&image).await;
    }
}

/// Where an image has a link, a daemon mounts what it leads to.
async fn kept_elsewhere(world: World) {
    let entries = [("elsewhere", EntryType::Directory, ""), (".sandpen-kept", EntryType::Symlink, "/elsewhere")];
    let image = image_with(&world, "sandpen-kept-elsewhere", &entries).await;
    let engine = world.engine().await;
    let id = SandboxId::random().unwrap();
    let wanted = SandboxSpec { persistence: Persistence::Persistent, ..from(&image) };
    let refused = engine.create(&id, &wanted).await.expect_err("it is somebody else's place");
    assert!(matches!(refused.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{refused:?}");
    assert!(world.containers(&format!("sandpen-{id}")).await.is_empty());
    world.remove_image(&image).await;
}

/// Debian has a link there, as most images do.
async fn volume_at_run(world: World) {
    let entries = [("logs", EntryType::Symlink, "/run/log")];
    let files = Some(archive(&entries));
    let settings = ContainerConfig::default();
    let image = world.image_with("sandpen-run", "VOLUME /var/run\nVOLUME /logs", files, settings).await;
    let engine = world.engine().await;
    let id = make(&engine, &from(&image)).await;
    let script = "readlink /var/run; touch /run/x /var/run/x /logs/x; \
                  find /run /run/log -maxdepth 0 -printf '%U:%m\\n'";
    let said = says(&engine, &id, script).await;
    // gVisor mounts over a link, and not over what it leads to: then ours is nobody else's either.
    let (place, denied) = if world.is_gvisor() { ("touch:", 1) } else { ("/run\n", 3) };
    assert_eq!(said.matches("Permission denied").count(), denied, "{said}");
    assert!(said.starts_with(place) && said.ends_with("0:755\n0:700\n"), "{said}");
    let mut detached = ExecRequest::shell("echo kept", Duration::from_secs(30)).unwrap();
    (detached.on_disconnect, detached.output) = (OnDisconnect::Continue, OutputTarget::Log);
    engine.start(&id, &detached).await.unwrap();
    eventually("its log is kept", async || {
        engine.logs(&id).await.unwrap().iter().any(|log| log.output.ends_with(b"kept\n"))
    })
    .await;
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn volumes_over_ours(world: World) {
    let engine = world.engine().await;
    for (number, place) in ["/.sandpen", "/.sandpen/init", "/proc", "/", "/dev/x"].into_iter().enumerate() {
        let image = world.image(&format!("sandpen-over-{number}"), &format!("VOLUME {place}")).await;
        let refused = engine.create(&SandboxId::random().unwrap(), &from(&image)).await.expect_err(place);
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{place}: {refused:?}");
        world.remove_image(&image).await;
    }
}

async fn variables(world: World) {
    let odd = ["LD_PRELOAD=/nowhere.so", "A.B=dotted", "HOME=/root", "SANDPEN_TOKEN=guess", "E=1=2", "EMPTY="];
    let settings = ContainerConfig { env: Some(odd.map(str::to_owned).to_vec()), ..ContainerConfig::default() };
    let image = world.image_with("sandpen-variables", "ENV GREETING=hello", None, settings).await;
    let engine = world.engine().await;
    let id = make(&engine, &from(&image)).await;
    // A linker that is told to load what is not there complains, and goes on.
    let script =
        "env 2> /dev/null | grep -E '^(GREETING|HOME|E|EMPTY|SANDPEN_TOKEN)=' 2> /dev/null | sort 2> /dev/null";
    let said = says(&engine, &id, script).await;
    let said: Vec<&str> = said.lines().filter(|line| !line.contains("nowhere.so")).collect();
    let expected = match world.place.flavour {
        // It takes the settings of a commit besides its instructions.
        Flavour::Docker => &["E=1=2", "EMPTY=", "GREETING=hello", "HOME=/home/sandbox", "SANDPEN_TOKEN=guess"][..],
        Flavour::Podman => &["GREETING=hello", "HOME=/home/sandbox"],
    };
    assert_eq!(said, expected);
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn checks_and_triggers(world: World) {
    let instructions = match world.place.flavour {
        Flavour::Docker => "HEALTHCHECK --interval=1s CMD touch /tmp/checked\nONBUILD RUN touch /tmp/triggered",
        // Its images have no checks.
        Flavour::Podman => "ONBUILD RUN touch /tmp/triggered",
    };
    let image = world.image("sandpen-checks", instructions).await;
    let engine = world.engine().await;
    let id = make(&engine, &SandboxSpec { role: root_spec().role, ..from(&image) }).await;
    assert_eq!(says(&engine, &id, "sleep 3; find /tmp -mindepth 1").await, "");
    engine.destroy(&id).await.unwrap();
    drop(engine);
    world.remove_image(&image).await;
}

async fn nameless_user(world: World) {
    let image = world.image("sandpen-nameless", "USER 4242:4343").await;
    let engine = world.engine().await;
    let id = make(&engine, &from(&image)).await;
    let script = "id -u; id -g; touch ~/x /workspace/x /tmp/x && find ~/x -printf '%U:%G\\n'";
    assert_eq!(says(&engine, &id, script).await, "4242\n4343\n4242:4343\n");
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}
