//! Checkpoints: what is remembered, what is told of changes, and what going back brings.

use std::time::Duration;

use sandbox::{
    ByteSize, ChangeKind, Checkpoint, Checkpoints, Engine, ErrorKind, ExecRequest, ExecStatus, OnDisconnect,
    OutputTarget, Owner, Persistence, SandboxId, SandboxSpec, Snapshots,
};
use tokio::io::AsyncWriteExt;

use crate::branches::fork;
use crate::layer::{Layer, system};
use crate::place::{Place, Sandbox, create, is_root};
use crate::tests;

tests!(
    going_back_brings_everything_back,
    later_moments_are_gone_after_going_back,
    a_moment_without_changes_is_the_last_one,
    nothing_is_remembered_while_a_command_runs,
    changes_are_told,
    changes_of_an_image_are_told,
    changes_since_the_start_of_a_fork,
    limits_hold_over_moments,
    there_are_so_many_moments,
    the_sandbox_stays_the_same,
    logs_and_the_deadline_go_along,
    what_was_used_of_the_network_counts,
    files_that_are_written_meanwhile_wait_or_refuse,
    what_is_saved_has_all_layers,
    another_process_goes_back,
    a_process_that_knew_it_goes_on,
    an_end_in_between_is_an_end,
);

async fn checkpoint(sandbox: &Sandbox) -> Checkpoint {
    sandbox.engine.checkpoint(&sandbox.id).await.expect("a checkpoint")
}

async fn restore(sandbox: &Sandbox, to: Checkpoint) {
    sandbox.engine.restore(&sandbox.id, to).await.expect("a way back");
}

async fn changes(sandbox: &Sandbox, since: Option<Checkpoint>) -> Vec<String> {
    let found = sandbox.engine.changes(&sandbox.id, since, 100).await.expect("changes");
    assert!(!found.truncated);
    let line = |change: sandbox::Change| {
        let mark = match change.kind {
            ChangeKind::Added => '+',
            ChangeKind::Modified => '~',
            ChangeKind::Removed => '-',
        };
        format!("{mark}{}", change.path)
    };
    found.entries.into_iter().map(line).collect()
}

async fn going_back_brings_everything_back(place: Place) {
    let sandbox = place.sandbox("host").await;
    let first = checkpoint(&sandbox).await;
    sandbox.says("mkdir -p dir/sub; echo 1 >dir/sub/file; echo 1 >file; echo h >$HOME/h; chmod 700 /workspace").await;
    let second = checkpoint(&sandbox).await;
    assert!(second > first);
    sandbox.says("rm -r dir; echo 2 >file; echo new >new; rm $HOME/h; chmod 755 /workspace").await;
    restore(&sandbox, second).await;
    assert_eq!(sandbox.says("cat dir/sub/file file $HOME/h; ls; stat -c %a .").await, "1\n1\nh\ndir\nfile\n700\n");
    sandbox.says("echo 3 >file").await;
    restore(&sandbox, second).await;
    assert_eq!(sandbox.says("cat file").await, "1\n", "a moment can be gone back to again");
    restore(&sandbox, first).await;
    assert_eq!(sandbox.says("ls; ls $HOME; stat -c %a .; echo x >x; cat x").await, "755\nx\n");
    sandbox.destroy().await;
}

async fn later_moments_are_gone_after_going_back(place: Place) {
    let sandbox = place.sandbox("host").await;
    sandbox.says("echo 1 >file").await;
    let first = checkpoint(&sandbox).await;
    sandbox.says("echo 2 >file").await;
    let second = checkpoint(&sandbox).await;
    restore(&sandbox, first).await;
    let gone = sandbox.engine.restore(&sandbox.id, second).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    let gone = sandbox.engine.changes(&sandbox.id, Some(second), 10).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    sandbox.says("echo 3 >file").await;
    let third = checkpoint(&sandbox).await;
    assert!(third > second, "a number means one moment");
    assert_eq!(changes(&sandbox, Some(first)).await, ["~/workspace/file"]);
    sandbox.destroy().await;
}

async fn a_moment_without_changes_is_the_last_one(place: Place) {
    let sandbox = place.sandbox("host").await;
    sandbox.says("echo 1 >file").await;
    let first = checkpoint(&sandbox).await;
    assert_eq!(checkpoint(&sandbox).await, first);
    sandbox.says("cat file; echo x >made; rm made").await;
    assert_eq!(checkpoint(&sandbox).await, first, "what was made is gone again");
    sandbox.says("echo 2 >file").await;
    assert_ne!(checkpoint(&sandbox).await, first);
    sandbox.destroy().await;
}

