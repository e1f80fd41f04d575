//! Guests whose programs are root of their sandbox: on an image that names nobody, as people of other servers know it.

use std::sync::Arc;
use std::time::Duration;

use engine_native::NativeEngine;
use images::RunConfig;
use sandbox::{
    Checkpoints, Engine, ErrorKind, ExecRequest, ExecStatus, GuestPath, Image, Insistence, Layer as Wall, OnDisconnect,
    OutputTarget, Owner, Persistence, Result, Role, SandboxId, SandboxSpec, SavedName, Snapshots,
};

use crate::builder::{RIGHTS, image, package, tools, unpack};
use crate::layer::{Layer, system};
use crate::place::{Place, Sandbox, is_root};
use crate::tests;

tests!(
    whoever_has_ids_for_owners_may_be_root,
    a_root_has_seven_rights_and_a_guests_life,
    a_root_changes_files_of_everybody,
    a_user_that_the_image_names_is_no_root,
    files_of_root_are_saved_branched_and_restored,
    a_root_is_found_again_by_the_next_process,
    logs_of_root_cannot_hold_up_anybody,
    processes_of_all_its_users_are_bounded,
    a_root_of_the_host_image_changes_nothing_of_the_host,
    trees_of_the_host_have_a_root_too,
    a_root_installs_a_package,
    debian_is_roots_as_elsewhere,
);

const MUST: Role = Role::ImageUser(Insistence::Must);
const WISH: Role = Role::ImageUser(Insistence::IfPossible);

async fn try_root(engine: Arc<NativeEngine>, image: &str, change: impl FnOnce(&mut SandboxSpec)) -> Result<Sandbox> {
    let mut spec = SandboxSpec::new(Owner::local());
    (spec.image, spec.role) = (image.parse::<Image>()?, MUST);
    change(&mut spec);
    let id = SandboxId::random()?;
    engine.create(&id, &spec).await?;
    Ok(Sandbox { engine, id })
}

fn may_be(engine: &NativeEngine, image: &str) -> bool {
    engine.check_root(&image.parse().expect("an image")).is_ok()
}

/// On the image of builders. `None` where nobody can be root.
async fn root(place: &Place) -> Option<Sandbox> {
    image(place);
    let engine = place.engine().await;
    if !may_be(&engine, "base") {
        return None;
    }
    Some(try_root(engine, "base", |_| {}).await.expect("a sandbox of root's"))
}

async fn whoever_has_ids_for_owners_may_be_root(place: Place) {
    image(&place);
    let engine = place.engine().await;
    let may = may_be(&engine, "base");
    assert!(may || !is_root(), "root can");
    match try_root(engine.clone(), "base", |_| {}).await {
        Ok(sandbox) if may => {
            assert_eq!(sandbox.says("id -u").await, "0\n");
            sandbox.destroy().await;
        }
        Err(error) if !may => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.hint().is_some_and(|hint| hint.contains("--container-user sandbox")), "{error:?}");
        }
        other => panic!("{:?}", other.err()),
    }
    let wished = try_root(engine, "base", |spec| spec.role = WISH).await.expect("a wish is no demand");
    let user = if may { 0 } else { 1000 };
    assert_eq!(wished.says("id -u").await, format!("{user}\n"));
    assert_eq!(wished.engine.isolation(&wished.id).await.unwrap().user.id, user);
    wished.destroy().await;
}

async fn a_root_has_seven_rights_and_a_guests_life(place: Place) {
    let Some(sandbox) = root(&place).await else { return };
    let status = sandbox.says("id -u; id -g; pwd; echo $HOME $USER; cat /proc/self/status").await;
    assert!(status.starts_with("0\n0\n/workspace\n/root root\n"), "{status}");
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).expect("a set")
    };
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(set(name), RIGHTS, "{name}");
    }
    assert_eq!(set("CapBnd:"), 0);
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}");
    }
    let map = sandbox.says("cat /proc/self/uid_map").await;
    assert_ne!(map.split_whitespace().nth(1), Some("0"), "root of the sandbox is root of the host: {map}");
    let report = sandbox.engine.isolation(&sandbox.id).await.unwrap();
    let detail =
        |wall| report.layers.iter().find(|layer| layer.layer == wall).map(|layer| layer.detail.clone()).unwrap();
    assert_eq!((report.user.id, report.user.group), (0, 0));
    assert!(detail(Wall::NoCapabilities).contains("DAC_OVERRIDE"));
    assert!(detail(Wall::Landlock).contains("all of the image"));
    let homes = "stat -c '%n %u:%g %a' /workspace /home/sandbox /tmp; touch /workspace/x ~/x /tmp/x";
    assert_eq!(sandbox.says(homes).await, "/workspace 0:0 755\n/home/sandbox 0:0 755\n/tmp 0:0 1777\n");
    sandbox.destroy().await;
}

