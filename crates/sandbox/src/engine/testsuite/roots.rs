//! Guests whose programs are root of their sandbox: what they can do to it, and what they cannot do to process 1.

use std::sync::Arc;

use super::subject::{Subject, command, kind, seconds, shell, spec};
use super::{Able, suite, suite_of_powers};
use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::exec::{Account, ExecStatus};
use crate::id::SandboxId;
use crate::image::Image;
use crate::spec::{Insistence, Role, SandboxSpec};

suite! { cases, "roots", Root:
    programs_are_root_and_the_report_says_so,
    a_wish_is_fulfilled_where_a_demand_is,
    a_root_has_a_home_and_a_place_to_work_in,
    a_root_is_nobody_else_at_the_callers_word,
    a_root_and_a_guest_are_never_taken_for_each_other,
}

suite! { kernel_cases, "roots", RootOfProcesses:
    process_1_is_out_of_its_roots_reach,
    whoever_kills_everybody_is_told_of,
    the_kernel_is_out_of_its_roots_reach,
}

suite_of_powers! { tree_cases, "roots", RootOfTree:
    what_root_changed_is_saved_and_branched,
    what_root_changed_can_be_taken_back,
}

const ROOT: Role = Role::ImageUser(Insistence::Must);

async fn root(engine: &Arc<dyn Engine>) -> Subject {
    Subject::with(engine.clone(), SandboxSpec { role: ROOT, ..spec() }).await
}

async fn user_of(subject: &Subject) -> String {
    subject.run(&command(&["id", "-u"])).await.text()
}

async fn programs_are_root_and_the_report_says_so(engine: Arc<dyn Engine>) {
    let (root, guest) = (root(&engine).await, Subject::new(engine.clone()).await);
    assert_eq!((user_of(&root).await.as_str(), user_of(&guest).await.as_str()), ("0\n", "1000\n"));
    assert_eq!(engine.isolation(&root.id).await.unwrap().user.id, 0);
    assert_eq!(engine.isolation(&guest.id).await.unwrap().user.id, 1000);
    assert_eq!(root.run(&command(&["printenv", "USER"])).await.text(), "root\n");
    root.destroy().await;
    guest.destroy().await;
}

async fn a_wish_is_fulfilled_where_a_demand_is(engine: Arc<dyn Engine>) {
    let wish = SandboxSpec { role: Role::ImageUser(Insistence::IfPossible), ..spec() };
    let subject = Subject::with(engine.clone(), wish).await;
    assert_eq!(user_of(&subject).await, "0\n");
    subject.destroy().await;
}

async fn a_root_has_a_home_and_a_place_to_work_in(engine: Arc<dyn Engine>) {
    let root = root(&engine).await;
    root.says("echo home > $HOME/own; echo work > file; echo temporary > /tmp/file").await;
    assert_eq!(root.says("cat $HOME/own; cat file; cat /tmp/file").await, "home\nwork\ntemporary\n");
    assert_eq!(root.read("/workspace/file").await, b"work\n");
    root.write("/workspace/other", b"x").await;
    assert_eq!(root.says("cat other; echo more > other; cat other").await, "xmore\n");
    root.destroy().await;
}

async fn a_root_is_nobody_else_at_the_callers_word(engine: Arc<dyn Engine>) {
    let root = root(&engine).await;
    for account in [Account { user: 0, group: 0 }, Account { user: 1000, group: 1000 }] {
        let mut request = command(&["id", "-u"]);
        request.account = Some(account);
        let refused = kind(engine.start(&root.id, &request).await);
        assert!(matches!(refused, ErrorKind::InvalidInput | ErrorKind::Denied), "{refused:?}");
    }
    root.destroy().await;
}