async fn nothing_is_remembered_while_a_command_runs(place: Place) {
    let sandbox = place.sandbox("host").await;
    sandbox.says("echo 1 >file").await;
    let first = checkpoint(&sandbox).await;
    let request = ExecRequest::shell("sleep 60", Duration::from_secs(100)).unwrap();
    let running = sandbox.engine.start(&sandbox.id, &request).await.unwrap();
    for refused in
        [sandbox.engine.checkpoint(&sandbox.id).await.map(drop), sandbox.engine.restore(&sandbox.id, first).await]
    {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::WrongState);
    }
    assert_eq!(sandbox.says("cat file").await, "1\n", "a refusal changes nothing");
    running.control.kill().await.unwrap();
    running.control.wait().await.unwrap();
    assert_eq!(checkpoint(&sandbox).await, first);
    sandbox.destroy().await;
}

async fn changes_are_told(place: Place) {
    let sandbox = place.sandbox("host").await;
    assert_eq!(changes(&sandbox, None).await, Vec::<String>::new());
    sandbox.says("mkdir a; echo 1 >a/file; echo 1 >a-b; ln -s a link").await;
    let expected = ["+/workspace/a", "+/workspace/a-b", "+/workspace/a/file", "+/workspace/link"];
    assert_eq!(changes(&sandbox, None).await, expected);
    let first = checkpoint(&sandbox).await;
    assert_eq!(changes(&sandbox, Some(first)).await, Vec::<String>::new());
    assert_eq!(changes(&sandbox, None).await, expected);
    sandbox.says("rm -r a; echo 22 >a-b; mkdir a; touch a/new; rm link; echo now a file >link").await;
    let expected = ["~/workspace/a-b", "-/workspace/a/file", "+/workspace/a/new", "~/workspace/link"];
    assert_eq!(changes(&sandbox, Some(first)).await, expected);
    let some = sandbox.engine.changes(&sandbox.id, Some(first), 2).await.unwrap();
    assert_eq!((some.entries.len(), some.truncated), (2, true));
    let now = some.entries.iter().find(|change| change.kind == ChangeKind::Modified).unwrap();
    assert_eq!(now.bytes, 3);
    assert!(now.changed_ns > 1_600_000_000_000_000_000, "{now:?}");
    sandbox.destroy().await;
}

async fn changes_of_an_image_are_told(place: Place) {
    let files = Layer::new().directory("srv", 0o755).owner(1000, 1000).directory("srv/own", 0o700);
    let files = files.file("srv/own/kept", 0o600, "image").file("srv/own/changed", 0o600, "image");
    place.image("base", vec![system(), files.finish()], Default::default());
    let sandbox = place.sandbox("base").await;
    assert_eq!(changes(&sandbox, None).await, Vec::<String>::new());
    sandbox.says("echo more >>/srv/own/changed; rm /srv/own/kept; echo x >/srv/own/new").await;
    let expected = ["~/srv/own/changed", "-/srv/own/kept", "+/srv/own/new"];
    assert_eq!(changes(&sandbox, None).await, expected);
    sandbox.says("echo x >/workspace/x").await;
    let since = checkpoint(&sandbox).await;
    sandbox.says("echo yy >/workspace/x").await;
    assert_eq!(changes(&sandbox, Some(since)).await, ["~/workspace/x"]);
    restore(&sandbox, since).await;
    assert_eq!(
        sandbox.says("cat /workspace/x; cat /srv/own/changed; ls /srv/own").await,
        "x\nimagemore\nchanged\nnew\n"
    );
    sandbox.says("echo x >/srv/own/kept; rm /srv/own/new").await;
    sandbox.destroy().await;
}

async fn changes_since_the_start_of_a_fork(place: Place) {
    let source = place.sandbox("host").await;
    source.says("mkdir closed; echo 1 >closed/file; chmod 700 closed").await;
    let copy = fork(&source, |_| {}).await.unwrap();
    // What was copied for an ordinary user lies in the layer that the fork writes to.
    let start = if is_root() { None } else { Some(checkpoint(&copy).await) };
    assert_eq!(changes(&copy, start).await, Vec::<String>::new());
    copy.says("echo 22 >closed/file; echo x >closed/own").await;
    assert_eq!(changes(&copy, start).await, ["~/workspace/closed/file", "+/workspace/closed/own"]);
    let since = checkpoint(&copy).await;
    copy.says("rm closed/own").await;
    assert_eq!(changes(&copy, Some(since)).await, ["-/workspace/closed/own"]);
    source.destroy().await;
    restore(&copy, since).await;
    assert_eq!(copy.says("cat closed/file closed/own").await, "22\nx\n");
    copy.destroy().await;
}

