//! Pull and push, with a real registry on this machine and with others that only pretend.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use images::manifest::{OCI_INDEX, OCI_MANIFEST};
use images::registry::{self, Mirror, Settings};
use images::{Digest, Error, Named, Platform, Result, Work};
use serde_json::json;

use crate::archive::{Archive, Layout, descriptor};
use crate::fake::{Answer, Fake, Shelf};
use crate::flaky::Flaky;
use crate::place::{Place, reference};
use crate::server::Registry;
use crate::tools;

pub fn settings(hosts: &[&str]) -> Settings {
    let insecure: BTreeSet<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    Settings { insecure, patience: Duration::from_secs(20), ..Settings::default() }
}

pub fn pull(place: &Place, host: &str, name: &str) -> Result<Named> {
    registry::pull(&place.store, &reference(&format!("{host}/{name}")), &settings(&[host]), &Work::default())
}

fn push(place: &Place, host: &str, name: &str) -> Result<Digest> {
    let target = reference(&format!("{host}/{name}"));
    registry::push(&place.store, &place.image(), &target, &settings(&[host]), &Work::default())
}

/// Bytes that do not compress.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn layers() -> [Vec<u8>; 3] {
    let large = noise(3 << 20);
    [
        Archive::new().directory("etc", 0o755).file("etc/one", "1").bytes(),
        Archive::new().entry(tar::EntryType::Regular, "large", "", &large, 0o644).bytes(),
        Archive::new().file("etc/.wh.one", "").file("etc/two", "2").bytes(),
    ]
}

/// A store with an image, and a registry that has it.
fn filled() -> Option<(Place, Registry)> {
    let registry = Registry::start()?;
    let place = Place::new();
    place.import(&Layout::new(&layers()).tar()).unwrap();
    push(&place, &registry.host(), "some/tool:1").unwrap();
    Some((place, registry))
}

#[track_caller]
fn assert_whole(place: &Place, named: &Named) {
    let image = place.store.resolve(&named.reference).unwrap().expect("it was pulled");
    let directories: Vec<_> = image.directories().collect();
    assert_eq!(directories.len(), 3);
    assert_eq!(fs::read_to_string(directories[0].join("etc/one")).unwrap(), "1");
    assert_eq!(fs::read(directories[1].join("large")).unwrap(), noise(3 << 20));
    assert_eq!(fs::read_to_string(directories[2].join("etc/two")).unwrap(), "2");
}

#[test]
fn what_was_pushed_is_pulled() {
    let Some((origin, registry)) = filled() else { return };
    let place = Place::new();
    let named = pull(&place, &registry.host(), "some/tool:1").unwrap();
    assert_whole(&place, &named);
    assert_eq!(named.manifest, origin.image().named.manifest);
    let again = pull(&place, &registry.host(), "some/tool:1").unwrap();
    assert_eq!(again.manifest, named.manifest);
    let digest = named.manifest.digest.qualified();
    let by_digest = pull(&place, &registry.host(), &format!("some/tool@{digest}")).unwrap();
    assert_eq!(by_digest.manifest, named.manifest);
    push(&origin, &registry.host(), "some/tool:1").expect("what is there is pushed again");
}

#[test]
fn what_is_not_there_is_said_to_be_not_there() {
    let Some((_origin, registry)) = filled() else { return };
    for name in ["some/tool:2", "other:1", &format!("some/tool@{}", Digest::of(b"x").qualified())] {
        let place = Place::new();
        let missing = pull(&place, &registry.host(), name);
        assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
        place.assert_nothing_came();
    }
}

#[test]
fn skopeo_and_ours_give_each_other_images() {
    let (Some(_), Some((origin, registry))) = (tools::skopeo(), filled()) else { return };
    let there = format!("docker://{}/some/tool:1", registry.host());
    let text = tools::run(tools::skopeo().unwrap().args(["inspect", "--tls-verify=false", &there]));
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["Digest"], origin.image().named.manifest.digest.qualified());

    // As an old client would have it: Docker's own kinds, compressed by gzip.
    let other = format!("docker://{}/some/tool:docker", registry.host());
    let options = ["copy", "--quiet", "--src-tls-verify=false", "--dest-tls-verify=false"];
    let form = ["--format", "v2s2", "--dest-compress-format", "gzip", "--dest-compress"];
    tools::run(tools::skopeo().unwrap().args(options).args(form).args([&there, &other]));
    let place = Place::new();
    let named = pull(&place, &registry.host(), "some/tool:docker").unwrap();
    assert_eq!(named.manifest.media_type, images::manifest::DOCKER_MANIFEST);
    assert_whole(&place, &named);
}

