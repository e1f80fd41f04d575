//! What a fork has of its source, and what neither sees of the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_native::NativeEngine;
use sandbox::{
    ByteSize, Engine, ErrorKind, ExecRequest, ExecStatus, Owner, Persistence, Result, SandboxId, SandboxSpec, Snapshots,
};

use crate::layer::{Layer, system};
use crate::place::{Place, Sandbox, create, is_root};
use crate::tests;

tests!(
    neither_sees_what_the_other_does,
    forks_have_forks,
    an_image_can_be_forked,
    owners_and_modes_are_the_same_inside,
    what_is_removed_stays_removed,
    many_forks_of_one_state_share_it,
    a_source_that_is_busy_is_forked_too,
    two_forks_at_once_are_two,
    a_fork_outlives_its_source,
    a_large_tree_is_not_copied,
    limits_of_a_fork_count_what_it_has,
    a_fork_that_cannot_be_leaves_nothing,
    a_persistent_sandbox_is_forked,
);

pub async fn fork(source: &Sandbox, change: impl FnOnce(&mut SandboxSpec)) -> Result<Sandbox> {
    let mut spec = SandboxSpec::new(Owner::local());
    change(&mut spec);
    let id = SandboxId::random()?;
    source.engine.fork(&source.id, &id, &spec).await?;
    Ok(Sandbox { engine: source.engine.clone(), id })
}

async fn neither_sees_what_the_other_does(place: Place) {
    let source = place.sandbox("host").await;
    source.says("mkdir dir; echo old >dir/file; echo kept >kept; echo home >$HOME/x; echo tmp >/tmp/x").await;
    let copy = fork(&source, |_| {}).await.unwrap();
    assert_eq!(copy.says("cat dir/file kept $HOME/x /tmp/x").await, "old\nkept\nhome\ntmp\n");
    copy.says("echo new >dir/file; rm kept; echo mine >own; mkdir dir/sub").await;
    assert_eq!(source.says("cat dir/file kept; ls; ls dir").await, "old\nkept\ndir\nkept\nfile\n");
    source.says("echo later >dir/file; echo more >more; rm -r $HOME/x").await;
    assert_eq!(copy.says("cat dir/file; ls; cat $HOME/x").await, "new\ndir\nown\nhome\n");
    copy.destroy().await;
    assert_eq!(source.says("cat dir/file kept").await, "later\nkept\n");
    source.destroy().await;
}

async fn forks_have_forks(place: Place) {
    let first = place.sandbox("host").await;
    first.says("echo 1 >one").await;
    let second = fork(&first, |_| {}).await.unwrap();
    second.says("echo 2 >two").await;
    let third = fork(&second, |_| {}).await.unwrap();
    third.says("echo 3 >three; rm one").await;
    let fourth = fork(&third, |_| {}).await.unwrap();
    assert_eq!(fourth.says("cat *").await, "3\n2\n");
    assert_eq!(first.says("ls").await, "one\n");
    assert_eq!(second.says("ls").await, "one\ntwo\n");
    assert_eq!(third.says("ls").await, "three\ntwo\n");
    for sandbox in [second, first, third] {
        sandbox.destroy().await;
    }
    assert_eq!(fourth.says("cat *; stat -c %U:%G two").await, "3\n2\nsandbox:sandbox\n");
    fourth.destroy().await;
}

fn image(place: &Place) {
    let files = Layer::new()
        .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n")
        .directory("srv", 0o755)
        .owner(1000, 1000)
        .directory("srv/own", 0o755)
        .file("srv/own/below", 0o644, "image")
        .file("srv/own/removed", 0o644, "image");
    place.image(
        "base",
        vec![system(), Layer::new().programs(&["mkdir", "chmod"]).finish(), files.finish()],
        Default::default(),
    );
}

