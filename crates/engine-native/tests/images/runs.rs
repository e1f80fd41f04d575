//! What an image says of how programs run in it.

use std::time::Duration;

use images::RunConfig;
use sandbox::{
    Checkpoints, Engine, ErrorKind, ExecRequest, ExecStatus, OnDisconnect, OutputTarget, Owner, Persistence, SandboxId,
    SandboxSpec, SavedName, Snapshots,
};

use crate::layer::{Layer, system};
use crate::place::{Place, create};
use crate::tests;

tests!(
    programs_run_as_the_image_s_user,
    the_image_s_user_writes_where_it_could,
    what_the_image_s_user_owns_is_kept_by_saves_and_moments,
    an_image_of_root_runs_as_the_sandbox_s_user,
    an_image_without_a_shell_works,
    nobody_inside_is_who_runs_the_engine,
    detached_commands_are_heard,
    a_user_that_the_image_lacks_is_refused,
    an_image_for_another_machine_is_refused,
);

async fn programs_run_as_the_image_s_user(place: Place) {
    let passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:4242:77:app:/srv/app:/bin/sh\n";
    let files = Layer::new()
        .file("etc/passwd", 0o644, passwd)
        .file("etc/group", 0o644, "root:x:0:\napp:x:77:\n")
        .owner(4242, 77)
        .directory("srv/app", 0o755)
        .directory("data", 0o700);
    let run = RunConfig {
        user: "app".to_owned(),
        env: vec!["PATH=/opt/bin:/bin".to_owned(), "GREETING=hello there".to_owned()],
        entrypoint: vec!["/never/run".to_owned()],
        cmd: vec!["--neither".to_owned()],
        working_dir: "/srv/app".to_owned(),
        ..RunConfig::default()
    };
    place.image("app", vec![system(), files.finish()], run);
    let sandbox = place.sandbox("app").await;
    assert_eq!(sandbox.says("id -u; id -g; id -un; pwd").await, "4242\n77\napp\n/srv/app\n");
    assert_eq!(sandbox.says("echo $GREETING; echo $PATH; echo $USER").await, "hello there\n/opt/bin:/bin\napp\n");
    sandbox.says("touch /workspace/x /tmp/x /home/sandbox/x; stat -c %u /workspace/x >/dev/null").await;
    let home = sandbox.says("echo $HOME; touch $HOME/x").await;
    assert_eq!(home, "/srv/app\n");
    sandbox.says("touch /data/x").await;
    sandbox.destroy().await;
}

/// An image whose user has a closed home, files of others in it, and rights by its group and as everybody.
fn owned_image(place: &Place) {
    let passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:4242:77:app:/srv/app:/bin/sh\n";
    let files = Layer::new()
        .file("etc/passwd", 0o644, passwd)
        .directory("var/all", 0o1777)
        .file("opt/root-s", 0o644, "root")
        .directory("opt/closed", 0o700)
        .file("opt/closed/inside", 0o644, "root")
        .owner(4242, 77)
        .directory("srv/app", 0o700)
        .file("srv/app/own", 0o600, "own")
        .directory("opt/tool", 0o755)
        .file("opt/tool/data", 0o644, "data")
        .owner(0, 77)
        .directory("opt/team", 0o2775)
        .file("opt/secret", 0o640, "team")
        .owner(33, 33)
        .file("srv/app/web-s", 0o644, "web")
        .file("opt/tool/web-s", 0o644, "web");
    let run = RunConfig { user: "app".to_owned(), ..RunConfig::default() };
    place.image("owned-by-app", vec![system(), files.finish()], run);
}

