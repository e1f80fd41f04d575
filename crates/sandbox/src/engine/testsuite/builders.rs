//! Sandboxes that build images, and who programs are in them and in others.

use super::subject::{Subject, command, kind, path, shell, spec};
use super::{Able, suite_of_powers};
use crate::error::ErrorKind;
use crate::exec::{Account, ExecRequest};
use crate::file::WriteOptions;
use crate::id::SandboxId;
use crate::image::Image;
use crate::path::GuestPath;
use crate::spec::{Role, SandboxSpec};

suite_of_powers! { "builders", Builder:
    a_builder_is_root_and_may_change_its_image,
    a_builder_has_no_directories_of_ours,
    a_builder_runs_commands_as_somebody_else,
    a_guest_stays_who_it_is,
    what_a_builder_changed_is_kept,
}

/// Starts from an image that was saved before, because an image is all that a builder has.
async fn builder(able: &Able) -> (Subject, SandboxSpec) {
    let maker = Subject::new(able.engine.clone()).await;
    let name = format!("suite-{}", maker.id).parse().unwrap();
    able.snapshots().save(&maker.id, &name).await.unwrap();
    maker.destroy().await;
    let image = Image::Saved(name);
    let spec = SandboxSpec { image, role: Role::Builder, work_directory: Some(GuestPath::root()), ..spec() };
    (Subject::with(able.engine.clone(), spec.clone()).await, spec)
}

async fn forget(able: &Able, spec: &SandboxSpec) {
    if let Image::Saved(name) = &spec.image {
        able.snapshots().forget(&spec.owner, name).await.unwrap();
    }
}

fn id_of(account: Option<Account>) -> ExecRequest {
    let mut request = command(&["id", "-u"]);
    request.account = account;
    request
}

async fn a_builder_is_root_and_may_change_its_image(able: Able) {
    let (builder, spec) = builder(&able).await;
    assert_eq!(builder.run(&id_of(None)).await.text(), "0\n");
    builder.says("mkdir -p /opt/tool; echo made > /opt/tool/file; pwd").await;
    assert_eq!(builder.says("pwd; cat /opt/tool/file").await, "/\nmade\n");
    builder.write("/opt/tool/other", b"x").await;
    assert_eq!(builder.read("/opt/tool/other").await, b"x");
    builder.destroy().await;
    forget(&able, &spec).await;
}

async fn a_builder_has_no_directories_of_ours(able: Able) {
    let (first, spec) = builder(&able).await;
    let before = able.checkpoints().changes(&first.id, None, 10).await.unwrap();
    assert!(before.entries.is_empty(), "{before:?}");
    first.destroy().await;
    forget(&able, &spec).await;
}

async fn a_builder_runs_commands_as_somebody_else(able: Able) {
    let (builder, spec) = builder(&able).await;
    let account = Account { user: 1000, group: 1000 };
    assert_eq!(builder.run(&id_of(Some(account))).await.text(), "1000\n");
    builder.says("mkdir -p /opt/tool").await;
    let mut refused = shell("echo x > /opt/tool/file");
    refused.account = Some(account);
    assert_ne!(builder.run(&refused).await.status().exit_code(), Some(0), "it is not root any more");
    assert!(!builder.exists("/opt/tool/file").await);
    builder.destroy().await;
    forget(&able, &spec).await;
}

async fn a_guest_stays_who_it_is(able: Able) {
    let guest = Subject::new(able.engine.clone()).await;
    let user = guest.run(&id_of(None)).await.text();
    assert_ne!(user, "0\n");
    for account in [Account { user: 0, group: 0 }, Account { user: 1000, group: 1000 }] {
        let refused = kind(able.engine.start(&guest.id, &id_of(Some(account))).await);
        assert!(matches!(refused, ErrorKind::InvalidInput | ErrorKind::Denied), "{refused:?}");
    }
    let denied = kind(guest.write_with("/opt/file", b"x", WriteOptions::default()).await);
    assert!(matches!(denied, ErrorKind::Denied | ErrorKind::NotFound), "{denied:?}");
    guest.destroy().await;
}

async fn what_a_builder_changed_is_kept(able: Able) {
    let (builder, spec) = builder(&able).await;
    builder.says("mkdir -p /opt/tool; echo made > /opt/tool/file").await;
    let name = format!("suite/{}", SandboxId::random().unwrap()).parse().unwrap();
    let kept = able.trees().keep(&builder.id, &GuestPath::root(), &name).await.unwrap();
    assert!(kept.bytes >= 5, "{kept:?}");
    builder.destroy().await;
    let attachments = vec![crate::tree::Attachment { tree: name.clone(), at: path("/layer") }];
    let user = Subject::with(able.engine.clone(), SandboxSpec { attachments, ..super::subject::spec() }).await;
    assert_eq!(user.read("/layer/opt/tool/file").await, b"made\n");
    assert!(!user.exists("/layer/etc").await, "what was not changed is not in it");
    user.destroy().await;
    able.trees().drop_kept(&name).await.unwrap();
    forget(&able, &spec).await;
}
