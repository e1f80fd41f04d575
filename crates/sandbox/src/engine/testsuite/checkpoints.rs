//! Moments that a sandbox can go back to.

use super::subject::{Subject, finish, kind, seconds};
use super::{Able, suite_of_powers};
use crate::error::ErrorKind;
use crate::exec::{ExecRequest, ExecStatus};
use crate::file::FileKind;
use crate::id::SandboxId;
use crate::tree::{Change, ChangeKind, Checkpoint};

suite_of_powers! { "checkpoints", Checkpoints:
    a_restore_puts_files_back,
    a_sandbox_works_on_after_both,
    nothing_new_is_no_new_checkpoint,
    later_ones_are_greater_and_gone_after_a_restore,
    one_can_go_back_more_than_once,
    changes_are_told,
    changes_since_the_start_are_told,
    changes_come_in_the_order_of_their_paths_and_end_when_asked,
    a_running_command_forbids_both,
    an_unknown_checkpoint_is_not_found,
    there_is_a_bound,
    one_that_is_gone_has_none,
    a_deadline_survives_them,
}

async fn take(able: &Able, sandbox: &Subject) -> Checkpoint {
    able.checkpoints().checkpoint(&sandbox.id).await.unwrap()
}

async fn back(able: &Able, sandbox: &Subject, to: Checkpoint) {
    able.checkpoints().restore(&sandbox.id, to).await.unwrap();
}

/// Changes of files below `/workspace`, by their names. What becomes of a directory's own times is the engine's affair.
async fn changed(able: &Able, sandbox: &Subject, since: Option<Checkpoint>) -> Vec<(String, ChangeKind)> {
    let changes = able.checkpoints().changes(&sandbox.id, since, 1000).await.unwrap();
    assert!(!changes.truncated);
    let is_told = |change: &&Change| change.file != FileKind::Directory || change.kind != ChangeKind::Modified;
    changes
        .entries
        .iter()
        .filter(is_told)
        .filter_map(|change| {
            let name = change.path.to_string();
            name.strip_prefix("/workspace/").map(|name| (name.to_owned(), change.kind))
        })
        .collect()
}

fn shown(changes: &[(String, ChangeKind)]) -> String {
    let mark = |kind| match kind {
        ChangeKind::Added => '+',
        ChangeKind::Modified => '~',
        ChangeKind::Removed => '-',
    };
    changes.iter().map(|(name, kind)| format!("{}{name}", mark(*kind))).collect::<Vec<_>>().join(" ")
}

async fn a_restore_puts_files_back(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    sandbox.says("mkdir d; echo 1 > d/file; echo 1 > same; echo 1 > doomed; ln -s same link; echo t > /tmp/t").await;
    let before = sandbox.tree("/workspace").await;
    let checkpoint = take(&able, &sandbox).await;
    sandbox.says("echo 2 > d/file; rm doomed link; echo 2 > new; mkdir e; echo 2 > e/new; echo u > /tmp/t").await;
    back(&able, &sandbox, checkpoint).await;
    assert_eq!(sandbox.tree("/workspace").await, before);
    assert_eq!(sandbox.says("cat d/file same doomed link /tmp/t").await, "1\n1\n1\n1\nt\n");
    sandbox.destroy().await;
}

async fn a_sandbox_works_on_after_both(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    sandbox.write("file", b"1").await;
    let checkpoint = take(&able, &sandbox).await;
    for round in 0..3 {
        assert_eq!(sandbox.says("cat file; echo more >> file; rm file; echo 2 > file; cat file").await, "12\n");
        sandbox.write("other", b"x").await;
        assert_eq!(sandbox.run(&super::subject::shell("exit 3")).await.status(), ExecStatus::Exited(3), "{round}");
        assert!(able.engine.usage(&sandbox.id).await.is_ok());
        back(&able, &sandbox, checkpoint).await;
    }
    assert_eq!(sandbox.tree("/workspace").await, ["/workspace/file"]);
    sandbox.destroy().await;
}