async fn limits_hold_over_moments(place: Place) {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.limits.disk = ByteSize::mebibytes(60);
    let sandbox = Sandbox { engine: place.engine().await, id: SandboxId::random().unwrap() };
    sandbox.engine.create(&sandbox.id, &spec).await.unwrap();
    sandbox.says("head -c 40000000 /dev/zero >one").await;
    let first = checkpoint(&sandbox).await;
    let (_, status) = sandbox.run(&["sh", "-c", "head -c 40000000 /dev/zero >two"]).await.unwrap();
    assert_ne!(status, ExecStatus::Exited(0), "what is frozen counts");
    let full = sandbox.engine.checkpoint(&sandbox.id).await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::LimitExceeded, "{full:?}");
    let used = sandbox.engine.usage(&sandbox.id).await.unwrap().disk.unwrap();
    assert!((40_000_000..=60 << 20).contains(&used), "{used}");
    restore(&sandbox, first).await;
    sandbox.says("head -c 15000000 /dev/zero >two").await;
    sandbox.destroy().await;
}

async fn there_are_so_many_moments(place: Place) {
    let sandbox = place.sandbox("host").await;
    let mut last = None;
    let refused = loop {
        sandbox.says("echo x >>file").await;
        match sandbox.engine.checkpoint(&sandbox.id).await {
            Ok(checkpoint) => last = Some(checkpoint),
            Err(error) => break error,
        }
        assert!(last.is_none_or(|last| last.0 < 100), "there is no end");
    };
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert_eq!(last, Some(Checkpoint(32)));
    assert_eq!(sandbox.says("wc -l <file").await.trim(), "33");
    restore(&sandbox, Checkpoint(1)).await;
    assert_eq!(sandbox.says("wc -l <file").await.trim(), "1");
    checkpoint(&sandbox).await;
    sandbox.destroy().await;
}

async fn the_sandbox_stays_the_same(place: Place) {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.name = Some("lab".parse().unwrap());
    spec.environment.insert("GREETING", "hello").unwrap();
    let sandbox = Sandbox { engine: place.engine().await, id: SandboxId::random().unwrap() };
    sandbox.engine.create(&sandbox.id, &spec).await.unwrap();
    let look = "echo $GREETING; uname -n; id; pwd; cat /proc/self/uid_map; ulimit -u; ulimit -n; cat /proc/self/cgroup";
    let before = (sandbox.says(look).await, sandbox.engine.isolation(&sandbox.id).await.unwrap());
    sandbox.says("echo 1 >file").await;
    checkpoint(&sandbox).await;
    let after = (sandbox.says(look).await, sandbox.engine.isolation(&sandbox.id).await.unwrap());
    assert_eq!(after, before);
    assert_eq!(sandbox.engine.list().await.unwrap().len(), 1);
    sandbox.destroy().await;
}

async fn logs_and_the_deadline_go_along(place: Place) {
    let sandbox = place.sandbox("host").await;
    let mut request = ExecRequest::shell("echo heard; echo 1 >file", Duration::from_secs(30)).unwrap();
    (request.output, request.on_disconnect) = (OutputTarget::Log, OnDisconnect::Continue);
    let process = sandbox.engine.start(&sandbox.id, &request).await.unwrap();
    process.control.wait().await.unwrap();
    sandbox.engine.set_deadline(&sandbox.id, Some(Duration::from_secs(4))).await.unwrap();
    checkpoint(&sandbox).await;
    let logs = sandbox.engine.logs(&sandbox.id).await.unwrap();
    assert_eq!(logs.len(), 1);
    assert_eq!((&*logs[0].output, logs[0].status), (&b"heard\n"[..], Some(ExecStatus::Exited(0))));
    tokio::time::sleep(Duration::from_secs(6)).await;
    let gone = sandbox.run(&["true"]).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "its deadline is that of before");
}

/// Otherwise a sandbox could have its allowance anew as often as it is remembered.
async fn what_was_used_of_the_network_counts(place: Place) {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.network = "allowed.invalid".parse().unwrap();
    let sandbox = Sandbox { engine: place.engine().await, id: SandboxId::random().unwrap() };
    sandbox.engine.create(&sandbox.id, &spec).await.unwrap();
    let refused = async || sandbox.engine.usage(&sandbox.id).await.unwrap().network.unwrap().refused;
    sandbox.says("getent hosts other.invalid || echo 1 >file").await;
    let before = refused().await;
    assert!(before > 0);
    let moment = checkpoint(&sandbox).await;
    assert_eq!(refused().await, before);
    sandbox.says("getent hosts other.invalid || echo 2 >file").await;
    let after = refused().await;
    assert!(after > before, "{after} after {before}");
    restore(&sandbox, moment).await;
    assert_eq!(refused().await, after);
    sandbox.destroy().await;
}

