//! What an image is made of: manifests, and lists of them for several platforms.
//!
//! The types are our own. The crate for the specification brings builders, getters and a regular-expression engine for
//! what are a few records, and its records can be wrong; these are checked as they are read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::platform::Platform;

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";

/// Everything that a registry may answer with when it is asked for an image.
pub const ACCEPTED: [&str; 4] = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX];

/// The longest manifest, index or configuration that is read. Registries take none that is longer.
pub const MAX_DOCUMENT: u64 = 4 << 20;

/// How much one image may be, beside what each of its layers may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    pub layers: usize,
    /// As they are transferred, all layers together.
    pub transfer_bytes: u64,
    /// Once unpacked, all layers together; each is bounded by `layer` too.
    pub unpacked_bytes: u64,
    pub layer: crate::limits::Limits,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            // An overlay has at most 500, and a sandbox puts some of its own on top.
            layers: 256,
            transfer_bytes: 32 << 30,
            unpacked_bytes: 64 << 30,
            layer: crate::limits::Limits::default(),
        }
    }
}

/// A pointer to a blob, with all that is needed to know it when it comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map<String, Value>,
}

impl Descriptor {
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self { media_type: media_type.to_owned(), digest, size, platform: None, annotations: Map::new() }
    }
}

/// One image for one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    pub media_type: String,
    pub config: Descriptor,
    /// The lowest first.
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    pub fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: OCI_MANIFEST.to_owned(), config, layers }
    }

    /// Before any of it is fetched or read.
    pub fn check(&self, limits: &ImageLimits) -> Result<()> {
        if self.layers.len() > limits.layers {
            let (count, most) = (self.layers.len(), limits.layers);
            return Err(Error::LimitExceeded(format!("it has {count} layers, and {most} are the most")));
        }
        if self.config.size > MAX_DOCUMENT {
            return Err(Error::LimitExceeded("its configuration has more than 4 MiB".to_owned()));
        }
        let sizes = self.layers.iter().try_fold(0u64, |sum, layer| sum.checked_add(layer.size));
        if sizes.is_none_or(|sizes| sizes > limits.transfer_bytes) {
            return Err(Error::LimitExceeded(format!("its layers have more than {} bytes", limits.transfer_bytes)));
        }
        Ok(())
    }

    /// What has to be transferred for all of it.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum::<u64>() + self.config.size
    }
}

/// One image for several platforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    pub manifests: Vec<Descriptor>,
}

impl Index {
    /// The manifest that runs best on `machine`. One that does not say for what it is goes for everything, but last.
    pub fn choose(&self, machine: &Platform) -> Result<&Descriptor> {
        let fitness = |descriptor: &Descriptor| match &descriptor.platform {
            Some(platform) => platform.fitness(machine).map(|fitness| u64::from(fitness) + 1),
            None => Some(0),
        };
        let usable = |descriptor: &&Descriptor| is_manifest(&descriptor.media_type) && fitness(descriptor).is_some();
        // Of equals the first counts, as it does for Docker.
        let best = self.manifests.iter().rev().filter(usable).max_by_key(|descriptor| fitness(descriptor));
        best.ok_or_else(|| {
            let mut offered: Vec<String> =
                self.manifests.iter().filter_map(|one| one.platform.as_ref()).map(ToString::to_string).collect();
            offered.retain(|platform| !platform.contains("unknown"));
            offered.truncate(16);
            Error::NotFound(format!("the image is not made for {machine}, only for {}", offered.join(", ")))
        })
    }
}

/// What a registry or a layout has under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Manifest(Box<Manifest>),
    Index(Index),
}

