use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::writing::{Begun, NewImage};
use super::*;
use crate::config::ImageConfig;
use crate::manifest::{Descriptor, ImageLimits, OCI_LAYER};
use crate::reference::Reference;

struct Place {
    directory: tempfile::TempDir,
    store: Arc<Store>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path()).unwrap());
        Self { directory, store }
    }

    /// An image of one layer with one file, under a name.
    fn image(&self, name: &str, contents: &str) -> Named {
        let writing = Writing::begin(&self.store).unwrap();
        let image = self.unnamed(&writing, contents);
        writing.name(&reference(name), &image).unwrap()
    }

    fn unnamed(&self, writing: &Writing, contents: &str) -> NewImage {
        let layer = archive(contents);
        let digest = Digest::of(&layer);
        let descriptor = Descriptor::new(OCI_LAYER, digest, layer.len() as u64);
        let cancel = CancellationToken::new();
        writing.put(&layer[..], &descriptor, &cancel).unwrap();
        let limits = ImageLimits::default();
        let image = writing.assemble(ImageConfig::bare(vec![digest]), vec![descriptor], &limits).unwrap();
        writing.unpack_all(&image, &limits, &cancel).unwrap();
        image
    }

    fn count(&self, directory: &str) -> usize {
        let entries = fs::read_dir(self.directory.path().join("v1").join(directory)).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| !name.starts_with('.'))).count()
    }
}

fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

fn archive(contents: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(contents.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, "file", contents.as_bytes()).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn an_image_is_found_by_its_name_and_by_its_digest() {
    let place = Place::new();
    let named = place.image("tool:1", "one");
    let image = place.store.resolve(&reference("docker.io/library/tool:1")).unwrap().unwrap();
    let directories: Vec<_> = image.directories().collect();
    assert_eq!(directories.len(), 1);
    assert_eq!(fs::read_to_string(directories[0].join("file")).unwrap(), "one");
    assert!(place.store.resolve(&reference("tool:2")).unwrap().is_none());

    let digest = named.manifest.digest;
    let by_digest = reference(&format!("tool@{}", digest.qualified()));
    assert_eq!(place.store.find(&by_digest).unwrap().unwrap(), named);
    assert!(place.store.find(&reference(&format!("other@{}", digest.qualified()))).unwrap().is_none());
    assert_eq!(place.store.look_up(&digest.short()).unwrap(), named);
    assert!(matches!(place.store.look_up("nothing"), Err(Error::NotFound(_))));
    assert!(matches!(place.store.look_up("No Name"), Err(Error::Invalid(_))));
}

#[test]
fn what_has_no_name_and_no_user_is_collected() {
    let place = Place::new();
    place.image("tool:1", "one");
    place.image("tool:2", "two");
    let before = place.store.size().unwrap();
    assert_eq!(place.store.collect().unwrap(), Collected::default());

    assert!(place.store.remove_name(&reference("tool:1")).unwrap());
    assert!(!place.store.remove_name(&reference("tool:1")).unwrap());
    let collected = place.store.collect().unwrap();
    assert_eq!((collected.blobs, collected.layers, collected.postponed), (3, 1, false));
    assert_eq!(place.store.size().unwrap(), before - collected.bytes);
    assert_eq!((place.count("blobs"), place.count("layers"), place.count("trash")), (3, 1, 0));
    assert!(place.store.resolve(&reference("tool:2")).unwrap().is_some());
}

#[test]
fn what_is_used_stays_until_its_last_user_is_gone() {
    let place = Place::new();
    place.image("tool:1", "one");
    let image = place.store.resolve(&reference("tool:1")).unwrap().unwrap();
    let copy = image.hold().try_clone_to_owned().unwrap();
    let path = image.layers[0].path.clone();
    place.store.remove_name(&reference("tool:1")).unwrap();
    let other = Store::open(place.directory.path()).unwrap();
    assert_eq!(other.collect().unwrap(), Collected::default());
    drop(image);
    assert_eq!(other.collect().unwrap(), Collected::default(), "a copy of the descriptor keeps it too");
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "one");
    drop(copy);
    assert_eq!(other.collect().unwrap().layers, 1);
    assert!(!path.exists());
    assert_eq!(place.count("uses"), 0);
}

#[test]
fn nothing_is_collected_while_somebody_adds() {
    let place = Place::new();
    let writing = Writing::begin(&place.store).unwrap();
    let image = place.unnamed(&writing, "one");
    assert!(Store::open(place.directory.path()).unwrap().collect().unwrap().postponed);
    writing.name(&reference("tool:1"), &image).unwrap();
    drop(writing);
    assert_eq!(place.store.collect().unwrap(), Collected::default());
    assert!(place.store.resolve(&reference("tool:1")).unwrap().is_some());
}

