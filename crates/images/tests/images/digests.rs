//! SU-05: contents that are not what their names say.

use std::fs;
use std::os::unix::fs::symlink;

use images::manifest::{OCI_INDEX, OCI_LAYER, OCI_MANIFEST};
use images::{Digest, Error, ImageLimits};
use serde_json::json;

use crate::archive::{Archive, Layout, descriptor, hex};
use crate::place::Place;

fn honest() -> Layout {
    Layout::new(&[Archive::new().file("file", "contents").bytes()])
}

#[track_caller]
fn refused(change: impl Fn(&mut Layout)) {
    let control = Place::new();
    control.import(&honest().tar()).expect("the control: without the change it is taken");
    let mut layout = honest();
    change(&mut layout);
    let place = Place::new();
    let imported = place.import(&layout.tar());
    assert!(matches!(imported, Err(Error::Refused(_) | Error::Unsupported(_))), "{imported:?}");
    place.assert_nothing_came();
}

#[test]
fn a_wrong_digest() {
    refused(|layout| layout.blobs[0].1[0] ^= 1);
    refused(|layout| {
        let other = Archive::new().file("file", "Contents").bytes();
        assert_eq!(other.len(), layout.blobs[0].1.len());
        layout.blobs[0].1 = other;
    });
    refused(|layout| layout.config["rootfs"]["diff_ids"][0] = json!(Digest::of(b"x").qualified()));
}

#[test]
fn a_wrong_size() {
    refused(|layout| layout.manifest["layers"][0]["size"] = json!(1));
    refused(|layout| layout.manifest["layers"][0]["size"] = json!(1 << 30));
    refused(|layout| layout.manifest["layers"][0]["size"] = json!(-1));
    refused(|layout| layout.blobs[0].1.push(0));
}

#[test]
fn a_path_for_a_digest() {
    let up = format!("sha256:../../../{}", "x".repeat(55));
    refused(|layout| layout.manifest["layers"][0]["digest"] = json!(up));
    refused(|layout| layout.manifest["layers"][0]["digest"] = json!("sha256:"));
    refused(|layout| layout.config["rootfs"]["diff_ids"][0] = json!("sha256:../../../outside"));
    refused(|layout| {
        layout.index = json!({"schemaVersion": 2, "manifests": [{"mediaType": OCI_MANIFEST, "digest": up, "size": 1}]})
    });
}

#[test]
fn an_unknown_algorithm() {
    refused(|layout| layout.manifest["layers"][0]["digest"] = json!(format!("md5:{}", "0".repeat(32))));
    refused(|layout| layout.manifest["layers"][0]["digest"] = json!(format!("sha512:{}", "0".repeat(128))));
}

#[test]
fn a_list_that_is_also_an_image() {
    refused(|layout| layout.manifest["manifests"] = json!([]));
    refused(|layout| layout.manifest["mediaType"] = json!(OCI_INDEX));
    refused(|layout| {
        let bytes = Layout { blobs: Vec::new(), ..honest() }.finish().blobs.pop().unwrap().1;
        let wrong = descriptor(OCI_INDEX, Digest::of(&bytes), bytes.len());
        layout.index = json!({"schemaVersion": 2, "manifests": [wrong]});
    });
}

#[test]
fn more_layers_than_are_described() {
    refused(|layout| {
        let again = layout.manifest["layers"][0].clone();
        layout.manifest["layers"].as_array_mut().unwrap().push(again);
    });
    refused(|layout| layout.config["rootfs"]["diff_ids"] = json!([]));
}

#[test]
fn kinds_of_layers_that_are_not_known() {
    refused(|layout| layout.manifest["layers"][0]["mediaType"] = json!(format!("{OCI_LAYER}+lz4")));
}

/// A layout is a directory that somebody made, so what is behind its links may be anything.
#[test]
fn links_in_a_layout() {
    let layer = Archive::new().file("file", "contents").bytes();
    let name = hex(Digest::of(&layer));
    for linked in ["blob", "blobs", "index"] {
        let place = Place::new();
        let layout = place.outside().with_file_name("offered");
        Layout::new(std::slice::from_ref(&layer)).write_to(&layout);
        place.import_path(&layout, ImageLimits::default()).expect("the control: without the link it is taken");
        place.store.remove_name(&crate::place::reference("test:1")).unwrap();
        place.store.collect().unwrap();

        let (from, to) = match linked {
            "blob" => (layout.join("blobs/sha256").join(&name), layout.join("moved")),
            "blobs" => (layout.join("blobs/sha256"), layout.join("moved")),
            _ => (layout.join("index.json"), layout.join("moved")),
        };
        fs::rename(&from, &to).unwrap();
        symlink(&to, &from).unwrap();
        let imported = place.import_path(&layout, ImageLimits::default());
        assert!(matches!(imported, Err(Error::Refused(_))), "{linked}: {imported:?}");
        place.assert_nothing_came();
    }
}