async fn an_image_can_be_forked(place: Place) {
    image(&place);
    let source = place.sandbox("base").await;
    // As an ordinary user nobody inside may change files of an image.
    let change = if is_root() { "echo changed >/srv/own/below; rm /srv/own/removed" } else { "true" };
    source.says(&format!("echo x >/workspace/x; {change}")).await;
    let copy = fork(&source, |_| {}).await.unwrap();
    let expected = if is_root() { "x\nchanged\nbelow\n" } else { "x\nimagebelow\nremoved\n" };
    assert_eq!(copy.says("cat /workspace/x /srv/own/below; ls /srv/own").await, expected);
    copy.says("echo y >/workspace/x; /bin/ls /bin/sh").await;
    assert_eq!(source.says("cat /workspace/x; ls /srv/own").await.lines().next(), Some("x"));
    let plain = create(source.engine.clone(), "base", Persistence::Ephemeral).await.unwrap();
    assert_eq!(plain.says("cat /srv/own/below; ls /workspace").await, "image");
    for sandbox in [plain, source, copy] {
        sandbox.destroy().await;
    }
}

async fn owners_and_modes_are_the_same_inside(place: Place) {
    let source = place.sandbox("host").await;
    source.says("umask 077; mkdir closed; echo x >closed/file; chmod 751 closed/file; ln -s file closed/link").await;
    source.says("ln closed/file closed/hard; touch -d @1000000000 closed/file").await;
    let list = "stat -c '%n %u:%g %a %h %Y' closed closed/file closed/hard | grep -v '^closed 1000:1000 700 2' ; readlink closed/link; id -u";
    let (before, copy) = (source.says(list).await, fork(&source, |_| {}).await.unwrap());
    assert!(before.contains("closed/file 1000:1000"), "{before}");
    assert_eq!(copy.says(list).await, before);
    assert_eq!(copy.says("cat closed/file; echo y >>closed/file; cat closed/file").await, "x\nx\ny\n");
    source.destroy().await;
    copy.destroy().await;
}

async fn what_is_removed_stays_removed(place: Place) {
    let source = place.sandbox("host").await;
    source.says("mkdir -p a/b; echo 1 >a/b/file; echo 2 >other").await;
    let copy = fork(&source, |_| {}).await.unwrap();
    copy.says("rm -r a other; mkdir a; echo new >a/fresh").await;
    let next = fork(&copy, |_| {}).await.unwrap();
    assert_eq!(next.says("ls; ls a").await, "a\nfresh\n");
    next.says("mkdir a/b; ls a/b").await;
    assert_eq!(next.says("ls a/b; ls a").await, "b\nfresh\n");
    assert_eq!(source.says("cat a/b/file other").await, "1\n2\n");
    for sandbox in [source, copy, next] {
        sandbox.destroy().await;
    }
}

/// No layer comes for a fork of what was not changed since the last one.
async fn many_forks_of_one_state_share_it(place: Place) {
    let source = place.sandbox("host").await;
    source.says("echo prepared >state").await;
    let mut forks = Vec::new();
    for number in 0..40 {
        let copy = fork(&source, |_| {}).await.unwrap();
        copy.says(&format!("echo {number} >>state")).await;
        forks.push(copy);
    }
    for (number, copy) in forks.into_iter().enumerate() {
        assert_eq!(copy.says("cat state").await, format!("prepared\n{number}\n"));
        copy.destroy().await;
    }
    assert_eq!(source.says("cat state").await, "prepared\n");
    source.destroy().await;
}

async fn a_source_that_is_busy_is_forked_too(place: Place) {
    let source = place.sandbox("host").await;
    source.says("echo x >file").await;
    let request = ExecRequest::shell("sleep 60", Duration::from_secs(100)).unwrap();
    let running = source.engine.start(&source.id, &request).await.unwrap();
    let copy = fork(&source, |_| {}).await.unwrap();
    assert_eq!(copy.says("cat file; echo y >file; stat -c %u file").await, "x\n1000\n");
    assert_eq!(source.says("cat file").await, "x\n");
    running.control.kill().await.unwrap();
    assert_eq!(running.control.wait().await.unwrap().status, ExecStatus::Cancelled, "it was not stopped by the fork");
    source.destroy().await;
    copy.destroy().await;
}

async fn two_forks_at_once_are_two(place: Place) {
    let source = place.sandbox("host").await;
    source.says("echo x >file").await;
    let (one, other, said) = tokio::join!(fork(&source, |_| {}), fork(&source, |_| {}), source.says("cat file"));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(said, "x\n", "a command that is started meanwhile waits");
    one.says("echo 1 >file").await;
    assert_eq!(other.says("cat file").await, "x\n");
    for sandbox in [source, one, other] {
        sandbox.destroy().await;
    }
}

