//! The forms in which images come as files.

use std::fs;

use images::import::{self, Request};
use images::{Digest, Error, Work};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;
use tar::EntryType;

use crate::archive::{Archive, Layout, gzip, hex};
use crate::place::{Place, reference};

fn contents(place: &Place) -> String {
    let image = place.image();
    fs::read_to_string(image.directories().last().unwrap().join("file")).unwrap()
}

fn layer() -> Vec<u8> {
    Archive::new().directory("./", 0o755).file("./file", "contents").bytes()
}

#[test]
fn root_trees_plain_and_compressed() {
    for bytes in [layer(), gzip(&layer()), compress_to_vec(&layer()[..], CompressionLevel::Fastest)] {
        let place = Place::new();
        place.import(&bytes).unwrap();
        assert_eq!(contents(&place), "contents");
        let image = place.image();
        assert_eq!(image.layers[0].diff_id, Digest::of(&layer()));
        assert_eq!(image.config.platform, images::Platform::host());
    }
}

/// A tree may have files that are called like those of a saved image.
#[test]
fn a_root_tree_with_a_manifest_is_a_root_tree() {
    let place = Place::new();
    let layer = Archive::new().file("file", "contents").file("manifest.json", "[]").file("index.json", "{}").bytes();
    place.import(&layer).unwrap();
    assert_eq!(contents(&place), "contents");
}

#[test]
fn layouts_as_archive_and_directory() {
    for layout in [Layout::new(&[layer()]), Layout::gzipped(&layer())] {
        let place = Place::new();
        place.import(&gzip(&layout.tar())).unwrap();
        assert_eq!(contents(&place), "contents");
    }
    let place = Place::new();
    place.import(&Layout::gzipped(&layer()).tar()).unwrap();
    assert_eq!(contents(&place), "contents");
    let place = Place::new();
    Layout::new(&[layer()]).write_to(&place.top.path().join("offered"));
    place.import_path(&place.top.path().join("offered"), images::ImageLimits::default()).unwrap();
    assert_eq!(contents(&place), "contents");
}

/// As `docker save` wrote it until 2023, the second layer as a link to the first, and with a name.
fn saved(names: &[&str]) -> Vec<u8> {
    let layer = layer();
    let mut layout = Layout::new(&[layer.clone(), layer.clone()]);
    layout.config["config"] = json!({"Env": ["A=b"], "Cmd": ["sh"], "User": "1000"});
    let config = layout.config.to_string();
    let (one, two) = ("1".repeat(64), "2".repeat(64));
    let config_name = format!("{}.json", hex(Digest::of(config.as_bytes())));
    let entries: Vec<_> = names
        .iter()
        .map(|name| json!({"Config": config_name, "RepoTags": [name], "Layers": [format!("{one}/layer.tar"), format!("{two}/layer.tar")]}))
        .collect();
    let layer_name = format!("{one}/layer.tar");
    let archive = Archive::new().directory(&one, 0o755).file(&format!("{one}/VERSION"), "1.0").entry(
        EntryType::Regular,
        &layer_name,
        "",
        &layer,
        0o644,
    );
    // The name of the link does not fit the old header together with its target, so it is as long as it may be.
    archive
        .symlink(&format!("{two}/layer.tar"), &format!("../{one}/layer.tar"))
        .file(&config_name, &config)
        .file("manifest.json", &json!(entries).to_string())
        .bytes()
}

#[test]
fn what_docker_saved() {
    let place = Place::new();
    place.import(&saved(&["tool:1"])).unwrap();
    assert_eq!(contents(&place), "contents");
    let image = place.image();
    assert_eq!((image.layers.len(), image.config.config.user.as_str()), (2, "1000"));
    assert_eq!(image.config.config.env, ["A=b"]);
}

#[test]
fn names_come_from_the_file_or_from_the_caller() {
    let place = Place::new();
    let path = place.top.path().join("offered");
    fs::write(&path, saved(&["tool:1", "other:2"])).unwrap();
    let import = |request: &Request| import::import(&place.store, &path, request, &Work::default());
    let error = import(&Request::default()).unwrap_err();
    assert!(matches!(&error, Error::Invalid(why) if why.contains("tool:1") && why.contains("other:2")), "{error:?}");
    let picked = import(&Request { name: None, pick: Some("other:2".to_owned()) }).unwrap();
    assert_eq!(picked.reference, reference("other:2"));
    let missing = import(&Request { name: None, pick: Some("none:1".to_owned()) });
    assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
    fs::write(&path, layer()).unwrap();
    let nameless = import(&Request::default());
    assert!(matches!(nameless, Err(Error::Invalid(_))), "{nameless:?}");
}

#[test]
fn what_is_no_image_is_refused() {
    for bytes in [&b""[..], b"no archive at all", &[0; 10240], b"PK\x03\x04zip", &saved(&["a:1"])[..3000]] {
        let place = Place::new();
        let imported = place.import(bytes);
        assert!(matches!(imported, Err(Error::Refused(_) | Error::Unsupported(_))), "{imported:?}");
        place.assert_nothing_came();
    }
}

#[test]
fn an_import_that_is_given_up_leaves_nothing() {
    let place = Place::new();
    let path = place.top.path().join("offered");
    fs::write(&path, layer()).unwrap();
    let work = Work::default();
    work.cancel.cancel();
    let request = Request { name: Some(reference("test:1")), pick: None };
    assert!(matches!(import::import(&place.store, &path, &request, &work), Err(Error::Cancelled)));
    place.assert_nothing_came();
}