async fn nothing_new_is_no_new_checkpoint(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    sandbox.write("file", b"1").await;
    let first = take(&able, &sandbox).await;
    assert_eq!(take(&able, &sandbox).await, first);
    sandbox.says("cat file").await;
    assert_eq!(take(&able, &sandbox).await, first, "to look is no change");
    sandbox.write("file", b"2").await;
    let second = take(&able, &sandbox).await;
    assert!(second > first);
    back(&able, &sandbox, first).await;
    assert_eq!(take(&able, &sandbox).await, first, "it is as it was then");
    sandbox.destroy().await;
}

async fn later_ones_are_greater_and_gone_after_a_restore(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let mut taken = Vec::new();
    for text in ["1", "2", "3"] {
        sandbox.write("file", text.as_bytes()).await;
        taken.push(take(&able, &sandbox).await);
    }
    assert!(taken.is_sorted_by(|a, b| a < b), "{taken:?}");
    back(&able, &sandbox, taken[1]).await;
    assert_eq!(sandbox.read("file").await, b"2");
    assert_eq!(kind(able.checkpoints().restore(&sandbox.id, taken[2]).await), ErrorKind::NotFound);
    assert_eq!(sandbox.read("file").await, b"2", "a refused restore changes nothing");
    back(&able, &sandbox, taken[1]).await;
    back(&able, &sandbox, taken[0]).await;
    assert_eq!(sandbox.read("file").await, b"1");
    sandbox.destroy().await;
}

async fn one_can_go_back_more_than_once(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let empty = take(&able, &sandbox).await;
    for text in ["a", "b", "c"] {
        sandbox.write(text, text.as_bytes()).await;
        assert_eq!(sandbox.tree("/workspace").await, [format!("/workspace/{text}")]);
        back(&able, &sandbox, empty).await;
        assert!(sandbox.tree("/workspace").await.is_empty());
    }
    sandbox.destroy().await;
}

async fn changes_are_told(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    sandbox.says("mkdir d; echo 1 > d/same; echo 1 > file; echo 1 > doomed; ln -s file link").await;
    let first = take(&able, &sandbox).await;
    assert!(changed(&able, &sandbox, Some(first)).await.is_empty());
    sandbox.says("echo more >> file; rm doomed; echo 1 > d/new; ln -s d/new other").await;
    assert_eq!(shown(&changed(&able, &sandbox, Some(first)).await), "+d/new -doomed ~file +other");
    let second = take(&able, &sandbox).await;
    assert!(changed(&able, &sandbox, Some(second)).await.is_empty());
    sandbox.says("rm other").await;
    assert_eq!(shown(&changed(&able, &sandbox, Some(second)).await), "-other");
    // What came and went in between is no difference.
    assert_eq!(shown(&changed(&able, &sandbox, Some(first)).await), "+d/new -doomed ~file");

    let all = able.checkpoints().changes(&sandbox.id, Some(first), 1000).await.unwrap();
    let of = |name: &str| all.entries.iter().find(|change| change.path.to_string().ends_with(name)).unwrap();
    assert_eq!((of("/file").file, of("/file").bytes), (FileKind::Regular, 7));
    assert_eq!((of("/doomed").file, of("/doomed").bytes), (FileKind::Regular, 0));
    back(&able, &sandbox, first).await;
    assert!(changed(&able, &sandbox, Some(first)).await.is_empty());
    sandbox.destroy().await;
}

async fn changes_since_the_start_are_told(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    assert!(changed(&able, &sandbox, None).await.is_empty());
    sandbox.write("one", b"1").await;
    take(&able, &sandbox).await;
    sandbox.write("two", b"2").await;
    assert_eq!(shown(&changed(&able, &sandbox, None).await), "+one +two");
    sandbox.says("rm one").await;
    assert_eq!(shown(&changed(&able, &sandbox, None).await), "+two");
    sandbox.destroy().await;
}