async fn a_root_changes_files_of_everybody(place: Place) {
    let Some(sandbox) = root(&place).await else { return };
    let script =
        "cat /srv/web; echo more >>/srv/web; chown 7:8 /srv/web; chmod 2750 /srv/web; stat -c %u:%g:%a /srv/web
        mkdir -p /app /usr/lib/new; echo x >/app/x; chown 33:1 /app/x; stat -c %u:%g /app/x; cp /bin/sh /bin/other
        echo 'ann:x:7:7::/:' >>/etc/passwd; tail -n 1 /etc/passwd; echo 192.0.2.1 name >>/etc/hosts; rm /etc/hostname";
    assert_eq!(sandbox.says(script).await, "closed7:8:2750\n33:1\nann:x:7:7::/:\n");
    // The server's own hand is the same user's.
    unpack(&sandbox, "/etc", Layer::new().file("made", 0o600, "x").finish()).await.unwrap();
    assert_eq!(sandbox.says("stat -c %u:%a /etc/made").await, "0:600\n");
    sandbox.destroy().await;
}

async fn a_user_that_the_image_names_is_no_root(place: Place) {
    let users = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/sh\n";
    let files = Layer::new().file("etc/passwd", 0o644, users);
    let run = RunConfig { user: "web".to_owned(), ..RunConfig::default() };
    place.image("named", vec![system(), tools(), files.finish()], run);
    let sandbox = try_root(place.engine().await, "named", |_| {}).await.expect("anybody can be that");
    let said = sandbox.says("id -u; cat /proc/self/status; touch /etc/x 2>/dev/null || echo closed").await;
    assert!(said.starts_with("33\n") && said.ends_with("closed\n"), "{said}");
    assert!(said.contains("CapEff:\t0000000000000000"), "{said}");
    let report = sandbox.engine.isolation(&sandbox.id).await.unwrap();
    assert_eq!((report.user.id, report.user.group), (33, 34));
    sandbox.destroy().await;
}

const INSTALL: &str =
    "mkdir -p /opt/tool /usr/bin; echo made >/etc/tool.conf; cp /bin/sh /usr/bin/tool; chown 33:34 /opt/tool
    chmod 600 /etc/tool.conf";
const LIST: &str = "stat -c '%n %u:%g %a' /opt/tool /etc/tool.conf /usr/bin/tool; cat /etc/tool.conf; id -u";
const LISTED: &str = "/opt/tool 33:34 755\n/etc/tool.conf 0:0 600\n/usr/bin/tool 0:0 755\nmade\n0\n";

async fn files_of_root_are_saved_branched_and_restored(place: Place) {
    let Some(sandbox) = root(&place).await else { return };
    let (engine, id) = (sandbox.engine.clone(), sandbox.id.clone());
    sandbox.says(INSTALL).await;
    assert_eq!(sandbox.says(LIST).await, LISTED);
    let moment = engine.checkpoint(&id).await.unwrap();
    sandbox.says("echo spoilt >/etc/tool.conf; rm -r /opt/tool").await;
    engine.restore(&id, moment).await.unwrap();
    assert_eq!(sandbox.says(LIST).await, LISTED, "after going back");

    // Whatever is asked for: its files are of whom programs were.
    for role in [MUST, WISH, Role::Guest] {
        let branch = SandboxId::random().unwrap();
        let spec = SandboxSpec { role, image: "base".parse().unwrap(), ..SandboxSpec::new(Owner::local()) };
        engine.fork(&id, &branch, &spec).await.unwrap();
        let branch = Sandbox { engine: engine.clone(), id: branch };
        assert_eq!(branch.says(LIST).await, LISTED, "in a branch, {role:?}");
        branch.says("echo more >>/etc/tool.conf; touch /usr/bin/x").await;
        branch.destroy().await;
    }

    let name: SavedName = "mine".parse().unwrap();
    engine.save(&id, &name).await.unwrap();
    sandbox.destroy().await;
    let again = try_root(engine.clone(), "saved:mine", |_| {}).await.unwrap();
    assert_eq!(again.says(LIST).await, LISTED, "from what was saved");
    again.says("echo more >>/etc/tool.conf; rm /usr/bin/tool").await;
    engine.save(&again.id, &"second".parse().unwrap()).await.unwrap();
    again.destroy().await;
    let third = try_root(engine.clone(), "saved:second", |_| {}).await.unwrap();
    assert_eq!(third.says("cat /etc/tool.conf; ls /usr/bin/tool 2>/dev/null || echo gone").await, "made\nmore\ngone\n");
    third.destroy().await;
    let guest = try_root(engine, "saved:mine", |spec| spec.role = Role::Guest).await.unwrap();
    let (said, status) = guest.run(&["cat", "/etc/tool.conf"]).await.unwrap();
    assert_ne!(status, ExecStatus::Exited(0), "it is root's alone: {said}");
    guest.destroy().await;
}