/// Any byte may be the last one of a connection.
#[test]
fn a_pull_goes_on_when_connections_break() {
    let Some((_origin, registry)) = filled() else { return };
    let random = |_| {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).unwrap();
        u64::from(u32::from_le_bytes(bytes) % 700_000)
    };
    let flaky = Flaky::start(registry.port, random);
    let place = Place::new();
    // So many broken connections without a byte in a row are one in a million; asking for manifests is not repeated.
    let named = (0..20).find_map(|_| match pull(&place, &flaky.host(), "some/tool:1") {
        Ok(named) => Some(named),
        Err(Error::Unavailable(_)) => {
            assert!(place.store.names().unwrap().is_empty());
            None
        }
        Err(error) => panic!("{error:?}"),
    });
    assert_whole(&place, &named.expect("twenty pulls, each going on where the last one was"));
    assert!(flaky.cuts() > 2, "the control: connections did break");
    assert!(flaky.carried() < 2 * (3 << 20), "what had come was not fetched again");
}

#[test]
fn a_pull_that_cannot_go_on_fails_clean_and_the_next_one_does() {
    let Some((_origin, registry)) = filled() else { return };
    let broken = Flaky::start(registry.port, |number| if number < 2 { 1_000_000 } else { 0 });
    let place = Place::new();
    let failed = pull(&place, &broken.host(), "some/tool:1");
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    assert!(place.store.names().unwrap().is_empty());
    let whole = Flaky::start(registry.port, |_| u64::MAX);
    let named = pull(&place, &whole.host(), "some/tool:1").unwrap();
    assert_whole(&place, &named);
    assert!(whole.carried() < 3 << 20, "what the first one fetched was not fetched again");
}

#[test]
fn two_pulls_of_one_image_share_the_work() {
    let Some((_origin, registry)) = filled() else { return };
    let counted = Flaky::start(registry.port, |_| u64::MAX);
    let place = Place::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_whole(&place, &pull(&place, &counted.host(), "some/tool:1").unwrap()));
        }
    });
    assert!(counted.carried() < 2 * (3 << 20), "each layer came once");
}

#[test]
fn a_pull_that_is_given_up_ends_and_leaves_nothing() {
    let Some((_origin, registry)) = filled() else { return };
    // A way on which nothing comes any more after the first half.
    let stuck = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("127.0.0.1:{}", stuck.local_addr().unwrap().port());
    let place = Place::new();
    let work = Work::default();
    let cancel = work.cancel.clone();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        cancel.cancel();
    });
    let patient = Settings { patience: Duration::from_secs(600), ..settings(&[&host]) };
    let ended = registry::pull(&place.store, &reference(&format!("{host}/some/tool:1")), &patient, &work);
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    canceller.join().unwrap();
    place.assert_nothing_came();
    drop(registry);
}

#[test]
fn a_registry_is_spoken_to_in_the_clear_only_if_it_is_named() {
    let Some((_origin, registry)) = filled() else { return };
    let place = Place::new();
    let name = reference(&format!("{}/some/tool:1", registry.host()));
    let refused = registry::pull(&place.store, &name, &settings(&["127.0.0.1:1"]), &Work::default());
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    place.assert_nothing_came();
    registry::pull(&place.store, &name, &settings(&["127.0.0.1"]), &Work::default()).expect("the control");
}

#[test]
fn a_mirror_is_asked_first_and_may_fail() {
    let Some((_origin, registry)) = filled() else { return };
    let useless = Fake::start(|_| Answer::new(404, ""));
    let host = registry.host();
    let mirrors = |hosts: &[&str]| -> Vec<Mirror> {
        hosts.iter().map(|host| Mirror { of: "registry.example".to_owned(), host: (*host).to_owned() }).collect()
    };
    let place = Place::new();
    let with_mirrors = Settings { mirrors: mirrors(&[&useless.host(), &host]), ..settings(&[&host, &useless.host()]) };
    let name = reference("registry.example/some/tool:1");
    let named = registry::pull(&place.store, &name, &with_mirrors, &Work::default()).unwrap();
    assert_whole(&place, &named);
    assert_eq!(named.reference, name, "the mirror has no part in the name");
    assert!(!useless.asked().is_empty());
}

#[test]
fn names_of_our_own_are_asked_for_nowhere() {
    let fake = Fake::start(|_| Answer::new(404, ""));
    let place = Place::new();
    place.import(&one_layer().tar()).unwrap();
    let pull_of = |host: &str| {
        let mirrors = vec![Mirror { of: host.to_owned(), host: fake.host() }];
        let settings = Settings { mirrors, ..settings(&[&fake.host(), "127.0.0.1:1"]) };
        registry::pull(&place.store, &reference(&format!("{host}/some/tool:1")), &settings, &Work::default())
    };
    for host in ["saved.sandpen.invalid", "trees.sandpen.invalid"] {
        let pulled = pull_of(host);
        assert!(matches!(pulled, Err(Error::Invalid(_))), "{pulled:?}");
        let pushed = push(&place, host, "some/tool:1");
        assert!(matches!(pushed, Err(Error::Invalid(_))), "{pushed:?}");
    }
    assert!(fake.asked().is_empty());
    pull_of("127.0.0.1:1").unwrap_err();
    assert!(!fake.asked().is_empty(), "the control");
}

