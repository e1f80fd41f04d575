use std::path::PathBuf;

use sandbox::{ByteSize, Insistence, Layer, Limits, Owner, Persistence, SandboxSpec};

use super::*;
use crate::cgroup::{Controller, Place, Version};
use crate::ids::ImageIds;
use crate::image::{Belongings, Bind, Fill, User};
use crate::skeleton::RootLayout;

fn layout(lower: Option<&str>) -> RootLayout {
    RootLayout {
        skeleton: PathBuf::from("/state/skeletons/1"),
        lowers: lower.map(PathBuf::from).into_iter().collect(),
        fill: Vec::new(),
        modes: Vec::new(),
        binds: vec![Bind { source: PathBuf::from("/usr"), target: "/usr".parse().unwrap() }],
        attachments: Vec::new(),
        top: lower.map(|_| vec!["opt".to_owned(), "proc".to_owned()]).unwrap_or_default(),
        user: User::SANDBOX,
        image_ids: None,
        belongings: None,
        search_path: "/usr/bin".to_owned(),
        environment: Vec::new(),
        work_directory: Default::default(),
    }
}

fn make(spec: &SandboxSpec, lower: Option<&str>, without: &[Layer], single_id: bool) -> Plan {
    make_on(spec, &layout(lower), without, single_id)
}

fn make_on(spec: &SandboxSpec, root: &RootLayout, without: &[Layer], single_id: bool) -> Plan {
    let places = Controller::ALL.map(|controller| Place {
        controller,
        version: Version::V1,
        parent: PathBuf::from("/cgroup").join(format!("{controller:?}").to_lowercase()),
    });
    plan(&Request {
        id: &"sb-23456789abcdefgh".parse().unwrap(),
        spec,
        instance: "in-23456789abcdefgh",
        root,
        places: &places,
        walls: &Layer::ALL.iter().copied().filter(|layer| !without.contains(layer)).collect(),
        single_id,
        shifts_owners: true,
        socket: PathBuf::from("/run/sandpen/sockets/sb-23456789abcdefgh"),
        inheritance: None,
        held: Default::default(),
        groups: None,
    })
}

/// The whole of a usual plan. A change of it is a change of what stands around every sandbox, and must show in a review.
#[test]
fn the_usual_plan_is_the_golden_one() {
    let plan = make(&SandboxSpec::new(Owner::local()), None, &[], false);
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/plan.txt");
    let text = format!("{plan:#?}\n");
    if std::env::var_os("SANDPEN_BLESS").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(golden).unwrap_or_default();
    assert!(text == expected, "the plan differs from golden/plan.txt; run with SANDPEN_BLESS=1 and look at the change");
}