async fn the_image_s_user_writes_where_it_could(place: Place) {
    owned_image(&place);
    let sandbox = place.sandbox("owned-by-app").await;
    let script = "cd ~; cat own web-s; echo more >>own; touch new; chmod 640 own; rm -f web-s; ls
        cd /opt/tool; cat data; echo more >>data; echo mine >new; rm -f web-s; ln -s data link; ls
        touch /opt/team/x /var/all/x; cat /opt/secret; stat -c '%u:%g %a' ~ ~/own /opt/tool/data /opt/secret";
    let expected = "ownwebnew\nown\ndatadata\nlink\nnew\nteam4242:77 700\n4242:77 640\n4242:77 644\n0:77 640\n";
    assert_eq!(sandbox.says(script).await, expected);
    for closed in [
        "echo x >>/opt/root-s",
        "touch /opt/x",
        "rm /opt/root-s",
        "ls /opt/closed/",
        "echo x >>/opt/secret",
        "chmod 777 /opt",
        "chmod 777 /opt/team",
        "rm -r /opt/tool",
    ] {
        let (said, status) = sandbox.run(&["sh", "-c", closed]).await.unwrap();
        assert_ne!(status, ExecStatus::Exited(0), "{closed}: {said}");
    }
    sandbox.destroy().await;
    let next = place.sandbox("owned-by-app").await;
    assert_eq!(next.says("cat ~/own /opt/tool/data; ls ~").await, "owndataown\nweb-s\n", "one is another's");
    next.destroy().await;
}

async fn what_the_image_s_user_owns_is_kept_by_saves_and_moments(place: Place) {
    owned_image(&place);
    let sandbox = place.sandbox("owned-by-app").await;
    let changes = async |sandbox: &crate::place::Sandbox| -> Vec<String> {
        let changes = sandbox.engine.changes(&sandbox.id, None, 20).await.unwrap();
        changes.entries.iter().map(|change| change.path.to_string()).collect()
    };
    assert_eq!(changes(&sandbox).await, Vec::<String>::new());
    sandbox.says("echo more >>~/own; rm /opt/tool/data; echo x >/opt/tool/new").await;
    let expected = ["/opt/tool/data", "/opt/tool/new", "/srv/app/own"];
    assert_eq!(changes(&sandbox).await, expected);
    let since = sandbox.engine.checkpoint(&sandbox.id).await.unwrap();
    assert_eq!(changes(&sandbox).await, expected);
    sandbox.says("echo lost >>~/own; echo lost >/opt/tool/lost; rm ~/web-s").await;
    sandbox.engine.restore(&sandbox.id, since).await.unwrap();
    let list = "cat ~/own; ls ~ /opt/tool; stat -c %u:%g ~ ~/own /opt/tool /opt/tool/new";
    let seen = "ownmore\n/opt/tool:\nnew\nweb-s\n\n/srv/app:\nown\nweb-s\n4242:77\n4242:77\n4242:77\n4242:77\n";
    assert_eq!(sandbox.says(list).await, seen);

    let name: SavedName = "kept".parse().unwrap();
    sandbox.engine.save(&sandbox.id, &name).await.unwrap();
    let saved = create(place.engine().await, "saved:kept", Persistence::Ephemeral).await.unwrap();
    assert_eq!(saved.says(list).await, seen);
    saved.says("echo again >>~/own; echo y >~/y; echo y >/opt/tool/y").await;
    saved.destroy().await;
    let fork = SandboxId::random().unwrap();
    sandbox.engine.fork(&sandbox.id, &fork, &SandboxSpec::new(Owner::local())).await.unwrap();
    let fork = crate::place::Sandbox { engine: sandbox.engine.clone(), id: fork };
    assert_eq!(fork.says(list).await, seen);
    fork.says("echo again >>~/own; rm /opt/tool/new").await;
    assert_eq!(sandbox.says(list).await, seen, "a fork changes its own alone");
    fork.destroy().await;
    sandbox.engine.forget(&Owner::local(), &name).await.unwrap();
    sandbox.destroy().await;
}

