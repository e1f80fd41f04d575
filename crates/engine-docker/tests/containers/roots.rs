//! Guests whose programs are root: the image's system is theirs to change, and nothing else is.

use std::time::Duration;

use bollard::query_parameters::{KillContainerOptionsBuilder, StopContainerOptions};
use engine_docker::DockerEngine;
use sandbox::{
    ByteSize, ChangeKind, Checkpoints, Engine, ErrorKind, ExecRequest, Image, Insistence, Limits, Persistence, Rest,
    Role, SandboxId, SandboxSpec, Snapshots,
};

use crate::Case;
use crate::world::{World, eventually, make, root_spec, says, spec};

pub const GUESTS: &[Case] = &[("roots::a_guest_cannot_install_one", |world| Box::pin(guest(world)))];

/// Where root can change the image, which is not so with gVisor's kernel.
pub const CASES: &[Case] = &[
    ("roots::a_package_is_installed_saved_and_forked", |world| Box::pin(installed(world))),
    ("roots::what_root_wrote_outlives_a_stop_and_a_kill", |world| Box::pin(stopped(world))),
    ("roots::a_stop_that_comes_from_inside_is_none", |world| Box::pin(stop_from_inside(world))),
    ("roots::what_root_changed_is_told", |world| Box::pin(told(world))),
    ("roots::more_than_the_disk_limit_is_the_end_and_is_told", |world| Box::pin(overflow(world))),
    ("roots::its_rights_are_seven_and_stay_so", |world| Box::pin(rights(world))),
    ("roots::volumes_of_an_image_are_saved_too", |world| Box::pin(volumes(world))),
];

/// A package that no index has, made where it is installed.
const INSTALL: &str = "mkdir -p /tmp/p/DEBIAN /tmp/p/usr/local/bin /tmp/p/etc /tmp/p/var/lib/tool; cd /tmp
    printf 'Package: tool\\nVersion: 1\\nArchitecture: all\\nMaintainer: Ada <ada@example.org>\\nDescription: a tool\\n' > p/DEBIAN/control
    printf '#!/bin/sh\\necho installed\\n' > p/usr/local/bin/tool; chmod 755 p/usr/local/bin/tool; echo setting > p/etc/tool.conf
    printf '#!/bin/sh\\nset -e\\necho tool-user:x:990:990::/:/bin/sh >> /etc/passwd\\nchown tool-user /var/lib/tool\\n' > p/DEBIAN/postinst
    chmod 755 p/DEBIAN/postinst; dpkg-deb --build p tool.deb > /dev/null && dpkg --install tool.deb > dpkg.log 2>&1 || cat dpkg.log";
const LOOK: &str =
    "tool; cat /etc/tool.conf; dpkg-query --show tool; stat -c %U /var/lib/tool; cat /workspace/note ~/note /tmp/note";
const SEEN: &str = "installed\nsetting\ntool\t1\ntool-user\nwork\nhome\ntemporary\n";
const NOTES: &str = "echo work > /workspace/note; echo home > ~/note; echo temporary > /tmp/note; rm /etc/issue";

fn large() -> SandboxSpec {
    root_spec()
}

async fn installed(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &large()).await;
    assert_eq!(says(&engine, &id, INSTALL).await, "");
    says(&engine, &id, NOTES).await;
    assert_eq!(says(&engine, &id, LOOK).await, SEEN);
    let name = "installed".parse().unwrap();
    let saved = engine.save(&id, &name).await.unwrap();
    assert!(saved.bytes > 0);
    let inspected = world.docker.inspect_image(&saved.digest).await.unwrap().config.unwrap();
    let labels = inspected.labels.unwrap_or_default();
    let told = labels.iter().filter(|(label, value)| !label.starts_with("org.sandpen.saved.") && !value.is_empty());
    assert_eq!(told.filter(|(label, _)| label.starts_with("org.sandpen.")).count(), 0, "{labels:?}");
    let program = [inspected.entrypoint.unwrap_or_default(), inspected.cmd.unwrap_or_default()].concat();
    assert!(!program.iter().any(|word| word.contains("sandpen")), "{program:?}");

    let branch = SandboxId::random().unwrap();
    engine.fork(&id, &branch, &large()).await.unwrap();
    assert_eq!(says(&engine, &branch, LOOK).await, SEEN, "a fork");
    assert_eq!(says(&engine, &branch, "rm /usr/local/bin/tool; ls /etc/issue 2>&1").await.lines().count(), 1);
    assert_eq!(says(&engine, &id, "tool").await, "installed\n", "the fork is another one");
    engine.destroy(&branch).await.unwrap();
    engine.destroy(&id).await.unwrap();

    let from = |role| SandboxSpec { image: Image::Saved(name.clone()), role, ..spec() };
    let again = make(&engine, &from(large().role)).await;
    assert_eq!(says(&engine, &again, LOOK).await, SEEN, "from what was saved");
    assert!(says(&engine, &again, "ls /etc/issue").await.contains("No such file"), "what was removed is gone");
    says(&engine, &again, "echo second >> /etc/tool.conf").await;
    engine.save(&again, &name).await.unwrap();
    engine.destroy(&again).await.unwrap();
    let plain = make(&engine, &from(Role::Guest)).await;
    let script = "id -u; tail -n 1 /etc/tool.conf; cat note; echo more > note && cat note; touch /etc/x 2> /dev/null || echo closed";
    assert_eq!(says(&engine, &plain, script).await, "1000\nsecond\nwork\nmore\nclosed\n", "as a plain guest");
    engine.destroy(&plain).await.unwrap();
    assert!(engine.forget(&spec().owner, &name).await.unwrap());
    engine.list().await.unwrap();
    let images = world.docker.list_images(None::<bollard::query_parameters::ListImagesOptions>).await.unwrap();
    let left = images.iter().flat_map(|image| &image.repo_tags).filter(|tag| tag.contains(&world.installation()));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<&String>::new(), "images that nobody has a name for any more");
}