fn one_layer() -> Layout {
    Layout::new(&[Archive::new().file("file", "contents").bytes()])
}

#[test]
fn the_image_for_this_machine_is_chosen_from_a_list() {
    let mut shelf = Shelf::new("tool", "unused", one_layer());
    let (digest, (_, manifest)) = shelf.documents.iter().find(|(name, _)| name.starts_with("sha256:")).unwrap();
    let mut mine = descriptor(OCI_MANIFEST, Digest::parse_qualified(digest).unwrap(), manifest.len());
    let machine = Platform::host();
    mine["platform"] = json!({"os": "linux", "architecture": machine.architecture});
    let mut other = descriptor(OCI_MANIFEST, Digest::of(b"other"), 5);
    other["platform"] = json!({"os": "linux", "architecture": "pdp11"});
    let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [other, mine]}).to_string().into_bytes();
    let digest = Digest::of(&list);
    shelf.documents.insert("1".to_owned(), (OCI_INDEX.to_owned(), list.clone()));
    shelf.documents.insert(digest.qualified(), (OCI_INDEX.to_owned(), list));
    let fake = Fake::start(move |asked| shelf.answer(asked));
    let place = Place::new();
    let named = pull(&place, &fake.host(), "tool:1").unwrap();
    assert_eq!(named.index, Some(digest));
    let by_digest = reference(&format!("{}/tool@{}", fake.host(), digest.qualified()));
    assert!(place.store.resolve(&by_digest).unwrap().is_some(), "the digest of the list means it too");
    let work = Work { platform: Platform { architecture: "vax".to_owned(), ..machine }, ..Work::default() };
    let none =
        registry::pull(&place.store, &reference(&format!("{}/tool:1", fake.host())), &settings(&[&fake.host()]), &work);
    assert!(matches!(&none, Err(Error::NotFound(why)) if why.contains("pdp11")), "{none:?}");
}

/// A registry is not trusted to send what was asked for.
#[test]
fn a_registry_that_lies_is_refused() {
    type Lie = fn(&mut Shelf);
    let lies: [(&str, Lie); 6] = [
        ("other contents of a layer", |shelf| {
            shelf.blobs.values_mut().for_each(|bytes| *bytes.last_mut().unwrap() ^= 1)
        }),
        ("a longer layer", |shelf| shelf.blobs.values_mut().for_each(|bytes| bytes.push(0))),
        ("a shorter layer", |shelf| shelf.blobs.values_mut().for_each(|bytes| bytes.truncate(bytes.len() - 1))),
        ("another kind", |shelf| shelf.documents.values_mut().for_each(|(kind, _)| *kind = OCI_INDEX.to_owned())),
        ("no manifest", |shelf| shelf.documents.values_mut().for_each(|(_, bytes)| *bytes = b"<html>".to_vec())),
        ("a long manifest", |shelf| {
            shelf.documents.values_mut().for_each(|(_, bytes)| bytes.extend(vec![b' '; 5 << 20]))
        }),
    ];
    for (lie, tell) in lies {
        let mut shelf = Shelf::new("tool", "1", one_layer());
        tell(&mut shelf);
        let fake = Fake::start(move |asked| shelf.answer(asked));
        let place = Place::new();
        let pulled = pull(&place, &fake.host(), "tool:1");
        assert!(matches!(pulled, Err(Error::Refused(_) | Error::LimitExceeded(_))), "{lie}: {pulled:?}");
        place.assert_nothing_came();
    }
    let mut shelf = Shelf::new("tool", "1", one_layer());
    let wrong = Digest::of(b"wrong").qualified();
    let manifest = shelf.documents["1"].clone();
    shelf.documents.insert(wrong.clone(), manifest);
    let fake = Fake::start(move |asked| shelf.answer(asked));
    let place = Place::new();
    pull(&place, &fake.host(), "tool:1").expect("the control: without a lie it is taken");
    let pulled = pull(&Place::new(), &fake.host(), &format!("tool@{wrong}"));
    assert!(matches!(pulled, Err(Error::Refused(_))), "a wrong manifest: {pulled:?}");
}

#[test]
fn a_registry_that_goes_in_circles_is_left() {
    let fake = Fake::start(|asked| Answer::new(307, "").with("Location", asked.path.clone()));
    let pulled = pull(&Place::new(), &fake.host(), "tool:1");
    assert!(matches!(pulled, Err(Error::Unavailable(_))), "{pulled:?}");
    assert!(fake.asked().len() < 10);
}

#[test]
fn the_words_of_a_registry_are_passed_on_and_bounded() {
    let message = "x".repeat(10_000);
    let body = json!({"errors": [{"code": "DENIED", "message": message}]}).to_string();
    let fake = Fake::start(move |_| Answer::new(500, body.clone()));
    let Err(Error::Unavailable(why)) = pull(&Place::new(), &fake.host(), "tool:1") else { panic!("it was taken") };
    assert!(why.contains("xxx") && why.len() < 500, "{why}");
}