async fn a_fork_outlives_its_source(place: Place) {
    let source = place.sandbox("host").await;
    source.says("echo x >file; head -c 3000000 /dev/urandom >large; sha256sum large >sum").await;
    let copy = fork(&source, |_| {}).await.unwrap();
    source.destroy().await;
    copy.says("sha256sum -c sum; echo y >>file").await;
    copy.destroy().await;
}

async fn a_large_tree_is_not_copied(place: Place) {
    let engine = place.engine().await;
    let room = |spec: &mut SandboxSpec| {
        (spec.limits.memory, spec.limits.disk) = (ByteSize::mebibytes(3000), ByteSize::mebibytes(2000));
    };
    let mut spec = SandboxSpec::new(Owner::local());
    room(&mut spec);
    let source = Sandbox { engine, id: SandboxId::random().unwrap() };
    source.engine.create(&source.id, &spec).await.unwrap();
    source.says("head -c 1073741824 /dev/zero >large; ls -l large").await;
    let before = Instant::now();
    let first = fork(&source, room).await.unwrap();
    let took = before.elapsed();
    let before = Instant::now();
    let second = fork(&source, room).await.unwrap();
    println!("the first fork of 1 GiB took {took:?}, the second {:?}", before.elapsed());
    assert_eq!(second.says("stat -c %s large").await, "1073741824\n");
    if is_root() {
        assert!(took < Duration::from_secs(2), "a fork that takes {took:?} has copied something");
    }
    for sandbox in [source, first, second] {
        sandbox.destroy().await;
    }
}

async fn limits_of_a_fork_count_what_it_has(place: Place) {
    let source = place.sandbox("host").await;
    source.says("head -c 60000000 /dev/zero >large").await;
    let small = |spec: &mut SandboxSpec| spec.limits.disk = ByteSize::mebibytes(40);
    let refused = fork(&source, small).await.err().expect("more than its limit");
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused:?}");
    let copy = fork(&source, |spec| spec.limits.disk = ByteSize::mebibytes(80)).await.unwrap();
    let (said, status) = copy.run(&["sh", "-c", "head -c 60000000 /dev/zero >more"]).await.unwrap();
    assert_ne!(status, ExecStatus::Exited(0), "{said}");
    let used = copy.engine.usage(&copy.id).await.unwrap().disk.unwrap();
    assert!(used > 60_000_000, "{used}");
    source.destroy().await;
    copy.destroy().await;
}

async fn a_fork_that_cannot_be_leaves_nothing(place: Place) {
    let source = place.sandbox("host").await;
    source.says("echo x >file").await;
    let engine: &Arc<NativeEngine> = &source.engine;
    let spec = SandboxSpec::new(Owner::local());
    let exists = engine.fork(&source.id, &source.id, &spec).await.unwrap_err();
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
    let missing = engine.fork(&SandboxId::random().unwrap(), &SandboxId::random().unwrap(), &spec).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(engine.list().await.unwrap().len(), 1);
    assert_eq!(source.says("cat file").await, "x\n");
    source.destroy().await;
}

async fn a_persistent_sandbox_is_forked(place: Place) {
    let source = create(place.engine().await, "host", Persistence::Persistent).await.unwrap();
    source.says("echo x >file").await;
    let copy = fork(&source, |spec| spec.persistence = Persistence::Persistent).await.unwrap();
    // Another engine finds both.
    let later = place.engine().await;
    for (id, line) in [(&source.id, "source"), (&copy.id, "fork")] {
        let found = Sandbox { engine: later.clone(), id: id.clone() };
        assert_eq!(found.says(&format!("cat file; echo {line} >file; cat file")).await, format!("x\n{line}\n"));
    }
    // And forks what the first has made.
    let found = Sandbox { engine: later.clone(), id: copy.id.clone() };
    let third = fork(&found, |_| {}).await.unwrap();
    assert_eq!(third.says("cat file").await, "fork\n");
    assert_eq!(copy.says("cat file").await, "fork\n", "the first engine goes on with it");
    for sandbox in [third, source, copy] {
        sandbox.destroy().await;
    }
    assert!(later.list().await.unwrap().is_empty());
}