async fn a_root_is_found_again_by_the_next_process(place: Place) {
    image(&place);
    let first = place.engine().await;
    if !may_be(&first, "base") {
        return;
    }
    let kept = try_root(first, "base", |spec| spec.persistence = Persistence::Persistent).await.unwrap();
    kept.says(INSTALL).await;
    let id = kept.id.clone();
    drop(kept);
    let engine = place.engine().await;
    let found = Sandbox { engine: engine.clone(), id };
    assert_eq!(found.says(LIST).await, LISTED);
    assert_eq!(engine.isolation(&found.id).await.unwrap().user.id, 0);
    // A restart is made by what was written down.
    let moment = engine.checkpoint(&found.id).await.unwrap();
    found.says("rm /etc/tool.conf").await;
    engine.restore(&found.id, moment).await.unwrap();
    assert_eq!(found.says(LIST).await, LISTED);
    found.destroy().await;
}

/// Where they are kept is root's as well.
async fn logs_of_root_cannot_hold_up_anybody(place: Place) {
    let Some(sandbox) = root(&place).await else { return };
    let script =
        "for file in /run/log/*.entry; do mkfifo ${file%.entry}.new; rm $file; mkfifo $file; done; echo written";
    let mut request = ExecRequest::shell(script, Duration::from_secs(10)).unwrap();
    (request.output, request.on_disconnect) = (OutputTarget::Log, OnDisconnect::Continue);
    let process = sandbox.engine.start(&sandbox.id, &request).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), process.control.wait()).await.expect("its end").unwrap();
    assert_eq!(ended.status, ExecStatus::Exited(0));
    let logs =
        tokio::time::timeout(Duration::from_secs(20), sandbox.engine.logs(&sandbox.id)).await.expect("an answer");
    assert!(logs.unwrap().len() <= 1);
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}

/// The kernel counts those of each user apart, and root can be all of them.
async fn processes_of_all_its_users_are_bounded(place: Place) {
    image(&place);
    let engine = place.engine().await;
    let has_python = std::path::Path::new("/usr/bin/python3").exists();
    if !is_root() || !has_python {
        return;
    }
    let sandbox = try_root(engine, "host", |spec| spec.limits.processes = 32).await.unwrap();
    let code = "import os, time\n\
                made = 0\n\
                for user in range(1, 200):\n\
                \x20   try:\n\
                \x20       pid = os.fork()\n\
                \x20   except OSError:\n\
                \x20       break\n\
                \x20   if pid == 0:\n\
                \x20       os.setuid(user)\n\
                \x20       time.sleep(20)\n\
                \x20       os._exit(0)\n\
                \x20   made += 1\n\
                print(made)";
    let (said, _) = sandbox.run(&["python3", "-c", code]).await.unwrap();
    let made: u32 = said.trim().parse().unwrap_or_else(|_| panic!("{said}"));
    assert!((8..=40).contains(&made), "{made} processes");
    sandbox.destroy().await;
}

