//! What is seen of layers: which files, whose, and by whom.

use sandbox::{Checkpoints, ErrorKind, ExecStatus, Persistence};

use crate::layer::{Layer, system};
use crate::place::{Place, create, is_root};
use crate::tests;

tests!(
    a_layer_hides_what_it_removes,
    owners_are_those_of_the_image,
    a_directory_of_the_host_has_its_owners_too,
    set_id_bits_are_gone,
    sandboxes_share_layers_and_nothing_else,
    many_layers_are_one_tree,
    links_lead_within_the_image,
    a_link_in_the_place_of_etc_is_refused,
);

async fn a_layer_hides_what_it_removes(place: Place) {
    let lower = Layer::new()
        .file("srv/kept", 0o644, "below")
        .file("srv/removed", 0o644, "below")
        .file("srv/replaced", 0o644, "below")
        .file("opt/old/deep/file", 0o644, "below")
        .file("gone/file", 0o644, "below");
    let upper = Layer::new()
        .file("srv/.wh.removed", 0o644, "")
        .file("srv/replaced", 0o644, "above")
        .directory("opt/old", 0o755)
        .file("opt/old/.wh..wh..opq", 0o644, "")
        .file("opt/old/new", 0o644, "above")
        .file(".wh.gone", 0o644, "");
    place.image("layered:1", vec![system(), lower.finish(), upper.finish()], Default::default());
    let sandbox = place.sandbox("layered:1").await;
    assert_eq!(sandbox.says("cd /srv; ls; cat kept replaced; ls /opt/old").await, "kept\nreplaced\nbelowabovenew\n");
    let (_, status) = sandbox.run(&["ls", "/gone"]).await.unwrap();
    assert_ne!(status, ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn owners_are_those_of_the_image(place: Place) {
    let files = Layer::new()
        .file("srv/root", 0o600, "closed")
        .owner(1000, 1000)
        .file("srv/user", 0o600, "own")
        .directory("srv/home", 0o700)
        .owner(33, 34)
        .file("srv/web", 0o640, "closed");
    place.image("owned", vec![system(), files.finish()], Default::default());
    let sandbox = place.sandbox("owned").await;
    let owners = sandbox.says("stat -c %u:%g / /etc /bin/sh /srv/root /srv/user /srv/web").await;
    if is_root() {
        assert_eq!(owners, "0:0\n0:0\n0:0\n0:0\n1000:1000\n33:34\n");
    } else {
        assert!(owners.ends_with("65534:65534\n1000:1000\n65534:65534\n"), "{owners}");
    }
    let changes = sandbox.engine.changes(&sandbox.id, None, 10).await.unwrap();
    assert!(changes.entries.is_empty(), "what it was given is no change: {changes:?}");
    assert_eq!(
        sandbox.says("cat /srv/user; echo more >>/srv/user; cat /srv/user; touch /srv/home/x").await,
        "ownownmore\n"
    );
    for closed in ["cat /srv/root", "cat /srv/web", "echo x >/bin/sh", "touch /srv/x", "rm /srv/user"] {
        let (said, status) = sandbox.run(&["sh", "-c", closed]).await.unwrap();
        assert_ne!(status, ExecStatus::Exited(0), "{closed}: {said}");
    }
    sandbox.destroy().await;
}

async fn a_directory_of_the_host_has_its_owners_too(place: Place) {
    let root = place.path("root");
    std::fs::create_dir(&root).unwrap();
    images::extract(&system()[..], &images::Directory::open(&root).unwrap(), &images::Limits::default()).unwrap();
    let sandbox = place.sandbox(&format!("dir:{}", root.display())).await;
    let expected = if is_root() { "0:0\n" } else { "65534:65534\n" };
    assert_eq!(sandbox.says("stat -c %u:%g /bin/sh").await, expected);
    assert_eq!(sandbox.says("id -un").await, "sandbox\n");
    sandbox.destroy().await;
}

async fn set_id_bits_are_gone(place: Place) {
    let files = Layer::new().file("srv/tool", 0o6755, "x").finish();
    place.image("set-id", vec![system(), files], Default::default());
    let sandbox = place.sandbox("set-id").await;
    assert_eq!(sandbox.says("stat -c %a /srv/tool").await, "755\n");
    sandbox.destroy().await;
}

async fn sandboxes_share_layers_and_nothing_else(place: Place) {
    let files = Layer::new().owner(1000, 1000).directory("srv", 0o777).file("srv/file", 0o666, "image").finish();
    place.image("shared", vec![system(), files], Default::default());
    let engine = place.engine().await;
    let one = create(engine.clone(), "shared", Persistence::Ephemeral).await.unwrap();
    let other = create(engine, "shared", Persistence::Ephemeral).await.unwrap();
    one.says("echo one >/srv/file; echo x >/srv/new; rm /srv/file; echo again >/srv/file").await;
    assert_eq!(one.says("cat /srv/file; ls /srv").await, "again\nfile\nnew\n");
    assert_eq!(other.says("cat /srv/file; ls /srv").await, "imagefile\n");
    one.destroy().await;
    other.destroy().await;
    let next = place.sandbox("shared").await;
    assert_eq!(next.says("cat /srv/file; ls /srv").await, "imagefile\n");
    next.destroy().await;
}

async fn many_layers_are_one_tree(place: Place) {
    for count in [20, images::ImageLimits::default().layers] {
        let name = format!("many:{count}");
        let above = (1..count).map(|number| {
            let own = format!("srv/{number}");
            Layer::new().file(&own, 0o644, "x").file("srv/last", 0o644, number.to_string()).finish()
        });
        place.image(&name, [system()].into_iter().chain(above).collect(), Default::default());
        let sandbox = place.sandbox(&name).await;
        let last = count - 1;
        assert_eq!(sandbox.says("cat /srv/last; set -- /srv/*; echo :$#").await, format!("{last}:{count}\n"));
        sandbox.destroy().await;
    }
}

async fn links_lead_within_the_image(place: Place) {
    let files = Layer::new()
        .file("usr/bin/tool", 0o755, "#!/bin/sh\necho works\n")
        .link("opt", "usr/bin")
        .link("tmp", "/srv")
        .link("run", "../../srv")
        .link("home", "/etc")
        .link("srv/host", "/proc/1/root/etc/hostname");
    place.image("linked", vec![system(), files.finish()], Default::default());
    let sandbox = place.sandbox("linked").await;
    assert_eq!(sandbox.says("/opt/tool; touch /tmp/x $HOME/y; ls /srv").await, "works\nhost\n");
    let (_, status) = sandbox.run(&["cat", "/srv/host"]).await.unwrap();
    assert_ne!(status, ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn a_link_in_the_place_of_etc_is_refused(place: Place) {
    place.image("odd", vec![system(), Layer::new().link("etc", "/srv").finish()], Default::default());
    let refused = create(place.engine().await, "odd", Persistence::Ephemeral).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}