async fn files_that_are_written_meanwhile_wait_or_refuse(place: Place) {
    let sandbox = place.sandbox("host").await;
    let files = sandbox.engine.files(&sandbox.id);
    let path = "/workspace/file".parse().unwrap();
    let mut writing = files.write(&path, Default::default()).await.unwrap();
    writing.write_all(b"half").await.unwrap();
    let refused = sandbox.engine.checkpoint(&sandbox.id).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WrongState);
    writing.write_all(b" and half").await.unwrap();
    writing.commit().await.unwrap();
    let first = checkpoint(&sandbox).await;
    assert_eq!(sandbox.says("cat file").await, "half and half");
    for _ in 0..5 {
        let (stat, again) = tokio::join!(files.stat(&path), sandbox.engine.restore(&sandbox.id, first));
        assert_eq!(stat.unwrap().bytes, 13);
        again.unwrap();
    }
    sandbox.destroy().await;
}

async fn what_is_saved_has_all_layers(place: Place) {
    let sandbox = place.sandbox("host").await;
    sandbox.says("echo 1 >one; echo 1 >two; mkdir dir; echo 1 >dir/file").await;
    checkpoint(&sandbox).await;
    sandbox.says("rm one; echo 2 >two; rm -r dir; mkdir dir; echo 2 >dir/other").await;
    let copy = fork(&sandbox, |_| {}).await.unwrap();
    copy.says("echo 3 >three").await;
    copy.engine.save(&copy.id, &"lab".parse().unwrap()).await.unwrap();
    let next = create(copy.engine.clone(), "saved:lab", Persistence::Ephemeral).await.unwrap();
    assert_eq!(next.says("ls; ls dir; cat two three; stat -c %u two").await, "dir\nthree\ntwo\nother\n2\n3\n1000\n");
    for sandbox in [next, sandbox, copy] {
        sandbox.destroy().await;
    }
}

async fn another_process_goes_back(place: Place) {
    let (first, second) = (place.engine().await, place.engine().await);
    let one = create(first, "host", Persistence::Persistent).await.unwrap();
    let other = Sandbox { engine: second, id: one.id.clone() };
    one.says("echo 1 >file").await;
    let moment = checkpoint(&other).await;
    assert_eq!(one.says("cat file; echo 2 >file").await, "1\n", "whoever made it goes on");
    restore(&other, moment).await;
    assert_eq!(one.says("cat file").await, "1\n");
    assert_eq!(changes(&one, Some(moment)).await, Vec::<String>::new());
    assert_eq!(one.engine.list().await.unwrap().len(), 1);
    other.destroy().await;
    assert_eq!(one.run(&["true"]).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn a_process_that_knew_it_goes_on(place: Place) {
    let one = create(place.engine().await, "host", Persistence::Persistent).await.unwrap();
    let other = Sandbox { engine: place.engine().await, id: one.id.clone() };
    for round in 0..8 {
        one.says(&format!("echo {round} >file")).await;
        // Asked all the time, so that it is asked in the middle of a restart too.
        let asking = async {
            for _ in 0..20 {
                match other.engine.usage(&other.id).await {
                    Ok(_) => {}
                    Err(error) => assert_ne!(error.kind(), ErrorKind::NotFound, "{error:?}"),
                }
            }
        };
        tokio::join!(checkpoint(&one), asking);
        assert_eq!(other.says("cat file").await, format!("{round}\n"));
        assert_eq!(one.says("cat file").await, format!("{round}\n"));
    }
    other.destroy().await;
    assert_eq!(one.engine.usage(&one.id).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn an_end_in_between_is_an_end(place: Place) {
    for delay in [0, 1, 2, 4, 8] {
        let sandbox = place.sandbox("host").await;
        sandbox.says("echo 1 >file").await;
        let (engine, id) = (sandbox.engine.clone(), sandbox.id.clone());
        let moment = tokio::spawn(async move { engine.checkpoint(&id).await });
        tokio::time::sleep(Duration::from_millis(delay)).await;
        sandbox.engine.destroy(&sandbox.id).await.unwrap();
        if let Err(error) = moment.await.unwrap() {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        }
        assert_eq!(sandbox.run(&["true"]).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(sandbox.engine.list().await.unwrap().is_empty());
    }
}
