use sandbox::Persistence;

use super::*;
use crate::client::DaemonFacts;
use crate::record::User;
use crate::record::tests::description;

const MAKER: Maker<'static> = Maker { installation: "0123456789abcdef", instance: "in-23456789abcdefgh" };

fn translated(flavour: Flavour, description: &Description, volumes: &[String], runtime: Option<&str>) -> String {
    let kernel = Kernel::of(runtime, &DaemonFacts::default());
    let hosts = (flavour == Flavour::Podman).then_some("/volumes/sandpen-agent-hash/_data/hosts");
    let wanted = Wanted {
        flavour,
        maker: MAKER,
        description,
        agent_volume: "sandpen-agent-hash",
        hosts,
        volumes,
        runtime,
        has_ipv6: true,
        processors: 2,
        kernel,
    };
    // By way of a value, whose keys can be put in order.
    let mut value = serde_json::to_value(container(&wanted)).unwrap();
    value.sort_all_objects();
    format!("{}\n", serde_json::to_string_pretty(&value).unwrap())
}

/// `SANDPEN_WRITE_GOLDEN=1` writes what is now said, for a person to look at.
fn check(name: &str, said: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("SANDPEN_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, said).unwrap();
    }
    assert_eq!(said, std::fs::read_to_string(&path).unwrap(), "{name}");
}

fn plain() -> Description {
    Description { name: None, persistence: Persistence::Ephemeral, ..description() }
}

#[test]
fn containers_are_what_the_golden_files_say() {
    check("docker.json", &translated(Flavour::Docker, &plain(), &[], None));
    check("podman.json", &translated(Flavour::Podman, &plain(), &[], None));
    let with_network = Description { network: "api.example.com:443".parse().unwrap(), ..plain() };
    check("docker-network.json", &translated(Flavour::Docker, &with_network, &[], None));
    check("podman-network.json", &translated(Flavour::Podman, &with_network, &[], None));
    let root =
        Description { user: User { id: 0, group: 0 }, storage: Storage::Layer, places: Vec::new(), ..description() };
    check("docker-root.json", &translated(Flavour::Docker, &root, &[], None));
    check("podman-root.json", &translated(Flavour::Podman, &root, &[], None));
    let mut odd = description();
    odd.work_directory = "/app/data".parse().unwrap();
    odd.places = vec!["/home/sandbox".parse().unwrap(), "/app/data".parse().unwrap()];
    odd.user = User { id: 33, group: 34 };
    odd.limits.memory = ByteSize::mebibytes(64);
    odd.limits = enforced_limits(&odd.limits);
    let volumes = ["/var/lib/data".to_owned(), "/tmp".to_owned()];
    check("docker-odd.json", &translated(Flavour::Docker, &odd, &volumes, Some("runsc")));
}

#[test]
fn what_newer_daemons_hide_of_each_processor_is_hidden_by_us() {
    for flavour in [Flavour::Docker, Flavour::Podman] {
        let told = translated(flavour, &plain(), &[], None);
        let is_hidden = |number: u32| told.contains(&format!("/sys/devices/system/cpu/cpu{number}/thermal_throttle"));
        assert_eq!([0, 1, 2].map(is_hidden), [true, true, false], "{told}");
    }
}

#[test]
fn a_disk_is_never_larger_than_the_memory_it_is_in() {
    let limits = Limits { memory: ByteSize::mebibytes(64), disk: ByteSize::mebibytes(1024), ..Limits::default() };
    assert_eq!(enforced_limits(&limits).disk, ByteSize::mebibytes(48));
    let small = Limits { disk: ByteSize::mebibytes(8), ..limits };
    assert_eq!(enforced_limits(&small).disk, ByteSize::mebibytes(8));
}

#[test]
fn work_directories_that_cannot_be_mounts_are_none() {
    for (place, is_own) in
        [("/", false), ("/proc/self", false), ("/dev", false), ("/.sandpen/x", false), ("/device", true), ("/a", true)]
    {
        assert_eq!(is_own_directory(&place.parse().unwrap()), is_own, "{place}");
    }
}

#[test]
fn volumes_of_images_are_places_or_refused() {
    for (text, place) in [
        ("/var/lib/x/", "/var/lib/x"),
        ("/a/../data", "/data"),
        ("/../data//./x/y/..", "/data/x"),
        ("/run", "/run"),
        ("/tmp", "/tmp"),
    ] {
        assert_eq!(place_of(text).unwrap(), place, "{text}");
    }
    let long = format!("/{}", "x".repeat(300));
    for text in
        ["", "relative", "../data", "/", "/a/..", "/run/x", "/a/../run/x", "/dev/x", "/proc/x", "/.sandpen", &long]
    {
        assert_eq!(place_of(text).unwrap_err().kind(), sandbox::ErrorKind::InvalidInput, "{text}");
    }
}