#[test]
fn layers_that_two_images_share_are_kept_once_and_for_both() {
    let place = Place::new();
    place.image("tool:1", "one");
    let writing = Writing::begin(&place.store).unwrap();
    let named = place.store.look_up("tool:1").unwrap();
    writing.tag(&named, &reference("other:1")).unwrap();
    drop(writing);
    place.store.remove_name(&reference("tool:1")).unwrap();
    assert_eq!(place.store.collect().unwrap(), Collected::default());
    assert!(place.store.resolve(&reference("other:1")).unwrap().is_some());
}

/// A process that dies leaves parts, which the next one goes on with, and which nobody sees.
#[test]
fn a_download_goes_on_where_another_process_died() {
    let place = Place::new();
    let bytes = b"0123456789";
    let descriptor = Descriptor::new("", Digest::of(bytes), 10);
    let begin = |store: &Arc<Store>| match Writing::begin(store).unwrap().begin_download(&descriptor).unwrap() {
        Begun::Download(download) => download,
        other => panic!("{other:?}"),
    };
    let mut first = begin(&place.store);
    first.write(&bytes[..4]).unwrap();
    assert!(matches!(place.store.begin_download(&descriptor).unwrap(), Begun::Busy));
    assert!(!place.store.has_blob(descriptor.digest).unwrap());
    drop(first);
    let other = Arc::new(Store::open(place.directory.path()).unwrap());
    let mut second = begin(&other);
    assert_eq!((second.received(), second.missing()), (4, 6));
    second.write(&bytes[4..]).unwrap();
    other.finish_download(*second).unwrap();
    assert!(matches!(place.store.begin_download(&descriptor).unwrap(), Begun::Finished));
    assert_eq!(place.count("downloads"), 0);
}

#[test]
fn what_is_not_what_was_announced_leaves_nothing() {
    let place = Place::new();
    let announced = Descriptor::new("", Digest::of(b"good"), 4);
    let writing = Writing::begin(&place.store).unwrap();
    let cancel = CancellationToken::new();
    for other in [&b"evil"[..], b"goo", b"good and more", b""] {
        let refused = writing.put(other, &announced, &cancel);
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        assert!(!place.store.has_blob(announced.digest).unwrap());
    }
    writing.put(&b"good"[..], &announced, &cancel).unwrap();
    assert!(place.store.has_blob(announced.digest).unwrap());
}

#[test]
fn downloads_that_nobody_went_on_with_are_swept() {
    let place = Place::new();
    let begin = |bytes: &[u8]| match place.store.begin_download(&Descriptor::new("", Digest::of(bytes), 100)).unwrap() {
        Begun::Download(mut download) => {
            download.write(bytes).unwrap();
            download
        }
        other => panic!("{other:?}"),
    };
    let (old, busy, young) = (begin(b"old"), begin(b"busy"), begin(b"young"));
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 24 * 60 * 60);
    for bytes in [&b"old"[..], b"busy"] {
        let path = place.directory.path().join("v1/downloads").join(Digest::of(bytes).to_string());
        fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    drop((old, young));
    place.store.sweep().unwrap();
    assert_eq!(place.count("downloads"), 2);
    drop(busy);
    place.store.sweep().unwrap();
    assert_eq!(place.count("downloads"), 1);
}

#[test]
fn a_tree_that_is_lost_is_unpacked_again() {
    let place = Place::new();
    place.image("tool:1", "one");
    let path = place.store.resolve(&reference("tool:1")).unwrap().unwrap().layers[0].path.clone();
    fs::remove_dir_all(&path).unwrap();
    place.store.resolve(&reference("tool:1")).unwrap().unwrap();
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "one");
}

#[test]
fn a_damaged_store_is_noticed_and_harmless() {
    let place = Place::new();
    let named = place.image("tool:1", "one");
    let blobs = place.directory.path().join("v1/blobs");
    let path = blobs.join(named.manifest.digest.to_string());
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(place.store.resolve(&reference("tool:1")), Err(Error::Refused(_))));
    for file in fs::read_dir(place.directory.path().join("v1/names")).unwrap().flatten() {
        fs::write(file.path(), "{").unwrap();
    }
    assert!(place.store.resolve(&reference("tool:1")).unwrap().is_none());
    place.store.collect().unwrap();
    place.image("tool:1", "one");
    assert!(place.store.resolve(&reference("tool:1")).unwrap().is_some());
}