impl Document {
    /// Reads one that came as `declared`. A text that can be taken for both kinds is refused: two readers would see two
    /// images under one digest (CVE-2021-41190).
    pub fn parse(bytes: &[u8], declared: Option<&str>) -> Result<Self> {
        let refuse = |why: &str| Error::Refused(format!("its manifest {why}"));
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(Error::LimitExceeded("its manifest has more than 4 MiB".to_owned()));
        }
        let value: Value = serde_json::from_slice(bytes).map_err(|_| refuse("is not JSON"))?;
        let object = value.as_object().ok_or_else(|| refuse("is not a JSON object"))?;
        match object.get("schemaVersion").and_then(Value::as_u64) {
            Some(2) => {}
            Some(1) => return Err(Error::Unsupported("the image is in Docker's format of before 2016".to_owned())),
            Some(_) | None => return Err(refuse("is of no version that is known")),
        }
        let has = |key: &str| object.contains_key(key);
        let looks_like_index = has("manifests");
        if looks_like_index && (has("layers") || has("config") || has("fsLayers")) {
            return Err(refuse("is a list of images and an image at once"));
        }
        let written = object.get("mediaType").and_then(Value::as_str);
        let names: Vec<&str> = [declared.map(essence), written].into_iter().flatten().collect();
        if names.iter().any(|name| !ACCEPTED.contains(name)) {
            return Err(Error::Unsupported(format!("{:?} is not an image", names.join(" and "))));
        }
        if names.iter().any(|name| is_index(name) != looks_like_index) {
            return Err(refuse("is not of the kind that it is said to be"));
        }
        if names.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(refuse("says that it is of another kind than its sender says"));
        }
        let broken = |error: serde_json::Error| refuse(&format!("is not in order ({error})"));
        if looks_like_index {
            return Ok(Self::Index(serde_json::from_value(value).map_err(broken)?));
        }
        let name = names.first().copied().unwrap_or(OCI_MANIFEST).to_owned();
        let mut value = value;
        value["mediaType"] = Value::String(name);
        let manifest: Manifest = serde_json::from_value(value).map_err(broken)?;
        if !matches!(manifest.config.media_type.as_str(), OCI_CONFIG | DOCKER_CONFIG) {
            return Err(Error::Unsupported("it is not an image but something else that registries keep".to_owned()));
        }
        if let Some(layer) = manifest.layers.iter().find(|layer| !is_layer(&layer.media_type)) {
            return Err(Error::Unsupported(format!("layers of the kind {:?} are not read", layer.media_type)));
        }
        Ok(Self::Manifest(Box::new(manifest)))
    }
}

pub fn is_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST)
}

pub fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_INDEX)
}

fn is_layer(media_type: &str) -> bool {
    let known = [OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, DOCKER_LAYER, DOCKER_LAYER_GZIP, DOCKER_LAYER_ZSTD];
    known.contains(&media_type)
}