async fn changes_come_in_the_order_of_their_paths_and_end_when_asked(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let start = take(&able, &sandbox).await;
    sandbox.says("mkdir a; echo x > a/b; echo x > a-b; echo x > B; echo x > a.b").await;
    assert_eq!(shown(&changed(&able, &sandbox, Some(start)).await), "+B +a +a-b +a.b +a/b");
    let all = able.checkpoints().changes(&sandbox.id, Some(start), 1000).await.unwrap();
    for most in 0..all.entries.len() {
        let some = able.checkpoints().changes(&sandbox.id, Some(start), most).await.unwrap();
        assert_eq!((some.entries.as_slice(), some.truncated), (&all.entries[..most], true));
    }
    let exactly = able.checkpoints().changes(&sandbox.id, Some(start), all.entries.len()).await.unwrap();
    assert_eq!(exactly, all);
    sandbox.destroy().await;
}

async fn a_running_command_forbids_both(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    sandbox.write("file", b"x").await;
    let checkpoint = take(&able, &sandbox).await;
    sandbox.write("file", b"y").await;
    let waiting = sandbox.start(&ExecRequest::shell("cat; cat file", seconds(50)).unwrap()).await;
    assert_eq!(kind(able.checkpoints().checkpoint(&sandbox.id).await), ErrorKind::WrongState);
    assert_eq!(kind(able.checkpoints().restore(&sandbox.id, checkpoint).await), ErrorKind::WrongState);
    let ended = finish(waiting).await;
    assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::Exited(0), "y"));
    back(&able, &sandbox, checkpoint).await;
    assert_eq!(sandbox.read("file").await, b"x");
    sandbox.destroy().await;
}

async fn an_unknown_checkpoint_is_not_found(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let unknown = Checkpoint(u32::MAX);
    for _ in 0..2 {
        assert_eq!(kind(able.checkpoints().restore(&sandbox.id, unknown).await), ErrorKind::NotFound);
        assert_eq!(kind(able.checkpoints().changes(&sandbox.id, Some(unknown), 10).await), ErrorKind::NotFound);
        sandbox.write("file", b"x").await;
        take(&able, &sandbox).await;
    }
    assert_eq!(sandbox.read("file").await, b"x");
    sandbox.destroy().await;
}

async fn there_is_a_bound(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    sandbox.write("file", b"first").await;
    let first = take(&able, &sandbox).await;
    let mut refused = None;
    for number in 0..1000 {
        sandbox.write("file", number.to_string().as_bytes()).await;
        if let Err(error) = able.checkpoints().checkpoint(&sandbox.id).await {
            refused = Some((error.kind(), number));
            break;
        }
    }
    let (kind, number) = refused.expect("a thousand checkpoints were taken");
    assert_eq!(kind, ErrorKind::LimitExceeded);
    assert_eq!(sandbox.read("file").await, number.to_string().into_bytes(), "a refusal changes nothing");
    back(&able, &sandbox, first).await;
    assert_eq!(sandbox.read("file").await, b"first");
    sandbox.write("file", b"again").await;
    assert!(take(&able, &sandbox).await > first, "a restore makes room");
    sandbox.destroy().await;
}

async fn one_that_is_gone_has_none(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let checkpoint = take(&able, &sandbox).await;
    let id = sandbox.id.clone();
    sandbox.destroy().await;
    for id in [id, SandboxId::random().unwrap()] {
        assert_eq!(kind(able.checkpoints().checkpoint(&id).await), ErrorKind::NotFound);
        assert_eq!(kind(able.checkpoints().changes(&id, None, 10).await), ErrorKind::NotFound);
        assert_eq!(kind(able.checkpoints().restore(&id, checkpoint).await), ErrorKind::NotFound);
    }
}

async fn a_deadline_survives_them(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    able.engine.set_deadline(&sandbox.id, Some(seconds(3))).await.unwrap();
    let checkpoint = take(&able, &sandbox).await;
    sandbox.write("file", b"x").await;
    take(&able, &sandbox).await;
    back(&able, &sandbox, checkpoint).await;
    let (engine, id) = (&able.engine, &sandbox.id);
    super::subject::eventually("its deadline did not end it", seconds(20), || async {
        engine.usage(id).await.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    })
    .await;
}