#[test]
fn root_of_a_sandbox_may_change_it_and_has_a_guests_places() {
    let spec = |role| SandboxSpec { role, ..SandboxSpec::new(Owner::local()) };
    let image_user = spec(Role::ImageUser(Insistence::Must));
    for lower in [None, Some("/images/1")] {
        let root = RootLayout { user: User { id: 0, group: 0 }, ..layout(lower) };
        let (guest, whole) = (make(&spec(Role::Guest), lower, &[], false), make_on(&image_user, &root, &[], false));
        assert_eq!((whole.rights, guest.rights), (Rights::Root, Rights::Nothing));
        assert!(matches!(whole.root, Root::Overlay { .. }), "also of the host's own tree");
        assert_eq!(whole.landlock.as_ref().unwrap().writable, ["/"]);
        assert_eq!((&whole.directories, whole.identity), (&guest.directories, guest.identity));
        assert_eq!(whole.namespaces, guest.namespaces);
        let group = |plan: &Plan| {
            let settings = plan.cgroups.iter().flat_map(|leaf| &leaf.settings);
            settings
                .filter(|setting| setting.file == "pids.max")
                .map(|setting| setting.value.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!((group(&whole), group(&guest)), (vec!["136".to_owned()], vec!["272".to_owned()]));
        let processes = |plan: &[Rlimit]| plan.iter().find(|one| one.resource == Resource::Processes).unwrap().limit;
        assert_eq!(processes(&whole.rlimits), processes(&guest.rlimits) + 8, "our own helpers are the same user");
        assert!(!whole.copies_skeleton, "a mount says whose it is");
    }
    let named = make(&image_user, Some("/images/1"), &[], false);
    assert_eq!(named, make(&spec(Role::Guest), Some("/images/1"), &[], false), "who is no root is a guest");
}

#[test]
fn every_layer_that_is_left_out_changes_the_plan() {
    let spec = SandboxSpec::new(Owner::local());
    let whole = make(&spec, None, &[], false);
    for &layer in Layer::ALL {
        // The limits are carried by controllers, which the caller leaves out with their layer.
        if matches!(layer, Layer::MemoryLimit | Layer::CpuLimit) {
            continue;
        }
        assert_ne!(make(&spec, None, &[layer], false), whole, "{layer} has no effect");
    }
}

#[test]
fn a_host_tree_is_only_ever_bound_read_only() {
    let plan = make(&SandboxSpec::new(Owner::local()), None, &[], false);
    let writable: Vec<_> = plan
        .mounts
        .iter()
        .filter_map(|mount| match mount {
            Mount::Writable { target } | Mount::Private { target } => Some(target.as_str()),
            Mount::Bind { .. }
            | Mount::Tree { .. }
            | Mount::Processes { .. }
            | Mount::Devices { .. }
            | Mount::Hidden { .. }
            | Mount::ReadOnly { .. } => None,
        })
        .collect();
    assert_eq!(writable, ["/run", "/tmp", "/home/sandbox", "/workspace"]);
}

#[test]
fn an_image_lies_below_the_skeleton() {
    let plan = make(&SandboxSpec::new(Owner::local()), Some("/images/alpine"), &[], false);
    assert_eq!(plan.root, Root::Overlay { sources: vec![0, 1] });
    assert_eq!(plan.sources[..2], [PathBuf::from("/state/skeletons/1"), PathBuf::from("/images/alpine")]);
}

/// Whatever lies on another mount would be missing in what is saved of a sandbox.
#[test]
fn all_that_programs_change_of_an_image_is_in_one_layer() {
    let plan = make(&SandboxSpec::new(Owner::local()), Some("/images/alpine"), &[], false);
    assert!(!plan.mounts.iter().any(|mount| matches!(mount, Mount::Writable { .. })), "{:?}", plan.mounts);
    let paths: Vec<&str> = plan.directories.iter().map(|directory| directory.path.as_str()).collect();
    assert_eq!(paths, ["/tmp", "/home/sandbox", "/workspace"]);
}

#[test]
fn files_in_memory_cannot_be_promised_more_than_the_memory() {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.limits = Limits { memory: ByteSize::mebibytes(100), disk: ByteSize::mebibytes(1000), ..Limits::default() };
    assert_eq!(make(&spec, None, &[], false).scratch.bytes, Some(75 << 20));
    spec.limits.disk = ByteSize::mebibytes(10);
    assert_eq!(make(&spec, None, &[], false).scratch.bytes, Some(10 << 20));
}

#[test]
fn what_is_frozen_is_taken_from_the_limits() {
    let whole = Limits::default();
    let held = Held { bytes: 100 << 20, inodes: 50_000 };
    let left = |heir| limits_left(&whole, Some(Inheritance { heir, layers: 1, holds: 0, freeze: false }), held);
    let (successor, fork) = (left(Heir::Successor), left(Heir::Fork));
    assert_eq!(successor.memory, enforced_limits(&whole).memory, "its group has been charged already");
    let memory = enforced_limits(&whole).memory.bytes() - fork.memory.bytes();
    assert_eq!(memory, (100 << 20) + 50_000 * 1024, "empty files take memory too");
    assert_eq!((successor.disk, successor.inodes), (fork.disk, fork.inodes));
    assert_eq!(fork.inodes, whole.inodes - 50_000);
}

#[test]
fn without_a_range_of_ids_there_is_only_the_users_own() {
    let spec = SandboxSpec::new(Owner::local());
    assert_eq!(make(&spec, None, &[], false).identity, Identity::OwnRange);
    assert_eq!(make(&spec, None, &[Layer::UidRange], true).identity, Identity::Single);
}

#[test]
fn a_root_whose_files_have_ids_is_seen_with_these_alone() {
    let spec = SandboxSpec::new(Owner::local());
    let ids = ImageIds { first_user: 5, first_group: 6, count: 2048 };
    let root = RootLayout { image_ids: Some(ids), ..layout(Some("/image")) };
    assert_eq!(make_on(&spec, &root, &[], false).identity, Identity::Images);
}

#[test]
fn what_belongs_to_the_user_takes_nothing_of_its_disk() {
    let layer = Fill { path: PathBuf::from("/layer"), digest: images::Digest::of(b"layer") };
    let own = Belongings { layer: layer.clone(), entries: 10, bytes: 1 << 20 };
    let root = RootLayout { belongings: Some(own.clone()), ..layout(Some("/image")) };
    let mut spec = SandboxSpec::new(Owner::local());
    spec.limits.disk = ByteSize::mebibytes(4);
    let plan = make_on(&spec, &root, &[], false);
    assert_eq!(plan.belongings, Some(layer));
    assert_eq!(plan.scratch.bytes, Some((4 << 20) + own.most_bytes()));
    assert_eq!(plan.scratch.inodes, Some(spec.limits.inodes + 10));
    // A sandbox that is too small for it is one without.
    spec.limits.disk = ByteSize::mebibytes(3);
    let plan = make_on(&spec, &root, &[], false);
    assert_eq!((plan.belongings, plan.scratch.bytes), (None, Some(3 << 20)));
}

#[test]
fn a_persistent_sandbox_listens() {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.persistence = Persistence::Persistent;
    assert!(matches!(make(&spec, None, &[], false).init, Init::Listening { idle_milliseconds: 600_000, .. }));
}