/// A media type without its parameters.
fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn descriptor(media_type: &str, size: u64) -> Value {
        json!({"mediaType": media_type, "digest": Digest::of(b"x").qualified(), "size": size})
    }

    fn manifest() -> Value {
        json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor(OCI_CONFIG, 1),
            "layers": [descriptor(OCI_LAYER_GZIP, 2), descriptor(OCI_LAYER_ZSTD, 3)],
        })
    }

    fn parse(value: &Value, declared: Option<&str>) -> Result<Document> {
        Document::parse(value.to_string().as_bytes(), declared)
    }

    fn with(mut value: Value, key: &str, new: Value) -> Value {
        value[key] = new;
        value
    }

    #[test]
    fn a_manifest_is_read_as_it_is_declared() {
        for declared in [None, Some(OCI_MANIFEST), Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8")] {
            let Document::Manifest(read) = parse(&manifest(), declared).unwrap() else { panic!("not a manifest") };
            assert_eq!((read.layers.len(), read.bytes()), (2, 6));
        }
        let mut silent = manifest();
        silent.as_object_mut().unwrap().remove("mediaType");
        let Document::Manifest(read) = parse(&silent, Some(DOCKER_MANIFEST)).unwrap() else { panic!("not a manifest") };
        assert_eq!(read.media_type, DOCKER_MANIFEST);
    }

    #[test]
    fn what_can_be_read_two_ways_is_not_read_at_all() {
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []});
        let refused = |value: &Value, declared| {
            let read = parse(value, declared);
            assert!(matches!(read, Err(Error::Refused(_))), "{value} as {declared:?}: {read:?}");
        };
        refused(&with(manifest(), "manifests", json!([])), None);
        refused(&with(index.clone(), "layers", json!([])), None);
        refused(&with(index.clone(), "config", descriptor(OCI_CONFIG, 1)), Some(OCI_INDEX));
        refused(&manifest(), Some(OCI_INDEX));
        refused(&index, Some(OCI_MANIFEST));
        refused(&manifest(), Some(DOCKER_MANIFEST));
        refused(&with(manifest(), "mediaType", json!(OCI_INDEX)), None);
        refused(&with(manifest(), "schemaVersion", json!(3)), None);
        refused(
            &with(manifest(), "layers", json!([{"mediaType": OCI_LAYER, "digest": "sha256:../x", "size": 1}])),
            None,
        );
        refused(&with(manifest(), "layers", json!([descriptor(OCI_LAYER, 1), {"size": -1}])), None);
        assert!(Document::parse(b"[]", None).is_err());
        assert!(Document::parse(b"{\"schemaVersion\":2", None).is_err());
    }

    #[test]
    fn what_is_no_image_is_not_taken_for_one() {
        for other in [
            with(manifest(), "config", descriptor("application/vnd.cncf.helm.config.v1+json", 1)),
            with(manifest(), "layers", json!([descriptor("application/octet-stream", 1)])),
            with(manifest(), "mediaType", json!("application/json")),
            with(manifest(), "schemaVersion", json!(1)),
        ] {
            assert!(matches!(parse(&other, None), Err(Error::Unsupported(_))), "{other}");
        }
    }

    #[test]
    fn too_much_is_refused_before_it_is_fetched() {
        let limits = ImageLimits { layers: 2, transfer_bytes: 5, ..ImageLimits::default() };
        let check = |value: Value| match parse(&value, None).unwrap() {
            Document::Manifest(manifest) => manifest.check(&limits),
            Document::Index(_) => panic!("not a manifest"),
        };
        check(manifest()).unwrap();
        let one = || descriptor(OCI_LAYER, 1);
        for value in [
            with(manifest(), "layers", json!([one(), one(), one()])),
            with(manifest(), "layers", json!([descriptor(OCI_LAYER, 6)])),
            with(manifest(), "layers", json!([descriptor(OCI_LAYER, u64::MAX), one()])),
            with(manifest(), "config", descriptor(OCI_CONFIG, MAX_DOCUMENT + 1)),
        ] {
            assert!(matches!(check(value), Err(Error::LimitExceeded(_))));
        }
        let long = format!("{}{}", " ".repeat(MAX_DOCUMENT as usize), manifest());
        assert!(matches!(Document::parse(long.as_bytes(), None), Err(Error::LimitExceeded(_))));
    }

    #[test]
    fn the_index_gives_the_manifest_for_this_machine() {
        let one = |architecture: &str, size: u64| {
            let mut value = descriptor(OCI_MANIFEST, size);
            value["platform"] = json!({"architecture": architecture, "os": "linux"});
            value
        };
        let index = |manifests: Value| match parse(&json!({"schemaVersion": 2, "manifests": manifests}), None).unwrap()
        {
            Document::Index(index) => index,
            Document::Manifest(_) => panic!("not an index"),
        };
        let machine = Platform { os: "linux".into(), architecture: "amd64".into(), variant: None };
        let several = index(json!([one("unknown", 1), one("arm64", 2), one("amd64", 3), one("amd64", 4)]));
        assert_eq!(several.choose(&machine).unwrap().size, 3);
        let error = index(json!([one("unknown", 1), one("arm64", 2)])).choose(&machine).unwrap_err();
        assert_eq!(error.to_string(), "the image is not made for linux/amd64, only for linux/arm64");
        assert_eq!(index(json!([descriptor(OCI_MANIFEST, 7)])).choose(&machine).unwrap().size, 7);
        assert!(index(json!([descriptor(OCI_INDEX, 7)])).choose(&machine).is_err(), "lists are not nested");
    }
}