async fn guest(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let said = says(&engine, &id, INSTALL).await;
    assert!(said.contains("Permission denied") || said.contains("requires superuser"), "{said}");
    let script =
        "for place in /etc /usr/local/bin /var/lib; do touch $place/x 2> /dev/null && echo $place; done; echo done";
    assert_eq!(says(&engine, &id, script).await, "done\n");
    engine.destroy(&id).await.unwrap();
}

fn persistent() -> SandboxSpec {
    // As a profile wishes it.
    let role = Role::ImageUser(Insistence::IfPossible);
    SandboxSpec { persistence: Persistence::Persistent, role, ..spec() }
}

/// One that was stopped answers some moments later.
async fn says_again(engine: &DockerEngine, id: &SandboxId, script: &str) -> String {
    let request = ExecRequest::shell("true", Duration::from_secs(30)).unwrap();
    eventually("it answers", async || match engine.start(id, &request).await {
        Ok(process) => process.control.wait().await.is_ok(),
        Err(error) if error.kind() == ErrorKind::Unavailable => false,
        Err(error) => panic!("{error}"),
    })
    .await;
    says(engine, id, script).await
}

async fn rest(engine: &DockerEngine, id: &SandboxId) -> Option<Rest> {
    engine.list().await.unwrap().into_iter().find(|found| found.id == *id).and_then(|found| found.rest)
}

async fn stopped(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    let name = format!("sandpen-{id}");
    assert_eq!(says(&engine, &id, "id -u").await, "0\n");
    says(&engine, &id, "echo kept | tee /etc/own /usr/local/own /workspace/own /tmp/own > /dev/null").await;
    let look = "cat /etc/own /usr/local/own /workspace/own /tmp/own; id -u";
    world.docker.stop_container(&name, None::<StopContainerOptions>).await.unwrap();
    assert_eq!(rest(&engine, &id).await, Some(Rest::Stopped));
    assert_eq!(says_again(&engine, &id, look).await, "kept\nkept\nkept\nkept\n0\n");
    let options = KillContainerOptionsBuilder::default().signal("KILL").build();
    world.docker.kill_container(&name, Some(options)).await.unwrap();
    let other = world.engine().await;
    eventually("it has ended", async || rest(&other, &id).await.is_some()).await;
    assert_eq!(says_again(&other, &id, look).await, "kept\nkept\nkept\nkept\n0\n", "by another process");
    other.destroy(&id).await.unwrap();
    assert!(world.containers(&name).await.is_empty());
}

/// Its root has the same user as process 1, and can send it what a daemon would; also in the daemon's name, so far as that is
/// the sender's to say.
async fn stop_from_inside(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    let script = r#"kill -TERM 1; perl -e '
        my $call = `uname -m` eq "aarch64\n" ? 138 : 129;
        # Its number, no error, the code of a queued signal, and nobody as its sender.
        my $about = pack("iiiiii", 15, 0, -1, 0, 0, 0) . ("\0" x 104);
        syscall($call, 1, 15, $about) == 0 and print "sent\n"'
        for try in 1 2 3 4 5; do kill -TERM 1; done; sleep 1; echo alive"#;
    assert_eq!(says(&engine, &id, script).await, "sent\nalive\n");
    assert_eq!(says(&engine, &id, "echo again").await, "again\n");
    world.docker.stop_container(&format!("sandpen-{id}"), None::<StopContainerOptions>).await.unwrap();
    assert_eq!(rest(&engine, &id).await, Some(Rest::Stopped), "the daemon's own is heard");
    engine.destroy(&id).await.unwrap();
}

