//! What an image says about how it is to be run, and what its layers are once unpacked.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{ImageLimits, MAX_DOCUMENT, Manifest};
use crate::platform::Platform;

/// The configuration of an image. What is not understood here is kept, so that an image made from another loses nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageConfig {
    #[serde(flatten)]
    pub platform: Platform,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub config: RunConfig,
    pub rootfs: RootFs,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub history: Vec<Value>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// How a program is started in it, unless its user says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RunConfig {
    /// A name or number, perhaps with a group behind a colon. Empty is root.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub user: String,
    /// `NAME=value` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub env: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub working_dir: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub exposed_ports: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub volumes: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub shell: Vec<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    #[serde(rename = "type")]
    pub kind: String,
    /// Digests of the layers without their compression, the lowest first.
    pub diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// For a tree that came with no word about itself.
    pub fn bare(diff_ids: Vec<Digest>) -> Self {
        Self {
            platform: Platform::host(),
            created: None,
            config: RunConfig::default(),
            rootfs: RootFs { kind: "layers".to_owned(), diff_ids },
            history: Vec::new(),
            other: Map::new(),
        }
    }

    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(Error::LimitExceeded("its configuration has more than 4 MiB".to_owned()));
        }
        serde_json::from_slice(bytes)
            .map_err(|error| Error::Refused(format!("its configuration is not in order ({error})")))
    }

    /// Whether it belongs to this manifest: as many layers, and for Linux.
    pub fn check(&self, manifest: &Manifest, limits: &ImageLimits) -> Result<()> {
        let (described, there) = (self.rootfs.diff_ids.len(), manifest.layers.len());
        if described != there {
            return Err(Error::Refused(format!("it has {there} layers and describes {described}")));
        }
        if there > limits.layers {
            return Err(Error::LimitExceeded(format!("it has {there} layers")));
        }
        if self.platform.os != "linux" {
            return Err(Error::Unsupported(format!("it is made for {}", self.platform)));
        }
        Ok(())
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a configuration holds nothing that JSON lacks")
    }
}

/// Go writes `null` for what is empty.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_docker_writes_is_understood_and_nothing_is_lost() {
        let written = json!({
            "architecture": "amd64",
            "os": "linux",
            "created": "2024-01-02T03:04:05Z",
            "config": {
                "User": "1000:1000",
                "Env": ["PATH=/bin", "EMPTY="],
                "Entrypoint": null,
                "Cmd": ["sh"],
                "WorkingDir": "/srv",
                "Labels": null,
                "ExposedPorts": {"80/tcp": {}},
                "Healthcheck": {"Test": ["NONE"]},
                "StopSignal": "SIGINT",
            },
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(b"x").qualified()]},
            "history": [{"created_by": "ADD file"}],
            "moby.buildkit.buildinfo.v1": "e30=",
        });
        let config = ImageConfig::parse(written.to_string().as_bytes()).unwrap();
        assert_eq!(config.config.user, "1000:1000");
        assert_eq!(config.config.cmd, ["sh"]);
        assert_eq!(config.config.working_dir, "/srv");
        assert!(config.config.entrypoint.is_empty());
        let again: Value = serde_json::from_slice(&config.to_bytes()).unwrap();
        let mut expected = written;
        for null in ["Entrypoint", "Labels"] {
            expected["config"].as_object_mut().unwrap().remove(null);
        }
        assert_eq!(again, expected);
    }

    #[test]
    fn a_configuration_without_anything_to_run_is_one() {
        let least = json!({"architecture": "amd64", "os": "linux", "config": null, "rootfs": {"type": "layers", "diff_ids": []}});
        assert_eq!(ImageConfig::parse(least.to_string().as_bytes()).unwrap().config, RunConfig::default());
        for broken in [
            "",
            "{}",
            "[]",
            "{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"x\"]}}",
        ] {
            assert!(matches!(ImageConfig::parse(broken.as_bytes()), Err(Error::Refused(_))), "{broken}");
        }
    }

    #[test]
    fn a_configuration_must_fit_its_manifest() {
        use crate::manifest::{Descriptor, OCI_CONFIG, OCI_LAYER};
        let digest = Digest::of(b"x");
        let layers = vec![Descriptor::new(OCI_LAYER, digest, 1)];
        let manifest = Manifest::new(Descriptor::new(OCI_CONFIG, digest, 1), layers);
        let limits = ImageLimits::default();
        let mut config = ImageConfig::bare(vec![digest]);
        config.check(&manifest, &limits).unwrap();
        config.platform.os = "windows".to_owned();
        assert!(matches!(config.check(&manifest, &limits), Err(Error::Unsupported(_))));
        assert!(matches!(ImageConfig::bare(vec![]).check(&manifest, &limits), Err(Error::Refused(_))));
    }
}