async fn an_image_of_root_runs_as_the_sandbox_s_user(place: Place) {
    let files = Layer::new().file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh").directory("root", 0o700);
    let run = RunConfig { env: vec!["HOME=/root".to_owned()], ..RunConfig::default() };
    place.image("root-s", vec![system(), files.finish()], run);
    let sandbox = place.sandbox("root-s").await;
    assert_eq!(sandbox.says("id -u; id -un; echo $HOME; touch $HOME/x").await, "1000\nsandbox\n/home/sandbox\n");
    assert_eq!(sandbox.says("cat /etc/passwd").await.lines().count(), 2);
    sandbox.destroy().await;
}

async fn an_image_without_a_shell_works(place: Place) {
    place.image("bare", vec![Layer::new().programs(&["cat"]).finish()], RunConfig::default());
    let sandbox = place.sandbox("bare").await;
    let (said, status) = sandbox.run(&["cat", "/etc/hostname"]).await.unwrap();
    assert_eq!((&*said, status), ("sandbox\n", ExecStatus::Exited(0)));
    let (said, _) = sandbox.run(&["cat", "/etc/passwd"]).await.unwrap();
    assert!(said.contains("sandbox:x:1000:1000:"), "{said}");
    let missing = sandbox.run(&["sh", "-c", "true"]).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    sandbox.destroy().await;
}

async fn a_user_that_the_image_lacks_is_refused(place: Place) {
    let run = RunConfig { user: "nobody-here".to_owned(), ..RunConfig::default() };
    place.image("odd", vec![system()], run);
    let refused = create(place.engine().await, "odd", Persistence::Ephemeral).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.message().contains("nobody-here"), "{refused}");
}

async fn an_image_for_another_machine_is_refused(place: Place) {
    place.image_for("elsewhere", "s390x", vec![system()]);
    let refused = create(place.engine().await, "elsewhere", Persistence::Ephemeral).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.message().contains("s390x"), "{refused}");
}

/// Also where the files of an image belong to that user: a hole in process 1 must not be worth somebody's id.
async fn nobody_inside_is_who_runs_the_engine(place: Place) {
    place.image("plain", vec![system()], RunConfig::default());
    let sandbox = place.sandbox("plain").await;
    let map = sandbox.says("cat /proc/self/uid_map").await;
    let outside = |inside: u32| {
        map.lines().find_map(|line| {
            let numbers: Vec<u32> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            let [first, outside, count] = numbers[..] else { return None };
            inside.checked_sub(first).filter(|offset| *offset < count).map(|offset| outside + offset)
        })
    };
    let ids = |status: String| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default().to_owned();
        line.split_whitespace().filter_map(|id| outside(id.parse().ok()?)).collect()
    };
    let caller = rustix::process::geteuid().as_raw();
    assert!((0..=65535).all(|inside| outside(inside) != Some(caller)), "{map}");
    for process in ["1", "self"] {
        let ids = ids(sandbox.says(&format!("cat /proc/{process}/status")).await);
        assert_eq!(ids.len(), 4, "{map}");
        assert!(!ids.contains(&caller), "{process} is {ids:?}");
    }
    sandbox.destroy().await;
}

/// Process 1 keeps what they write where nobody else can read it.
async fn detached_commands_are_heard(place: Place) {
    place.image("plain", vec![system()], RunConfig::default());
    let sandbox = place.sandbox("plain").await;
    let mut request = ExecRequest::shell("echo heard; ls /run", Duration::from_secs(30)).unwrap();
    request.on_disconnect = OnDisconnect::Continue;
    request.output = OutputTarget::Log;
    let process = sandbox.engine.start(&sandbox.id, &request).await.unwrap();
    let outcome = process.control.wait().await.unwrap();
    assert_ne!(outcome.status, ExecStatus::Exited(0), "what is kept is closed to the sandbox's user");
    let logs = sandbox.engine.logs(&sandbox.id).await.unwrap();
    let text: String = logs.iter().map(|log| String::from_utf8_lossy(&log.output).into_owned()).collect();
    assert!(text.starts_with("heard\n"), "{text}");
    sandbox.destroy().await;
}
