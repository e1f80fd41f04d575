//! Sandboxes from sandboxes.

use super::subject::{Subject, finish, is_listed, kind, path, seconds, spec};
use super::{Able, suite_of_powers};
use crate::error::ErrorKind;
use crate::exec::{ExecRequest, ExecStatus};
use crate::id::{Owner, SandboxId};
use crate::spec::SandboxSpec;

suite_of_powers! { "forks", Snapshots:
    a_fork_has_all_files,
    neither_sees_what_the_other_writes_later,
    each_has_rights_over_what_both_had,
    a_fork_outlives_what_it_was_forked_from,
    a_fork_can_be_forked,
    a_sandbox_can_be_forked_many_times,
    a_fork_while_a_command_runs_has_its_files_and_no_command,
    a_fork_is_what_its_own_spec_says,
    a_fork_works_where_its_source_does,
    a_fork_can_be_saved,
    one_that_is_gone_is_not_forked,
    a_fork_onto_one_that_exists_is_refused,
}

async fn fork(able: &Able, source: &Subject) -> Subject {
    fork_as(able, source, &spec()).await
}

async fn fork_as(able: &Able, source: &Subject, spec: &SandboxSpec) -> Subject {
    let id = SandboxId::random().unwrap();
    able.snapshots().fork(&source.id, &id, spec).await.unwrap();
    let files = able.engine.files(&id);
    Subject { engine: able.engine.clone(), id, files }
}

async fn a_fork_has_all_files(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.write("data/numbers", b"1 2 3").await;
    source.says("ln -s data/numbers link; mkdir empty; echo t > /tmp/t; echo x > gone; rm gone").await;
    let branch = fork(&able, &source).await;
    assert_eq!(branch.tree("/workspace").await, source.tree("/workspace").await);
    assert_eq!(branch.says("cat link /tmp/t").await, "1 2 3t\n");
    assert!(is_listed(&able.engine, &branch.id).await);
    branch.destroy().await;
    assert_eq!(source.says("cat link").await, "1 2 3", "the end of a branch is not that of the other");
    source.destroy().await;
}

async fn neither_sees_what_the_other_writes_later(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.write("file", b"before").await;
    source.write("doomed/file", b"before").await;
    let branch = fork(&able, &source).await;
    source.write("file", b"of the source").await;
    source.says("rm -r doomed; echo s > source").await;
    assert_eq!(branch.read("file").await, b"before");
    assert_eq!(branch.read("doomed/file").await, b"before");
    branch.says("echo b >> file; echo b > branch").await;
    assert_eq!(branch.read("file").await, b"beforeb\n");
    assert_eq!(source.read("file").await, b"of the source");
    assert_eq!(source.tree("/workspace").await, ["/workspace/file", "/workspace/source"]);
    assert!(!branch.exists("source").await);
    source.destroy().await;
    branch.destroy().await;
}

async fn each_has_rights_over_what_both_had(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.says("mkdir -p a/b; echo 1 > a/b/file; echo 1 > other").await;
    let branch = fork(&able, &source).await;
    for sandbox in [&source, &branch] {
        sandbox.says("echo 2 >> a/b/file; rm other; mkdir a/c; touch a/b/new").await;
        sandbox.files.rename(&path("a/b/new"), &path("a/c/moved")).await.unwrap();
        assert_eq!(sandbox.says("cat a/b/file").await, "1\n2\n");
        sandbox.files.remove(&path("a")).await.unwrap();
        assert!(sandbox.tree("/workspace").await.is_empty());
    }
    source.destroy().await;
    branch.destroy().await;
}

async fn a_fork_outlives_what_it_was_forked_from(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.write("file", b"kept").await;
    let branch = fork(&able, &source).await;
    source.destroy().await;
    assert_eq!(branch.says("cat file; echo more >> file; cat file").await, "keptkeptmore\n");
    branch.destroy().await;
}

async fn a_fork_can_be_forked(able: Able) {
    let first = Subject::new(able.engine.clone()).await;
    first.write("one", b"1").await;
    let second = fork(&able, &first).await;
    second.write("two", b"2").await;
    let third = fork(&able, &second).await;
    third.write("three", b"3").await;
    assert_eq!(third.says("cat one two three").await, "123");
    assert_eq!(second.tree("/workspace").await, ["/workspace/one", "/workspace/two"]);
    assert_eq!(first.tree("/workspace").await, ["/workspace/one"]);
    second.destroy().await;
    assert_eq!(third.says("cat two").await, "2");
    first.destroy().await;
    third.destroy().await;
}

