//! SU-06 and RX-12: images that are small until they are looked at.

use images::manifest::{OCI_LAYER, OCI_LAYER_GZIP, OCI_MANIFEST};
use images::{Digest, Error, ImageLimits, Limits};
use serde_json::json;
use tar::EntryType;

use crate::archive::{Archive, Layout, descriptor, gzip};
use crate::place::Place;

/// Refused with the limits of the product, and taken without them, so it is the limit that refuses.
#[track_caller]
fn too_much(image: &[u8]) {
    let place = Place::new();
    let imported = place.import(image);
    assert!(matches!(imported, Err(Error::LimitExceeded(_))), "{imported:?}");
    place.assert_nothing_came();
}

fn without_limits() -> ImageLimits {
    let layer =
        Limits { bytes: u64::MAX, entries: u64::MAX, ratio: u64::MAX, path_bytes: usize::MAX, depth: usize::MAX };
    ImageLimits { layers: usize::MAX, transfer_bytes: u64::MAX, unpacked_bytes: u64::MAX, layer }
}

#[track_caller]
fn is_taken_without_limits(image: &[u8]) {
    Place::new().import_within(image, without_limits()).expect("the control");
}

#[test]
fn a_layer_of_a_thousand_times_its_size() {
    let layer = Archive::new().entry(EntryType::Regular, "zeros", "", &vec![0; 32 << 20], 0o644).bytes();
    let image = Layout::gzipped(&layer).tar();
    assert!(image.len() * 100 < layer.len());
    too_much(&image);
    too_much(&gzip(&layer));
    is_taken_without_limits(&image);
}

/// A bomb in a bomb is still a file: what is inside a layer is not unpacked any further.
#[test]
fn a_bomb_in_a_bomb() {
    let inner = gzip(&gzip(&vec![0; 64 << 20]));
    let place = Place::new();
    place
        .import(
            &Layout::gzipped(&Archive::new().entry(EntryType::Regular, "inner.gz", "", &inner, 0o644).bytes()).tar(),
        )
        .unwrap();
    assert!(place.store.size().unwrap() < 1 << 20);
    let twice = gzip(&gzip(&Archive::new().file("file", "x").bytes()));
    let place = Place::new();
    assert!(matches!(place.import(&twice), Err(Error::Refused(_))));
    place.assert_nothing_came();
}

#[test]
fn a_layer_of_a_million_entries() {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::Directory);
    header.set_path("directory").unwrap();
    header.set_mode(0o755);
    header.set_size(0);
    header.set_cksum();
    // A thousand times the same thousand: gzip takes one stream after the other.
    let thousand = gzip(&header.as_bytes().repeat(1000));
    let layer = thousand.repeat(1000);
    assert!(layer.len() < 8 << 20, "half a gibibyte looks small");
    let image = Layout::of(vec![(layer, Digest::of(b"never looked at"), OCI_LAYER_GZIP)]).tar();
    // Unoptimised code takes its time, so the limit is lower than that of the product.
    let layer = Limits { ratio: u64::MAX, entries: 50_000, ..Limits::default() };
    let place = Place::new();
    let imported = place.import_within(&image, ImageLimits { layer, ..ImageLimits::default() });
    assert!(matches!(&imported, Err(Error::LimitExceeded(why)) if why.contains("entries")), "{imported:?}");
    place.assert_nothing_came();
}

/// The tar form of overlapping files: a header that claims what belongs to the next ones.
#[test]
fn files_that_reach_into_each_other() {
    let mut bytes = Archive::new().file("first", "").file("second", "").bytes();
    let mut header = tar::Header::new_gnu();
    header.set_path("first").unwrap();
    header.set_mode(0o644);
    header.set_size(1 << 30);
    header.set_cksum();
    bytes[..512].copy_from_slice(header.as_bytes());
    let place = Place::new();
    let imported = place.import(&Layout::new(&[bytes]).tar());
    assert!(matches!(imported, Err(Error::Refused(_))), "{imported:?}");
    place.assert_nothing_came();
}

#[test]
fn an_image_of_ten_thousand_layers() {
    let layer = Archive::new().file("file", "x").bytes();
    let many = |count: usize| {
        let mut layout = Layout::new(std::slice::from_ref(&layer));
        layout.manifest["layers"] = json!(vec![descriptor(OCI_LAYER, Digest::of(&layer), layer.len()); count]);
        layout.config["rootfs"]["diff_ids"] = json!(vec![Digest::of(&layer).qualified(); count]);
        layout.tar()
    };
    too_much(&many(10_000));
    Place::new().import(&many(256)).expect("the control: as many as are allowed");
}

#[test]
fn a_manifest_of_a_hundred_mebibytes() {
    let mut layout = Layout::new(&[Archive::new().file("file", "x").bytes()]);
    layout.manifest["annotations"] = json!({"filler": "x".repeat(100 << 20)});
    too_much(&layout.tar());
    let mut layout = Layout::new(&[Archive::new().file("file", "x").bytes()]);
    layout.config["filler"] = json!("x".repeat(5 << 20));
    too_much(&layout.tar());
    let filler = "x".repeat(5 << 20);
    let mut layout = Layout::new(&[]);
    layout.index =
        json!({"schemaVersion": 2, "filler": filler, "manifests": [descriptor(OCI_MANIFEST, Digest::of(b""), 0)]});
    too_much(&layout.tar());
}

#[test]
fn names_of_a_hundred_kibibytes() {
    let long = "d/".repeat(50 << 10);
    let named =
        |kind: EntryType| Archive::new().entry(kind, "././@LongLink", "", long.as_bytes(), 0).file("x", "").bytes();
    too_much(&Layout::new(&[named(EntryType::GNULongName)]).tar());
    let place = Place::new();
    let link = Archive::new()
        .entry(EntryType::GNULongLink, "././@LongLink", "", long.as_bytes(), 0)
        .symlink("link", "x")
        .bytes();
    assert!(place.import(&Layout::new(&[link]).tar()).is_err());
    place.assert_nothing_came();
    let deep = "d/".repeat(200);
    let deep =
        Archive::new().entry(EntryType::GNULongName, "././@LongLink", "", deep.as_bytes(), 0).directory("x", 0o755);
    let deep = Layout::new(&[deep.bytes()]).tar();
    too_much(&deep);
    is_taken_without_limits(&deep);
}

#[test]
fn attributes_of_many_mebibytes() {
    let value = vec![b'x'; 8 << 20];
    too_much(&Layout::new(&[Archive::new().extended("SCHILY.xattr.user.x", &value).file("file", "").bytes()]).tar());
    let small = Archive::new().extended("SCHILY.xattr.user.x", &value[..100]).file("file", "").bytes();
    Place::new().import(&Layout::new(&[small]).tar()).expect("the control");
}

#[test]
fn layers_that_are_too_much_only_together() {
    let layers: Vec<Vec<u8>> =
        (0..4).map(|index| Archive::new().file(&format!("file{index}"), &"x".repeat(1000)).bytes()).collect();
    let image = Layout::new(&layers).tar();
    let limits = ImageLimits { unpacked_bytes: 3999, ..ImageLimits::default() };
    let place = Place::new();
    let imported = place.import_within(&image, limits);
    assert!(matches!(imported, Err(Error::LimitExceeded(_))), "{imported:?}");
    place.store.collect().unwrap();
    assert_eq!(place.store.size().unwrap(), 0, "room is given back");
    let limits = ImageLimits { unpacked_bytes: 4000, ..ImageLimits::default() };
    Place::new().import_within(&image, limits).expect("the control");
}