async fn told(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &root_spec()).await;
    says(&engine, &id, "echo 1 > /etc/own; echo 2 > note; rm /etc/issue; echo more >> /etc/motd; chmod 700 /srv").await;
    let changes = engine.changes(&id, None, 100).await.unwrap();
    let shown: Vec<String> =
        changes.entries.iter().map(|change| format!("{:?} {}", change.kind, change.path)).collect();
    let expected =
        ["Removed /etc/issue", "Modified /etc/motd", "Added /etc/own", "Modified /srv", "Added /workspace/note"];
    assert_eq!(shown, expected);
    assert!(changes.entries.iter().all(|change| change.kind == ChangeKind::Removed || change.changed_ns > 0));
    let few = engine.changes(&id, None, 2).await.unwrap();
    assert!(few.truncated && few.entries.len() == 2);
    let refused = engine.checkpoint(&id).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    engine.destroy(&id).await.unwrap();
}

async fn overflow(world: World) {
    let engine = world.engine().await;
    let limits = Limits { disk: ByteSize::mebibytes(16), ..Limits::default() };
    let id = make(&engine, &SandboxSpec { limits, ..root_spec() }).await;
    let script = "head -c 17M /dev/zero > /opt/one 2> /dev/null; find /opt/one -printf '%s\\n'";
    assert_eq!(says(&engine, &id, script).await, "16777216\n", "one file is bounded by the kernel");
    let request = ExecRequest::shell("head -c 8M /dev/zero > /opt/two; sleep 60", Duration::from_secs(90)).unwrap();
    let ended = match engine.start(&id, &request).await {
        Ok(process) => process.control.wait().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(ended.kind(), ErrorKind::LimitExceeded, "{ended:?}");
    assert!(ended.to_string().contains("disk limit"), "{ended}");
    eventually("it is gone", async || world.containers(&format!("sandpen-{id}")).await.is_empty()).await;
    // One that stays below its limit is left alone.
    let id = make(&engine, &SandboxSpec { limits, ..root_spec() }).await;
    let script = "head -c 8M /dev/zero > /opt/one; sleep 4; echo there";
    assert_eq!(says(&engine, &id, script).await, "there\n");
    assert!(engine.usage(&id).await.unwrap().disk.unwrap() >= 8 << 20);
    engine.destroy(&id).await.unwrap();
}

async fn rights(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &root_spec()).await;
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID and SETUID; in the bounding set nothing.
    let script = "grep ^Cap /proc/self/status; grep NoNewPrivs /proc/self/status; grep ^Cap /proc/1/status";
    let (seven, none) = ("00000000000000fb", "0000000000000000");
    let said = says(&engine, &id, script).await;
    let sets: Vec<&str> = said.split_whitespace().collect();
    let own = ["CapInh:", seven, "CapPrm:", seven, "CapEff:", seven, "CapBnd:", none, "CapAmb:", seven];
    assert_eq!(sets, [&own[..], &["NoNewPrivs:", "1"], &own[..]].concat());
    // Whoever becomes somebody else has none, and does not come back.
    let script = "setpriv --reuid=33 --regid=33 --clear-groups sh -c 'id -u; grep CapEff /proc/self/status; \
                  setpriv --reuid=0 id -u 2> /dev/null || echo stays'";
    assert_eq!(says(&engine, &id, script).await, format!("33\nCapEff:\t{none}\nstays\n"));
    let told = engine.isolation(&id).await.unwrap();
    let detail = |name: &str| told.layers.iter().find(|layer| layer.layer.to_string() == name).unwrap().detail.clone();
    assert!(detail("disk-limit").contains("approximate"), "{told:?}");
    assert!(detail("no-capabilities").contains("DAC_OVERRIDE"), "{told:?}");
    engine.destroy(&id).await.unwrap();
}

async fn volumes(world: World) {
    let image = world.image("sandpen-root-volumes", "VOLUME /data").await;
    let engine = world.engine().await;
    let id = make(&engine, &SandboxSpec { image: image.parse().unwrap(), ..root_spec() }).await;
    says(&engine, &id, "echo volume > /data/x; echo layer > /etc/own").await;
    let name = "with-volumes".parse().unwrap();
    engine.save(&id, &name).await.unwrap();
    let branch = SandboxId::random().unwrap();
    engine.fork(&id, &branch, &root_spec()).await.unwrap();
    assert_eq!(says(&engine, &branch, "cat /data/x /etc/own").await, "volume\nlayer\n");
    engine.destroy(&branch).await.unwrap();
    engine.destroy(&id).await.unwrap();
    let id = make(&engine, &SandboxSpec { image: Image::Saved(name.clone()), ..root_spec() }).await;
    assert_eq!(says(&engine, &id, "cat /data/x /etc/own").await, "volume\nlayer\n");
    engine.destroy(&id).await.unwrap();
    engine.forget(&spec().owner, &name).await.unwrap();
    // What is in memory does not outlive a stop, which is worth more than a wish.
    let wish = make(&engine, &SandboxSpec { image: image.parse().unwrap(), ..persistent() }).await;
    assert_eq!(says(&engine, &wish, "id -u").await, "1000\n");
    engine.destroy(&wish).await.unwrap();
    engine.list().await.unwrap();
    drop(engine);
    world.remove_image(&image).await;
}
