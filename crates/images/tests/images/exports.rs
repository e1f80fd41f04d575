//! Images that leave the store, as others read them.

use std::fs;
use std::path::Path;

use images::import::{self, Request};
use images::{Digest, Work, export};
use serde_json::Value;

use crate::archive::{Archive, Layout};
use crate::place::{Place, reference};
use crate::tools;

/// Two layers, one of them compressed, and something to run.
fn image() -> Place {
    let place = Place::new();
    let layers =
        [Archive::new().directory("etc", 0o755).file("etc/one", "1").bytes(), Archive::new().file("two", "2").bytes()];
    let mut layout = Layout::of(vec![
        (layers[0].clone(), Digest::of(&layers[0]), images::manifest::OCI_LAYER),
        (crate::archive::gzip(&layers[1]), Digest::of(&layers[1]), images::manifest::OCI_LAYER_GZIP),
    ]);
    layout.config["config"] = serde_json::json!({"Cmd": ["/two"], "Env": ["A=b"], "Labels": {"label": "value"}});
    place.import(&layout.tar()).unwrap();
    place
}

fn read_back(path: &Path) -> images::Image {
    let place = Place::new();
    import::import(&place.store, path, &Request::default(), &Work::default()).unwrap();
    place.store.resolve(&reference("test:1")).unwrap().expect("it kept its name")
}

#[test]
fn what_was_exported_is_the_same_when_it_comes_back() {
    let place = image();
    let original = place.image();
    let file = place.top.path().join("naive");
    export::to_file(&place.store, &original, &file, &Work::default()).unwrap();
    let directory = place.outside().join("layout");
    export::to_directory(&place.store, &original, &directory, &Work::default()).unwrap();
    for path in [file, directory.clone()] {
        let again = read_back(&path);
        assert_eq!((&again.manifest, &again.config), (&original.manifest, &original.config));
        assert_eq!(again.named.manifest, original.named.manifest);
    }
    let twice = export::to_directory(&place.store, &original, &directory, &Work::default());
    assert!(matches!(twice, Err(images::Error::Invalid(_))), "{twice:?}");
    assert_eq!(crate::place::names(&place.outside()).len(), 2, "nothing unfinished is left");
}

#[test]
fn skopeo_reads_what_was_exported() {
    let Some(_) = tools::skopeo() else { return };
    let place = image();
    let original = place.image();
    let file = place.top.path().join("export.tar");
    export::to_file(&place.store, &original, &file, &Work::default()).unwrap();
    let directory = place.top.path().join("layout");
    export::to_directory(&place.store, &original, &directory, &Work::default()).unwrap();
    let sources = [
        format!("oci-archive:{}:1", file.display()),
        format!("oci:{}:1", directory.display()),
        format!("docker-archive:{}", file.display()),
    ];
    for source in sources {
        let mut skopeo = tools::skopeo().unwrap();
        let text = tools::run(skopeo.args(["inspect", "--config", &source]));
        let config: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["config"]["Cmd"][0], "/two", "{source}");
        let copy = place.top.path().join("copy");
        let target = format!("dir:{}", copy.display());
        tools::run(tools::skopeo().unwrap().args(["copy", "--quiet", &source, &target]));
        let manifest: Value = serde_json::from_slice(&fs::read(copy.join("manifest.json")).unwrap()).unwrap();
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 2, "{source}");
        fs::remove_dir_all(copy).unwrap();
    }
}

/// What `skopeo` writes in the form of `docker save` comes in.
#[test]
fn what_skopeo_writes_is_read() {
    let Some(_) = tools::skopeo() else { return };
    let place = image();
    let original = place.image();
    let file = place.top.path().join("export.tar");
    export::to_file(&place.store, &original, &file, &Work::default()).unwrap();
    let source = format!("oci-archive:{}:1", file.display());
    for form in ["docker-archive", "oci-archive", "oci"] {
        let path = place.top.path().join(form);
        let target = format!("{form}:{}:docker.io/library/other:2", path.display());
        tools::run(tools::skopeo().unwrap().args(["copy", "--quiet", &source, &target]));
        let other = Place::new();
        let request = Request { name: Some(reference("test:1")), pick: None };
        import::import(&other.store, &path, &request, &Work::default()).unwrap();
        let image = other.image();
        assert_eq!(image.config.config.cmd, ["/two"], "{form}");
        assert_eq!(image.config.rootfs, original.config.rootfs, "{form}");
    }
}
