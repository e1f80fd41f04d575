//! Links, FIFOs and other traps that code in a sandbox may lay for whoever reads its files.

use std::sync::Arc;
use std::time::Instant;

use super::subject::{Subject, kind, path, seconds};
use super::suite;
use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::file::{FileKind, WriteOptions};

suite! { "links", Nothing:
    links_are_followed_inside,
    absolute_links_start_at_the_sandboxs_root,
    links_that_go_up_end_at_the_sandboxs_root,
    a_dangling_link_leads_nowhere,
    a_loop_of_links_ends,
    a_stat_shows_the_link,
    writing_through_a_link_stays_inside,
    removing_a_link_leaves_its_target,
    removing_a_directory_follows_no_link,
    renaming_moves_the_link,
    a_fifo_is_refused_at_once,
}

async fn links_are_followed_inside(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("real/file", b"content").await;
    sandbox.says("ln -s real/file link; ln -s real linked; ln -s ../linked/file real/round").await;
    for place in ["link", "linked/file", "real/round", "linked/round"] {
        assert_eq!(sandbox.read(place).await, b"content", "{place}");
    }
    sandbox.destroy().await;
}

async fn absolute_links_start_at_the_sandboxs_root(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("file", b"content").await;
    sandbox.says("ln -s /workspace/file link; ln -s / root; ln -s /etc/passwd users").await;
    assert_eq!(sandbox.read("link").await, b"content");
    assert_eq!(sandbox.read("root/workspace/file").await, b"content");
    assert_eq!(sandbox.read("users").await, sandbox.says("cat /etc/passwd").await.into_bytes());
    sandbox.destroy().await;
}

async fn links_that_go_up_end_at_the_sandboxs_root(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("file", b"content").await;
    sandbox.says("ln -s ../../../../../../workspace/file up; ln -s ../../../../../../../etc/passwd users").await;
    assert_eq!(sandbox.read("up").await, b"content");
    assert_eq!(sandbox.read("users").await, sandbox.says("cat /etc/passwd").await.into_bytes());
    sandbox.destroy().await;
}

async fn a_dangling_link_leads_nowhere(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.says("ln -s /nowhere/at/all dangling").await;
    assert_eq!(kind(sandbox.try_read("dangling").await), ErrorKind::NotFound);
    assert_eq!(sandbox.files.stat(&path("dangling")).await.unwrap().kind, FileKind::Link);
    sandbox.destroy().await;
}

async fn a_loop_of_links_ends(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.says("ln -s b a; ln -s a b; ln -s self self").await;
    for place in ["a", "self", "self/below"] {
        assert_eq!(kind(sandbox.try_read(place).await), ErrorKind::InvalidInput, "{place}");
    }
    let refused = kind(sandbox.write_with("self/below", b"x", WriteOptions::default()).await);
    assert!(matches!(refused, ErrorKind::InvalidInput | ErrorKind::AlreadyExists), "{refused:?}");
    assert_eq!(sandbox.tree("/workspace").await.len(), 3, "a listing does not go round");
    sandbox.destroy().await;
}

async fn a_stat_shows_the_link(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("real/file", b"content").await;
    sandbox.says("ln -s real linked").await;
    assert_eq!(sandbox.files.stat(&path("linked")).await.unwrap().kind, FileKind::Link);
    assert_eq!(sandbox.files.stat(&path("linked/file")).await.unwrap().kind, FileKind::Regular);
    assert_eq!(
        sandbox.tree("/workspace").await,
        ["linked", "real", "real/file"].map(|name| format!("/workspace/{name}"))
    );
    sandbox.destroy().await;
}

async fn writing_through_a_link_stays_inside(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.says("mkdir real; ln -s real linked; echo old > file; ln -s file link; ln -s /etc escape").await;
    sandbox.write("linked/new", b"1").await;
    assert_eq!(sandbox.read("real/new").await, b"1");
    sandbox.write("link", b"2").await;
    assert_eq!(sandbox.read("link").await, b"2");
    let refused = kind(sandbox.write_with("escape/new", b"x", WriteOptions::default()).await);
    assert_eq!(refused, ErrorKind::Denied, "behind the link is the image");
    sandbox.destroy().await;
}

async fn removing_a_link_leaves_its_target(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("real/file", b"content").await;
    sandbox.says("ln -s real linked; ln -s real/file link; ln -s /nowhere dangling").await;
    for name in ["linked", "link", "dangling"] {
        sandbox.files.remove(&path(name)).await.unwrap();
    }
    assert_eq!(sandbox.tree("/workspace").await, ["/workspace/real", "/workspace/real/file"]);
    sandbox.destroy().await;
}

async fn removing_a_directory_follows_no_link(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("kept/file", b"content").await;
    sandbox.write("doomed/file", b"x").await;
    sandbox.says("ln -s ../kept doomed/relative; ln -s /workspace/kept doomed/absolute; ln -s / doomed/root").await;
    sandbox.files.remove(&path("doomed")).await.unwrap();
    assert_eq!(sandbox.tree("/workspace").await, ["/workspace/kept", "/workspace/kept/file"]);
    sandbox.destroy().await;
}

async fn renaming_moves_the_link(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("file", b"content").await;
    sandbox.says("ln -s file link").await;
    sandbox.files.rename(&path("link"), &path("moved")).await.unwrap();
    assert_eq!(sandbox.files.stat(&path("moved")).await.unwrap().kind, FileKind::Link);
    assert_eq!(sandbox.files.stat(&path("file")).await.unwrap().kind, FileKind::Regular);
    sandbox.destroy().await;
}

async fn a_fifo_is_refused_at_once(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.says("mkfifo fifo; ln -s fifo link").await;
    let started = Instant::now();
    for place in ["fifo", "link"] {
        assert_eq!(kind(sandbox.try_read(place).await), ErrorKind::InvalidInput, "{place}");
    }
    let refused = sandbox.write_with("fifo", b"x", WriteOptions::default()).await;
    // To put a regular file in its place is as good as to refuse: nobody waits for a reader.
    assert!(refused.is_ok() || kind(refused) == ErrorKind::InvalidInput);
    assert!(started.elapsed() < seconds(3), "somebody waited for the other end");
    sandbox.destroy().await;
}
