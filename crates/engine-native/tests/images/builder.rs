//! Sandboxes that build: root of their own tree, and of nothing else.

use std::time::Duration;

use sandbox::{
    Account, Engine, ErrorKind, ExecRequest, ExecStatus, GuestPath, Image, Layer as Wall, OutputTarget, Owner,
    Persistence, Result, Role, SandboxId, SandboxSpec,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::layer::{Layer, system};
use crate::place::{Place, Sandbox, create, is_root};
use crate::tests;

tests!(
    whoever_has_ids_for_owners_builds,
    a_builder_is_root_with_seven_rights,
    a_builder_changes_files_of_everybody,
    the_image_is_all_there_is,
    an_image_of_nothing_can_be_filled,
    programs_run_as_whom_they_are_told,
    a_guest_is_nobody_else,
    archives_keep_their_owners,
    archives_of_a_guest_have_none,
    process_1_is_closed_to_its_own_root,
    whoever_kills_its_supervisor_is_killed,
    a_package_is_installed,
    debian_installs_packages_and_users,
);

/// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID.
pub const RIGHTS: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7;

pub fn tools() -> Vec<u8> {
    let programs = ["chgrp", "chmod", "chown", "cp", "mkdir", "mkfifo", "mknod", "mv", "sleep", "tail", "touch"];
    Layer::new().programs(&programs).finish()
}

pub fn image(place: &Place) {
    let files = Layer::new()
        .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/sh\n")
        .directory("root", 0o700)
        .directory("tmp", 0o1777)
        .owner(33, 34)
        .file("srv/web", 0o600, "closed");
    place.image("base", vec![system(), tools(), files.finish()], Default::default());
}

pub async fn try_builder(place: &Place, image: &str, change: impl FnOnce(&mut SandboxSpec)) -> Result<Sandbox> {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.image = image.parse::<Image>()?;
    spec.role = Role::Builder;
    spec.work_directory = Some(GuestPath::root());
    change(&mut spec);
    let (engine, id) = (place.engine().await, SandboxId::random()?);
    engine.create(&id, &spec).await?;
    Ok(Sandbox { engine, id })
}

async fn builder(place: &Place) -> Option<Sandbox> {
    image(place);
    if !engine_native::can_build() {
        return None;
    }
    Some(try_builder(place, "base", |_| {}).await.expect("a builder"))
}

async fn whoever_has_ids_for_owners_builds(place: Place) {
    let can_build = engine_native::can_build();
    image(&place);
    match try_builder(&place, "base", |_| {}).await {
        Ok(sandbox) if can_build => sandbox.destroy().await,
        Err(error) if !can_build => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.hint().is_some_and(|hint| hint.contains("root")), "{error:?}");
        }
        other => panic!("{:?}", other.err()),
    }
    for (image, persistence) in [("host", Persistence::Ephemeral), ("base", Persistence::Persistent)] {
        let refused = try_builder(&place, image, |spec| spec.persistence = persistence).await.err().unwrap();
        let expected = if can_build { ErrorKind::InvalidInput } else { ErrorKind::Unsupported };
        assert_eq!(refused.kind(), expected, "{image}");
    }
}

async fn a_builder_is_root_with_seven_rights(place: Place) {
    let Some(sandbox) = builder(&place).await else { return };
    let status = sandbox.says("id -u; id -g; cat /proc/self/status").await;
    assert!(status.starts_with("0\n0\n"), "{status}");
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
    assert!(detail(Wall::NoCapabilities).contains("DAC_OVERRIDE"));
    assert!(detail(Wall::Landlock).contains("all of the image"));
    for closed in [
        "mknod /tmp/disk b 8 0",
        "mknod /dev/new c 1 3",
        "echo 1 >/proc/sys/kernel/printk",
        "echo 1 >/proc/sys/vm/drop_caches",
        "echo x >/proc/sysrq-trigger",
    ] {
        let (said, status) = sandbox.run(&["sh", "-c", closed]).await.unwrap();
        assert_ne!(status, ExecStatus::Exited(0), "{closed}: {said}");
    }
    sandbox.destroy().await;
}

async fn a_builder_changes_files_of_everybody(place: Place) {
    let Some(sandbox) = builder(&place).await else { return };
    let script =
        "cat /srv/web; echo more >>/srv/web; chown 7:8 /srv/web; chmod 2750 /srv/web; stat -c %u:%g:%a /srv/web
        mkdir /app; echo x >/app/x; chown 65533:1 /app/x; stat -c %u:%g /app/x; cp /bin/sh /bin/other; rm /etc/passwd
        echo new >/etc/passwd; cat /etc/passwd; ls -d /app /root";
    assert_eq!(sandbox.says(script).await, "closed7:8:2750\n65533:1\nnew\n/app\n/root\n");
    sandbox.destroy().await;
}