async fn a_root_of_the_host_image_changes_nothing_of_the_host(place: Place) {
    let engine = place.engine().await;
    if !may_be(&engine, "host") {
        return;
    }
    let sandbox = try_root(engine, "host", |_| {}).await.unwrap();
    assert_eq!(sandbox.says("id -u; echo $HOME $USER; pwd").await, "0\n/root root\n/workspace\n");
    sandbox.says("touch ~/x /opt/x /srv/x /workspace/x; mkdir /made; echo x >/made/x").await;
    for closed in
        ["touch /usr/x", "touch /etc/x", "echo x >>/etc/passwd", "touch /usr/bin/sh", "chmod 777 /usr", "rm -r /etc"]
    {
        let (said, status) = sandbox.run(&["sh", "-c", closed]).await.unwrap();
        assert_ne!(status, ExecStatus::Exited(0), "{closed}: {said}");
    }
    for made in ["/opt/x", "/srv/x", "/made", "/usr/x", "/etc/x"] {
        assert!(!std::path::Path::new(made).exists(), "{made} is on the host");
    }
    sandbox.destroy().await;
}

/// As root of the host: nobody else can let their files have other owners.
async fn trees_of_the_host_have_a_root_too(place: Place) {
    let tree = place.path("tree");
    for layer in [
        system(),
        tools(),
        Layer::new().directory("root", 0o700).directory("etc", 0o755).directory("usr", 0o755).finish(),
    ] {
        std::fs::create_dir_all(&tree).unwrap();
        tar::Archive::new(&layer[..]).unpack(&tree).unwrap();
    }
    let engine = place.engine().await;
    let image = format!("dir:{}", tree.display());
    let made = try_root(engine.clone(), &image, |_| {}).await;
    if !is_root() {
        assert_eq!(made.err().map(|error| error.kind()), Some(ErrorKind::Unsupported));
        let wished = try_root(engine, &image, |spec| spec.role = WISH).await.unwrap();
        assert_eq!(wished.says("id -u").await, "1000\n");
        wished.destroy().await;
        return;
    }
    let sandbox = made.unwrap();
    assert_eq!(sandbox.says("id -u; touch /etc/x /usr/x && echo changed").await, "0\nchanged\n");
    assert!(!tree.join("etc/x").exists() && !tree.join("usr/x").exists(), "the tree itself is as it was");
    sandbox.destroy().await;
}

async fn a_root_installs_a_package(place: Place) {
    let programs = ["dpkg", "dpkg-deb", "dpkg-split", "dpkg-query", "diff", "tar"];
    let engine = place.engine().await;
    if !may_be(&engine, "packaged") || !programs.iter().all(|name| std::path::Path::new("/bin").join(name).exists()) {
        return;
    }
    crate::builder::packaged(&place, &programs);
    let sandbox = try_root(engine, "packaged", |_| {}).await.unwrap();
    unpack(&sandbox, "/tmp/pkg", package()).await.unwrap();
    let script = "chmod 755 /tmp/pkg/DEBIAN; dpkg-deb --root-owner-group --build /tmp/pkg /tmp/tool.deb && \
                  dpkg --force-all -i /tmp/tool.deb 2>&1";
    let installed = sandbox.says(script).await;
    assert!(installed.contains("Setting up tool"), "{installed}");
    let found = sandbox.says("stat -c '%u:%g %a' /opt/tool/run /opt/tool/data; cat /opt/tool/ran; dpkg-query -W").await;
    assert_eq!(found, "0:0 755\n33:34 2750\n0\ntool\t1\n");
    sandbox.destroy().await;
}

/// A whole Debian, as `mmdebstrap` makes it: SANDPEN_TEST_DEBIAN names its archive.
async fn debian_is_roots_as_elsewhere(place: Place) {
    let archive = std::env::var("SANDPEN_TEST_DEBIAN").expect("an archive");
    if !is_root() {
        return;
    }
    let work = |spec: &mut SandboxSpec| spec.work_directory = Some("/app".parse::<GuestPath>().expect("a path"));
    let sandbox = try_root(place.engine().await, &format!("tar:{archive}"), work).await.unwrap();
    assert_eq!(sandbox.says("id -un; pwd; echo ~").await, "root\n/app\n/root\n");
    unpack(&sandbox, "/tmp/pkg", package()).await.unwrap();
    let script = "chmod 755 /tmp/pkg/DEBIAN; dpkg-deb --root-owner-group --build /tmp/pkg /tmp/tool.deb && \
                  apt-get install -y /tmp/tool.deb 2>&1";
    let installed = sandbox.says(script).await;
    assert!(installed.contains("Setting up tool"), "{installed}");
    assert_eq!(sandbox.says("stat -c '%U %a' /opt/tool/data").await, "www-data 2750\n");
    sandbox.destroy().await;
}