async fn a_sandbox_can_be_forked_many_times(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.write("shared", b"shared").await;
    let mut branches = Vec::new();
    for number in 0..8 {
        source.write("number", number.to_string().as_bytes()).await;
        branches.push(fork(&able, &source).await);
    }
    for (number, branch) in branches.into_iter().enumerate() {
        assert_eq!(branch.says("cat number shared").await, format!("{number}shared"));
        branch.destroy().await;
    }
    source.destroy().await;
}

async fn a_fork_while_a_command_runs_has_its_files_and_no_command(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.write("file", b"x").await;
    let waiting = source.start(&ExecRequest::shell("cat; cat file", seconds(50)).unwrap()).await;
    let branch = fork(&able, &source).await;
    assert_eq!(branch.says("cat file").await, "x");
    branch.write("file", b"of the branch").await;
    let ended = finish(waiting).await;
    assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::Exited(0), "x"));
    source.destroy().await;
    branch.destroy().await;
}

async fn a_fork_is_what_its_own_spec_says(able: Able) {
    let mut first = spec();
    first.environment.insert("WHICH", "source").unwrap();
    let source = Subject::with(able.engine.clone(), first).await;
    source.says("mkdir /tmp/here").await;
    let mut second = SandboxSpec { owner: "suite-other".parse::<Owner>().unwrap(), ..spec() };
    second.environment.insert("WHICH", "branch").unwrap();
    second.work_directory = Some("/tmp/here".parse().unwrap());
    second.limits.processes = 77;
    let branch = fork_as(&able, &source, &second).await;
    assert_eq!(branch.says("printenv WHICH; pwd").await, "branch\n/tmp/here\n");
    assert_eq!(able.engine.isolation(&branch.id).await.unwrap().limits.processes, 77);
    let listed = able.engine.list().await.unwrap();
    let owner = listed.iter().find(|sandbox| sandbox.id == branch.id).map(|sandbox| sandbox.owner.as_str().to_owned());
    assert_eq!(owner.as_deref(), Some("suite-other"));
    assert_eq!(source.says("printenv WHICH").await, "source\n");
    source.destroy().await;
    branch.destroy().await;
}

async fn a_fork_works_where_its_source_does(able: Able) {
    let here = SandboxSpec { work_directory: Some("/srv/here".parse().unwrap()), ..spec() };
    let source = Subject::with(able.engine.clone(), here).await;
    source.says("echo 1 > one").await;
    let branch = fork(&able, &source).await;
    assert_eq!(branch.says("cat one; echo 2 > two; pwd").await, "1\n/srv/here\n");
    assert_eq!(source.tree("/srv/here").await, ["/srv/here/one"]);
    source.destroy().await;
    branch.destroy().await;
}

async fn a_fork_can_be_saved(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.write("one", b"1").await;
    let branch = fork(&able, &source).await;
    source.destroy().await;
    branch.write("two", b"2").await;
    let name = format!("suite-{}", branch.id).parse().unwrap();
    able.snapshots().save(&branch.id, &name).await.unwrap();
    branch.destroy().await;
    let image = crate::image::Image::Saved(name.clone());
    let again = Subject::with(able.engine.clone(), SandboxSpec { image, ..spec() }).await;
    assert_eq!(again.says("cat one two").await, "12");
    again.destroy().await;
    assert!(able.snapshots().forget(&Owner::local(), &name).await.unwrap());
}

async fn one_that_is_gone_is_not_forked(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    let id = source.id.clone();
    source.destroy().await;
    let new = SandboxId::random().unwrap();
    assert_eq!(kind(able.snapshots().fork(&id, &new, &spec()).await), ErrorKind::NotFound);
    assert!(!is_listed(&able.engine, &new).await);
}

async fn a_fork_onto_one_that_exists_is_refused(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    let other = Subject::new(able.engine.clone()).await;
    source.write("file", b"source").await;
    other.write("file", b"other").await;
    for id in [&other.id, &source.id] {
        assert_eq!(kind(able.snapshots().fork(&source.id, id, &spec()).await), ErrorKind::AlreadyExists);
    }
    assert_eq!(other.read("file").await, b"other");
    assert_eq!(source.read("file").await, b"source");
    source.destroy().await;
    other.destroy().await;
}