async fn the_image_is_all_there_is(place: Place) {
    let Some(sandbox) = builder(&place).await else { return };
    let found = sandbox.says("pwd; echo $HOME; stat -c %a /tmp; ls -d /home /workspace /run 2>/dev/null || true").await;
    assert_eq!(found, "/\n/root\n1777\n");
    let tables = sandbox.says("cat /etc/passwd; ls /etc").await;
    assert!(!tables.contains("sandbox") && !tables.contains("nsswitch"), "{tables}");
    let mut logged = ExecRequest::shell("true", Duration::from_secs(10)).unwrap();
    logged.output = OutputTarget::Log;
    assert_eq!(sandbox.engine.start(&sandbox.id, &logged).await.unwrap_err().kind(), ErrorKind::Unsupported);
    sandbox.says("echo x >/x").await;
    assert!(sandbox.engine.usage(&sandbox.id).await.unwrap().disk.is_some_and(|bytes| bytes > 0));
    sandbox.destroy().await;
}

async fn an_image_of_nothing_can_be_filled(place: Place) {
    place.image("nothing", Vec::new(), Default::default());
    if !engine_native::can_build() {
        return;
    }
    let sandbox = try_builder(&place, "nothing", |_| {}).await.expect("a builder");
    unpack(&sandbox, "/", tools()).await.unwrap();
    let (said, status) = sandbox.run(&["mkdir", "-m", "0711", "/made"]).await.unwrap();
    assert_eq!(status, ExecStatus::Exited(0), "{said}");
    sandbox.destroy().await;
}

async fn run_as(sandbox: &Sandbox, user: u32, group: u32, script: &str) -> Result<String> {
    let mut request = ExecRequest::shell(script, Duration::from_secs(30))?;
    request.account = Some(Account { user, group });
    let mut process = sandbox.engine.start(&sandbox.id, &request).await?;
    let mut text = String::new();
    process.stdout.read_to_string(&mut text).await.expect("text");
    process.control.wait().await?;
    Ok(text)
}

async fn programs_run_as_whom_they_are_told(place: Place) {
    let Some(sandbox) = builder(&place).await else { return };
    let script =
        "id -u; id -g; cat /srv/web; grep=$(cat /proc/self/status); echo \"$grep\"; touch /x /srv/x || echo closed";
    let said = run_as(&sandbox, 33, 34, script).await.unwrap();
    assert!(said.starts_with("33\n34\nclosed"), "its own file: {said}");
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"] {
        assert!(said.contains(&format!("{name}:\t0000000000000000")), "{name}: {said}");
    }
    assert!(said.ends_with("closed\n"), "{said}");
    assert_eq!(run_as(&sandbox, 0, 34, "id -u; id -g; touch /x && echo open").await.unwrap(), "0\n34\nopen\n");
    let refused = run_as(&sandbox, 65536, 0, "true").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    sandbox.destroy().await;
}

async fn a_guest_is_nobody_else(place: Place) {
    image(&place);
    let sandbox = create(place.engine().await, "base", Persistence::Ephemeral).await.unwrap();
    for (user, group) in [(0, 0), (33, 34), (1000, 1000)] {
        let refused = run_as(&sandbox, user, group, "true").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{user}");
    }
    sandbox.destroy().await;
}

pub async fn unpack(sandbox: &Sandbox, path: &str, archive: Vec<u8>) -> Result<()> {
    let mut stream = sandbox.engine.files(&sandbox.id).unpack(&path.parse()?).await?;
    stream.write_all(&archive).await.expect("a stream that is read");
    stream.shutdown().await.expect("a stream that is read");
    stream.commit().await
}

fn owned() -> Vec<u8> {
    let owned =
        Layer::new().owner(7, 8).directory("data", 0o750).file("data/tool", 0o4755, "x").link("data/link", "tool");
    owned.owner(0, 0).file("data/root", 0o600, "y").finish()
}

