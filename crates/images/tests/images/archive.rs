//! Archives and images made entry by entry, with everything that a well-behaved writer would refuse to write.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use images::manifest::{OCI_CONFIG, OCI_LAYER, OCI_LAYER_GZIP, OCI_MANIFEST};
use images::{Digest, ImageConfig};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

pub struct Archive {
    builder: Builder<Vec<u8>>,
    owner: (u64, u64),
}

impl Archive {
    pub fn new() -> Self {
        Self { builder: Builder::new(Vec::new()), owner: (0, 0) }
    }

    /// Of the entries that follow.
    pub fn owned_by(mut self, user: u64, group: u64) -> Self {
        self.owner = (user, group);
        self
    }

    pub fn entry(mut self, kind: EntryType, path: &str, link: &str, contents: &[u8], mode: u32) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(contents.len() as u64);
        header.set_mode(mode);
        header.set_mtime(1_000_000_000);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.builder.append(&header, contents).unwrap();
        self
    }

    pub fn file(self, path: &str, contents: &str) -> Self {
        self.entry(EntryType::Regular, path, "", contents.as_bytes(), 0o644)
    }

    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, "", b"", mode)
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, target, b"", 0o777)
    }

    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, target, b"", 0o644)
    }

    pub fn extended(mut self, key: &str, value: &[u8]) -> Self {
        self.builder.append_pax_extensions([(key, value)]).unwrap();
        self
    }

    pub fn bytes(self) -> Vec<u8> {
        self.builder.into_inner().unwrap()
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn hex(digest: Digest) -> String {
    digest.qualified()["sha256:".len()..].to_owned()
}

/// An OCI layout, right in every way until a test changes a part of it.
pub struct Layout {
    pub blobs: Vec<(String, Vec<u8>)>,
    pub index: Value,
    pub manifest: Value,
    pub config: Value,
    pub mark: Value,
}

impl Layout {
    /// Of plain layers, the lowest first.
    pub fn new(layers: &[Vec<u8>]) -> Self {
        Self::of(layers.iter().map(|layer| (layer.clone(), Digest::of(layer), OCI_LAYER)).collect())
    }

    /// Of one layer that is compressed.
    pub fn gzipped(layer: &[u8]) -> Self {
        Self::of(vec![(gzip(layer), Digest::of(layer), OCI_LAYER_GZIP)])
    }

    pub fn of(layers: Vec<(Vec<u8>, Digest, &str)>) -> Self {
        let config = ImageConfig::bare(layers.iter().map(|(_, diff_id, _)| *diff_id).collect());
        let config: Value = serde_json::from_slice(&config.to_bytes()).unwrap();
        let described: Vec<Value> =
            layers.iter().map(|(bytes, _, kind)| descriptor(kind, Digest::of(bytes), bytes.len())).collect();
        let blobs = layers.into_iter().map(|(bytes, _, _)| (hex(Digest::of(&bytes)), bytes)).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": described});
        Self { blobs, index: Value::Null, manifest, config, mark: json!({"imageLayoutVersion": "1.0.0"}) }
    }

    /// Config, manifest and index as they follow from each other, unless a test has set them.
    pub fn finish(mut self) -> Self {
        let config = self.config.to_string().into_bytes();
        if self.manifest.get("config").is_none() {
            self.manifest["config"] = descriptor(OCI_CONFIG, Digest::of(&config), config.len());
        }
        let manifest = self.manifest.to_string().into_bytes();
        if self.index.is_null() {
            let one = descriptor(OCI_MANIFEST, Digest::of(&manifest), manifest.len());
            self.index = json!({"schemaVersion": 2, "manifests": [one]});
        }
        self.blobs.push((hex(Digest::of(&config)), config));
        self.blobs.push((hex(Digest::of(&manifest)), manifest));
        self
    }

    pub fn tar(self) -> Vec<u8> {
        let layout = self.finish();
        let mut archive =
            Archive::new().file("oci-layout", &layout.mark.to_string()).file("index.json", &layout.index.to_string());
        for (name, bytes) in &layout.blobs {
            archive = archive.entry(EntryType::Regular, &format!("blobs/sha256/{name}"), "", bytes, 0o644);
        }
        archive.bytes()
    }

    pub fn write_to(self, directory: &std::path::Path) {
        let layout = self.finish();
        std::fs::create_dir_all(directory.join("blobs/sha256")).unwrap();
        std::fs::write(directory.join("oci-layout"), layout.mark.to_string()).unwrap();
        std::fs::write(directory.join("index.json"), layout.index.to_string()).unwrap();
        for (name, bytes) in layout.blobs {
            std::fs::write(directory.join("blobs/sha256").join(name), bytes).unwrap();
        }
    }
}

pub fn descriptor(media_type: &str, digest: Digest, size: usize) -> Value {
    json!({"mediaType": media_type, "digest": digest.qualified(), "size": size})
}