/// Also where they are made ahead of demand.
async fn a_root_and_a_guest_are_never_taken_for_each_other(engine: Arc<dyn Engine>) {
    for _ in 0..3 {
        for (role, user) in [(ROOT, "0\n"), (Role::Guest, "1000\n")] {
            let subject = Subject::with(engine.clone(), SandboxSpec { role, ..spec() }).await;
            assert_eq!(user_of(&subject).await, user, "{role:?}");
            subject.destroy().await;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

/// It may have the same id and rights as the programs; what keeps them out is that it cannot be looked into.
async fn process_1_is_out_of_its_roots_reach(engine: Arc<dyn Engine>) {
    let root = root(&engine).await;
    for closed in
        ["ls -l /proc/1/fd/", "cat /proc/1/mem", "cat /proc/1/environ", "ls /proc/1/root/", "echo > /proc/1/mem"]
    {
        let ended = root.run(&shell(closed)).await;
        assert_ne!(ended.status(), ExecStatus::Exited(0), "{closed}: {}", ended.text());
    }
    root.says("kill -9 1; kill -STOP 1; sleep 0.1; true").await;
    assert_eq!(root.says("echo alive").await, "alive\n");
    root.destroy().await;
}

/// Its supervisor is the same user's. With it may end the sandbox, and then nobody is told that it is there: not even
/// who started the command, if it is quicker than the word that it was started.
async fn whoever_kills_everybody_is_told_of(engine: Arc<dyn Engine>) {
    let root = root(&engine).await;
    let begun = tokio::time::timeout(seconds(30), engine.start(&root.id, &shell("kill -9 -1"))).await;
    match begun.expect("an answer") {
        Ok(process) => {
            let ended = tokio::time::timeout(seconds(30), super::subject::finish(process)).await.expect("it ends");
            assert!(!matches!(ended.status(), ExecStatus::TimedOut), "{:?}", ended.status());
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}"),
    }
    let after = tokio::time::timeout(seconds(30), engine.start(&root.id, &shell("echo alive"))).await;
    match after.expect("an answer") {
        Ok(process) => {
            let ended = tokio::time::timeout(seconds(30), super::subject::finish(process)).await.expect("it ends");
            let is_alive = ended.status() == ExecStatus::Exited(0) && ended.text() == "alive\n";
            assert!(is_alive || ended.status() == ExecStatus::Killed, "{ended:?}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}"),
    }
    root.destroy().await;
}

async fn the_kernel_is_out_of_its_roots_reach(engine: Arc<dyn Engine>) {
    let root = root(&engine).await;
    for closed in [
        "mknod /tmp/disk b 8 0",
        "mount -t tmpfs none /tmp",
        "unshare -U true",
        "unshare -m true",
        "echo 1 > /proc/sys/kernel/printk",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo x > /proc/sysrq-trigger",
    ] {
        let ended = root.run(&shell(closed)).await;
        assert_ne!(ended.status(), ExecStatus::Exited(0), "{closed}: {}", ended.text());
    }
    root.destroy().await;
}

const CHANGES: &str = "mkdir -p /opt/tool; echo made > /opt/tool/file";

async fn what_root_changed_is_saved_and_branched(able: Able) {
    let first = root(&able.engine).await;
    first.says(CHANGES).await;
    let name = format!("suite-{}", first.id).parse().unwrap();
    able.snapshots().save(&first.id, &name).await.unwrap();

    let branch = SandboxId::random().unwrap();
    able.snapshots().fork(&first.id, &branch, &SandboxSpec { role: ROOT, ..spec() }).await.unwrap();
    let branch = Subject { engine: able.engine.clone(), files: able.engine.files(&branch), id: branch };
    assert_eq!(user_of(&branch).await, "0\n");
    assert_eq!(branch.says("cat /opt/tool/file; echo branched > /opt/tool/file").await, "made\n");
    assert_eq!(first.says("cat /opt/tool/file").await, "made\n");
    branch.destroy().await;
    first.destroy().await;

    let from = |role| SandboxSpec { image: Image::Saved(name.clone()), role, ..spec() };
    let again = Subject::with(able.engine.clone(), from(ROOT)).await;
    assert_eq!(again.says("cat /opt/tool/file; echo more > /opt/tool/file; cat /opt/tool/file").await, "made\nmore\n");
    again.destroy().await;
    let guest = Subject::with(able.engine.clone(), from(Role::Guest)).await;
    assert_eq!(guest.read("/opt/tool/file").await, b"made\n");
    assert_ne!(guest.run(&shell("echo more > /opt/tool/file")).await.status(), ExecStatus::Exited(0), "it is root's");
    guest.destroy().await;
    able.snapshots().forget(&spec().owner, &name).await.unwrap();
}

async fn what_root_changed_can_be_taken_back(able: Able) {
    let subject = root(&able.engine).await;
    subject.says(CHANGES).await;
    let moment = able.checkpoints().checkpoint(&subject.id).await.unwrap();
    subject.says("echo spoilt > /opt/tool/file; echo x > /opt/tool/other").await;
    able.checkpoints().restore(&subject.id, moment).await.unwrap();
    assert_eq!(subject.says("cat /opt/tool/file").await, "made\n");
    assert!(!subject.exists("/opt/tool/other").await);
    assert_eq!(user_of(&subject).await, "0\n", "it is the same after a restart");
    subject.says("echo more > /opt/tool/file").await;
    assert_eq!(subject.read("/opt/tool/file").await, b"more\n");
    subject.destroy().await;
}