async fn archives_keep_their_owners(place: Place) {
    let Some(sandbox) = builder(&place).await else { return };
    unpack(&sandbox, "/opt", owned()).await.unwrap();
    let list = "cd /opt; stat -c '%n %u:%g %a %Y' data data/tool data/link data/root";
    let expected = "data 7:8 750 0\ndata/tool 7:8 4755 0\ndata/link 7:8 777 0\ndata/root 0:0 600 0\n";
    assert_eq!(sandbox.says(list).await, expected);

    let mut stream = sandbox.engine.files(&sandbox.id).pack(&"/opt/data".parse().unwrap()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let mut archive = tar::Archive::new(&bytes[..]);
    let mut entries = archive.entries().unwrap().map(|entry| entry.unwrap());
    let tool = entries.find(|entry| entry.path().unwrap().ends_with("tool")).expect("the tool").header().clone();
    assert_eq!((tool.uid().unwrap(), tool.gid().unwrap(), tool.mode().unwrap()), (7, 8, 0o4755));
    sandbox.destroy().await;
}

/// Where the stream says root, or set-id, a guest's file is the guest's and plain.
async fn archives_of_a_guest_have_none(place: Place) {
    image(&place);
    let sandbox = create(place.engine().await, "base", Persistence::Ephemeral).await.unwrap();
    unpack(&sandbox, "/workspace", owned()).await.unwrap();
    let list = "cd /workspace; stat -c '%n %u:%g %a' data data/tool data/root";
    assert_eq!(sandbox.says(list).await, "data 1000:1000 755\ndata/tool 1000:1000 755\ndata/root 1000:1000 600\n");
    sandbox.destroy().await;
}

/// It has the same id and rights as the programs; what keeps them out is that it cannot be looked into.
async fn process_1_is_closed_to_its_own_root(place: Place) {
    let Some(sandbox) = builder(&place).await else { return };
    for closed in
        ["ls -l /proc/1/fd/", "cat /proc/1/mem", "cat /proc/1/environ", "ls /proc/1/root/", "echo >/proc/1/mem"]
    {
        let (said, status) = sandbox.run(&["sh", "-c", closed]).await.unwrap();
        assert_ne!(status, ExecStatus::Exited(0), "{closed}: {said}");
    }
    sandbox.says("kill -9 1; sleep 0.1; true").await;
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}

/// By the host's own `dpkg`, with a script that runs as root, owners and modes.
/// The command is faster than the word that it has started in some of these rounds, and slower in others.
async fn whoever_kills_its_supervisor_is_killed(place: Place) {
    image(&place);
    if !engine_native::can_build() {
        return;
    }
    for _ in 0..12 {
        let sandbox = try_builder(&place, "base", |_| {}).await.unwrap();
        let (said, status) = sandbox.run(&["sh", "-c", "kill -9 -1"]).await.unwrap();
        assert_eq!((said.as_str(), status), ("", ExecStatus::Killed));
        sandbox.destroy().await;
    }
}

async fn a_package_is_installed(place: Place) {
    let programs = ["dpkg", "dpkg-deb", "dpkg-split", "dpkg-query", "diff", "tar"];
    if !engine_native::can_build() || !programs.iter().all(|name| std::path::Path::new("/bin").join(name).exists()) {
        return;
    }
    packaged(&place, &programs);
    let sandbox = try_builder(&place, "packaged", |_| {}).await.expect("a builder");
    unpack(&sandbox, "/pkg", package()).await.unwrap();
    let installed = sandbox.says("dpkg-deb --build /pkg /pkg.deb && dpkg --force-all -i /pkg.deb 2>&1").await;
    assert!(installed.contains("Setting up tool"), "{installed}");
    let found = sandbox.says("stat -c '%u:%g %a' /opt/tool/run /opt/tool/data; cat /opt/tool/ran; dpkg-query -W").await;
    assert_eq!(found, "0:0 755\n33:34 2750\n0\ntool\t1\n");
    sandbox.destroy().await;
}

/// An image in which these programs of the host install packages.
pub fn packaged(place: &Place, programs: &[&str]) {
    let empty = "#!/bin/sh\nexit 0\n";
    let base = Layer::new()
        .programs(programs)
        .file("usr/sbin/ldconfig", 0o755, empty)
        .file("usr/sbin/start-stop-daemon", 0o755, empty)
        .file("var/lib/dpkg/status", 0o644, "")
        .directory("var/lib/dpkg/info", 0o755)
        .directory("var/lib/dpkg/updates", 0o755)
        .directory("var/lib/dpkg/triggers", 0o755)
        .directory("tmp", 0o1777);
    place.image("packaged", vec![system(), tools(), base.finish()], Default::default());
}

pub fn package() -> Vec<u8> {
    let control =
        "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: x\n";
    let script = "#!/bin/sh\nset -e\nid -u >/opt/tool/ran\nchown 33:34 /opt/tool/data\nchmod 2750 /opt/tool/data\n";
    Layer::new()
        .directory("DEBIAN", 0o755)
        .file("DEBIAN/control", 0o644, control)
        .file("DEBIAN/postinst", 0o755, script)
        .directory("opt", 0o755)
        .directory("opt/tool", 0o755)
        .file("opt/tool/run", 0o755, "x")
        .directory("opt/tool/data", 0o755)
        .finish()
}

/// A whole Debian with `adduser`, as `mmdebstrap` makes it: SANDPEN_TEST_DEBIAN names its archive.
async fn debian_installs_packages_and_users(place: Place) {
    let archive = std::env::var("SANDPEN_TEST_DEBIAN").expect("an archive");
    if !is_root() {
        return;
    }
    let sandbox = try_builder(&place, &format!("tar:{archive}"), |_| {}).await.expect("a builder");
    unpack(&sandbox, "/tmp/pkg", package()).await.unwrap();
    let installed =
        sandbox.says("dpkg-deb --build /tmp/pkg /tmp/tool.deb && apt-get install -y /tmp/tool.deb 2>&1").await;
    assert!(installed.contains("Setting up tool"), "{installed}");
    assert_eq!(sandbox.says("stat -c '%U %a' /opt/tool/data").await, "www-data 2750\n");
    let added = sandbox.says("adduser --disabled-password --gecos x ann 2>&1").await;
    assert_eq!(
        sandbox.says("stat -c %U:%G ~ann; su ann -c id -s /bin/sh").await.lines().next(),
        Some("ann:ann"),
        "{added}"
    );
    let removed = sandbox.says("apt-get purge -y tool 2>&1; deluser --remove-home ann 2>&1; ls /home").await;
    assert!(!removed.ends_with("ann\n"), "{removed}");
    sandbox.destroy().await;
}
