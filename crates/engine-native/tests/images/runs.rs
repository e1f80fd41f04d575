//! What an image says of how programs run in it.

use std::time::Duration;

use images::RunConfig;
use sandbox::{Engine, ErrorKind, ExecRequest, ExecStatus, OnDisconnect, OutputTarget, Persistence};

use crate::layer::{Layer, system};
use crate::place::{Place, create, is_root};
use crate::tests;

tests!(
    programs_run_as_the_image_s_user,
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
    if is_root() {
        assert_eq!(home, "/srv/app\n");
        sandbox.says("touch /data/x").await;
    } else {
        assert_eq!(home, "/home/sandbox\n");
    }
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
