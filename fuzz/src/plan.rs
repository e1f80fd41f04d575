//! Plans: whatever is asked for, every wall that was to be built is in the plan, and nothing else can be written to.

use std::collections::BTreeSet;
use std::path::PathBuf;

use engine_native::inside::{
    self, Controller, Directory, DirectoryOwner, Identity, Mount, Place, Request, Root, RootLayout, User, Version,
    WorkDirectory,
};
use sandbox::{ByteSize, GuestPath, Layer, Limits, Owner, Persistence, SandboxId, SandboxSpec};

use crate::bytes::Bytes;

pub const SEEDS: &[&[u8]] = &[
    b"\xff\xff\xff\x00\x00\x04work",
    b"\x00\x00\x00\x01\x01\x05/proc",
    b"\xff\x0f\x03\x02\x10\x03tmp\x40\x00\x00\x00\x00\x00\x00\x00\x00",
];

pub fn plan(data: &[u8]) {
    let mut bytes = Bytes(data);
    let chosen = bytes.number(3);
    let walls: BTreeSet<Layer> =
        Layer::ALL.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1).map(|(_, layer)| *layer).collect();
    let shape = bytes.byte();
    let Ok(work_directory) = GuestPath::resolve(&GuestPath::workspace(), &bytes.text()) else { return };
    let mut spec = SandboxSpec::new(Owner::local());
    spec.persistence = if shape & 1 == 1 { Persistence::Persistent } else { Persistence::Ephemeral };
    // The smallest that a spec may ask for, or more.
    let limits = Limits {
        cpu_millis: (bytes.number(4) as u32).max(10),
        memory: ByteSize::new(bytes.number(8).max(8 << 20)),
        processes: (bytes.number(4) as u32).max(4),
        disk: ByteSize::new(bytes.number(8).max(1 << 20)),
        inodes: bytes.number(8).max(64),
        open_files: bytes.number(8).max(16),
    };
    spec.limits = limits.check().expect("limits within bounds");
    let version = if shape & 2 == 2 { Version::V1 } else { Version::V2 };
    let places: Vec<Place> = Controller::ALL
        .iter()
        .map(|controller| Place { controller: *controller, version, parent: PathBuf::from("/groups") })
        .collect();
    let id: SandboxId = "sb-7k2m9x4bqhtw3ecd".parse().expect("a well-formed id");
    let made = work_directory.to_string_lossy().into_owned();
    let made = vec![Directory { path: made, mode: 0o755, owner: DirectoryOwner::User }];
    let root = RootLayout {
        skeleton: PathBuf::from("/skeleton"),
        lowers: (shape & 4 == 4).then(|| PathBuf::from("/image")).into_iter().collect(),
        fill: Vec::new(),
        modes: Vec::new(),
        binds: Vec::new(),
        attachments: Vec::new(),
        top: Vec::new(),
        user: User::SANDBOX,
        image_ids: None,
        belongings: None,
        search_path: String::new(),
        environment: Vec::new(),
        work_directory: WorkDirectory { path: work_directory, made },
    };
    let request = Request {
        id: &id,
        spec: &spec,
        instance: "in-7k2m9x4bqhtw3ecd",
        root: &root,
        places: &places,
        walls: &walls,
        single_id: shape & 8 == 8,
        shifts_owners: shape & 8 == 0,
        socket: PathBuf::from("/socket"),
        inheritance: None,
        held: Default::default(),
        groups: None,
    };
    let plan = inside::plan(&request);
    assert_eq!(plan, inside::plan(&request), "the same request gives another plan");

    let has = |layer: Layer| walls.contains(&layer);
    assert_eq!(plan.seccomp, has(Layer::Seccomp));
    assert_eq!(plan.no_new_privileges, has(Layer::NoNewPrivileges));
    assert_eq!(plan.drop_capabilities, has(Layer::NoCapabilities));
    assert_eq!(plan.landlock.is_some(), has(Layer::Landlock));
    assert_eq!(plan.cgroup_namespace, has(Layer::CgroupNamespace));
    assert_eq!(plan.rlimits.len() > 1, has(Layer::Rlimits));
    assert_eq!(plan.rlimits.len() % 5, usize::from(has(Layer::ProcessLimit)), "five are one layer, one is another");
    assert_eq!(plan.scratch.bytes.is_some(), has(Layer::DiskLimit));
    assert_eq!(plan.identity == Identity::Host, !has(Layer::UserNamespace));
    if has(Layer::DiskLimit) {
        assert!(plan.scratch.bytes.is_some_and(|bytes| bytes <= limits.disk.bytes()), "more disk than was allowed");
    }
    let namespaces = [
        Layer::UserNamespace,
        Layer::PidNamespace,
        Layer::MountNamespace,
        Layer::NetworkNamespace,
        Layer::IpcNamespace,
        Layer::UtsNamespace,
    ];
    assert_eq!(plan.namespaces.count_ones() as usize, namespaces.iter().filter(|layer| has(**layer)).count());
    for leaf in &plan.cgroups {
        assert!(leaf.directory.starts_with("/groups") && leaf.directory.ends_with(id.as_str()));
        assert!(leaf.directory.components().all(|part| part != std::path::Component::ParentDir));
    }
    match &plan.root {
        Root::ReadOnly { source } => assert!(*source < plan.sources.len()),
        Root::Overlay { sources } => assert!(sources.iter().all(|source| *source < plan.sources.len())),
    }
    let mut writable = BTreeSet::new();
    for mount in &plan.mounts {
        let target = match mount {
            Mount::Bind { source, target } | Mount::Tree { source, target } => {
                assert!(*source < plan.sources.len());
                target
            }
            Mount::Devices { target, nodes } => {
                assert!(nodes.iter().all(|source| *source < plan.sources.len()));
                target
            }
            Mount::Writable { target } => {
                writable.insert(target.as_str());
                target
            }
            Mount::Private { target }
            | Mount::Processes { target }
            | Mount::Hidden { target }
            | Mount::ReadOnly { target } => target,
        };
        assert!(target.starts_with('/') && !target.split('/').any(|part| part == ".."), "{target} leads elsewhere");
    }
    let shows_host = plan.sources.iter().any(|source| source.as_os_str() == "/");
    assert!(!(has(Layer::PivotedRoot) && shows_host), "the host's tree is mounted behind a pivoted root");
    let work_directory = root.work_directory.path.to_string_lossy();
    let has_directory = plan.directories.iter().any(|directory| directory.path == work_directory);
    assert!(has_directory, "nobody makes the work directory");
    match &plan.root {
        Root::ReadOnly { .. } => {
            assert!(writable.contains(&*work_directory), "the work directory cannot be written to")
        }
        Root::Overlay { .. } => assert!(writable.is_empty(), "what programs write is not all in one layer"),
    }
}
