//! Trees whose files have owners, as an ordinary user has them for builds: whose they are outside, who inside is that, and
//! that nothing of them is left. Root has no such trees.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::{Engine, ExecRequest, ExecStatus};

use crate::builder::{self, try_builder};
use crate::layer::{Layer, system};
use crate::place::{Place, is_root};
use crate::tests;

tests!(
    files_on_disk_belong_to_ids_of_images_and_carry_no_rights,
    nobody_but_a_builder_is_an_id_of_images,
    builders_share_layers_and_nothing_else,
    an_owner_that_has_no_id_is_nobody,
    what_a_crash_left_is_removed,
    a_layer_that_lies_is_refused_and_leaves_nothing,
);

/// Where they are, by layer.
fn trees(place: &Place) -> Vec<PathBuf> {
    let ids = fs::read_dir(place.path("state/images/v1/apart")).into_iter().flatten().flatten();
    let trees = ids.flat_map(|ids| fs::read_dir(ids.path()).unwrap().flatten());
    trees.map(|tree| tree.path()).filter(|path| name(path).starts_with("sha256-")).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn is_for_ordinary_users() -> bool {
    !is_root() && engine_native::can_build()
}

/// All ids outside that those inside are.
fn outside(map: &str) -> BTreeSet<u32> {
    map.lines()
        .flat_map(|line| {
            let numbers: Vec<u32> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
            numbers[1]..numbers[1] + numbers[2]
        })
        .collect()
}

fn set_id() -> Vec<u8> {
    Layer::new()
        .file("srv/tool", 0o6755, "x")
        .directory("srv/shared", 0o2775)
        .owner(5, 6)
        .file("srv/five", 0o600, "5")
        .finish()
}

async fn files_on_disk_belong_to_ids_of_images_and_carry_no_rights(place: Place) {
    if !is_for_ordinary_users() {
        return;
    }
    place.image("owned", vec![system(), set_id()], Default::default());
    assert_eq!(trees(&place), Vec::<PathBuf>::new(), "nobody has built anything");
    let sandbox = try_builder(&place, "owned", |_| {}).await.unwrap();
    let ids = outside(&sandbox.says("cat /proc/self/uid_map").await);
    let found = trees(&place);
    assert_eq!(found.len(), 2);
    let caller = rustix::process::geteuid().as_raw();
    assert!(!ids.contains(&caller) && !ids.contains(&0));
    for tree in &found {
        let mut ahead = vec![tree.join("tree")];
        while let Some(path) = ahead.pop() {
            let stat = fs::symlink_metadata(&path).unwrap();
            assert!(ids.contains(&stat.uid()), "{} belongs to {}", path.display(), stat.uid());
            assert!(stat.is_symlink() || stat.mode() & 0o6000 == 0, "{} is set-id", path.display());
            if stat.is_dir() {
                ahead.extend(fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
            }
        }
    }
    let store = fs::metadata(place.path("state/images")).unwrap();
    assert_eq!((store.uid(), store.mode() & 0o077), (caller, 0), "an id of images could go to its files");
    let five = found.iter().map(|tree| tree.join("tree/srv/five")).find(|path| path.exists()).unwrap();
    assert!(fs::read(five).is_err(), "it is the caller's after all");
    let (said, status) = sandbox.run(&["sh", "-c", "stat -c '%u:%g %a' /srv/tool /srv/five"]).await.unwrap();
    assert_eq!((&*said, status), ("0:0 755\n5:6 600\n", ExecStatus::Exited(0)));
    sandbox.destroy().await;
}

async fn nobody_but_a_builder_is_an_id_of_images(place: Place) {
    if !is_for_ordinary_users() {
        return;
    }
    place.image("plain", vec![system()], Default::default());
    let builder = try_builder(&place, "plain", |_| {}).await.unwrap();
    let images = outside(&builder.says("cat /proc/self/uid_map").await);
    let groups = outside(&builder.says("cat /proc/self/gid_map").await);
    let (mut taken, mut guests) = (BTreeSet::new(), Vec::new());
    for _ in 0..3 {
        let guest = place.sandbox("plain").await;
        let (users, own_groups) = (
            outside(&guest.says("cat /proc/self/uid_map").await),
            outside(&guest.says("cat /proc/self/gid_map").await),
        );
        assert!(images.is_disjoint(&users) && groups.is_disjoint(&own_groups), "{users:?} {own_groups:?}");
        assert!(taken.is_disjoint(&users), "two guests have an id in common");
        taken.extend(users);
        guests.push(guest);
    }
    for guest in guests {
        guest.destroy().await;
    }
    builder.destroy().await;
}

async fn builders_share_layers_and_nothing_else(place: Place) {
    if !is_for_ordinary_users() {
        return;
    }
    builder::image(&place);
    let one = try_builder(&place, "base", |_| {}).await.unwrap();
    let other = try_builder(&place, "base", |_| {}).await.unwrap();
    one.says("echo changed >/srv/web; rm -r /root; chmod 777 /etc; echo x >/etc/passwd").await;
    let request = ExecRequest::shell("sleep 30", Duration::from_secs(60)).unwrap();
    let running = one.engine.start(&one.id, &request).await.unwrap();
    let seen = "closedroot:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/sh\n755\n700\n";
    let look = "cat /srv/web /etc/passwd; stat -c %a /etc /root";
    assert_eq!(other.says(look).await, seen);
    // The same ids, and still another's processes: there is no number for them.
    other.run(&["sh", "-c", "kill -9 -1"]).await.unwrap();
    assert!(one.says("cat /proc/[0-9]*/comm").await.contains("sleep\n"), "it was killed by another");
    running.control.kill().await.unwrap();
    running.control.wait().await.unwrap();
    one.destroy().await;
    other.destroy().await;
    let next = try_builder(&place, "base", |_| {}).await.unwrap();
    assert_eq!(next.says(look).await, seen);
    next.destroy().await;
}

async fn an_owner_that_has_no_id_is_nobody(place: Place) {
    if !engine_native::can_build() {
        return;
    }
    let far =
        Layer::new().owner(100_000, 7).file("srv/user", 0o644, "x").owner(7, 2_000_000).file("srv/group", 0o644, "x");
    place.image("far", vec![system(), far.finish()], Default::default());
    let sandbox = try_builder(&place, "far", |_| {}).await.unwrap();
    assert_eq!(sandbox.says("stat -c %u:%g /srv/user /srv/group").await, "65534:7\n7:65534\n");
    sandbox.destroy().await;
}

async fn what_a_crash_left_is_removed(place: Place) {
    if !is_for_ordinary_users() {
        return;
    }
    place.image("owned", vec![system(), set_id()], Default::default());
    try_builder(&place, "owned", |_| {}).await.unwrap().destroy().await;
    let found = trees(&place);
    // As whoever dies while unpacking leaves one, and whoever dies while removing.
    let unfinished = found[0].with_file_name(format!(".unfinished-{}", name(&found[0])));
    fs::rename(&found[0], &unfinished).unwrap();
    let discarded = place.path("state/images/v1/trash").join(name(&found[1]));
    fs::rename(&found[1], &discarded).unwrap();
    assert!(fs::remove_dir_all(&unfinished).is_err(), "what follows shows nothing");
    place.store.sweep().unwrap();
    assert!(!unfinished.exists() && !discarded.exists());
    let again = try_builder(&place, "owned", |_| {}).await.unwrap();
    assert_eq!(again.says("stat -c %u /srv/five").await, "5\n");
    again.destroy().await;
    place.store.remove_name(&crate::place::reference("owned")).unwrap();
    // Its last sandbox may still be ending.
    for _ in 0..100 {
        place.store.collect().unwrap();
        if trees(&place).is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(trees(&place), Vec::<PathBuf>::new());
    assert_eq!(fs::read_dir(place.path("state/images/v1/trash")).unwrap().count(), 0);
}

/// By what the layer itself is, which is looked at again: whoever could change a blob must not get a tree from it.
async fn a_layer_that_lies_is_refused_and_leaves_nothing(place: Place) {
    if !is_for_ordinary_users() {
        return;
    }
    place.image("owned", vec![set_id()], Default::default());
    let blob = place.path("state/images/v1/blobs").join(images::Digest::of(&set_id()).to_string());
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, Layer::new().file("srv/other", 0o644, "x").finish()).unwrap();
    assert!(try_builder(&place, "owned", |_| {}).await.is_err());
    assert_eq!(trees(&place), Vec::<PathBuf>::new());
    let ids = fs::read_dir(place.path("state/images/v1/apart")).unwrap().flatten().next().unwrap();
    let left: Vec<_> = fs::read_dir(ids.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().starts_with(".lock-")), "{left:?}");
}
