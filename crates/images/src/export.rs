//! Images to files: an OCI layout, which `skopeo` reads, with the list that `docker load` wants beside it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use serde_json::{Value, json};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::import::{FULL_NAME, TAG};
use crate::manifest::{Descriptor, OCI_INDEX};
use crate::store::{Image, Store};
use crate::work::{Step, Work};

/// Writes the image as one archive.
pub fn to_archive(store: &Store, image: &Image, writer: impl Write, work: &Work) -> Result<()> {
    work.progress.step(Step::Writing);
    work.progress.total(image.manifest.bytes());
    let mut builder = tar::Builder::new(writer);
    let doing = || Error::io("writing the archive");
    for (name, text) in documents(image) {
        builder.append_data(&mut header(text.len() as u64), name, text.as_bytes()).map_err(doing())?;
    }
    // Readers that make missing directories themselves do it as root, and fail if they are not.
    for directory in ["blobs/", "blobs/sha256/"] {
        let mut header = header(0);
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        builder.append_data(&mut header, directory, io::empty()).map_err(doing())?;
    }
    for blob in blobs(image) {
        let file = store.open_blob(blob.digest)?;
        builder.append_data(&mut header(blob.size), path(blob.digest), work.watch(file)).map_err(doing())?;
        work.check()?;
    }
    builder.into_inner().and_then(|mut writer| writer.flush()).map_err(doing())
}

/// Writes the image to a file that was not there, or was something that may be lost. It appears whole or not at all.
pub fn to_file(store: &Store, image: &Image, path: &Path, work: &Work) -> Result<()> {
    let doing = || Error::io(format!("writing {}", path.display()));
    let temporary = beside(path)?;
    let file = File::options().write(true).create_new(true).mode(0o666).open(&temporary).map_err(doing())?;
    let mut writer = io::BufWriter::with_capacity(1 << 20, file);
    let written = to_archive(store, image, &mut writer, work)
        .and_then(|()| writer.get_ref().sync_all().map_err(doing()))
        .and_then(|()| std::fs::rename(&temporary, path).map_err(doing()));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Writes the image to a directory that was not there.
pub fn to_directory(store: &Store, image: &Image, path: &Path, work: &Work) -> Result<()> {
    work.progress.step(Step::Writing);
    work.progress.total(image.manifest.bytes());
    if path.symlink_metadata().is_ok() {
        return Err(Error::Invalid(format!("{} is there already", path.display())));
    }
    let temporary = beside(path)?;
    let doing = || Error::io(format!("writing {}", path.display()));
    let written =
        fill(store, image, &temporary, work).and_then(|()| std::fs::rename(&temporary, path).map_err(doing()));
    if written.is_err() {
        let _ = std::fs::remove_dir_all(&temporary);
    }
    written
}

fn fill(store: &Store, image: &Image, directory: &Path, work: &Work) -> Result<()> {
    let doing = || Error::io(format!("writing {}", directory.display()));
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o777).create(directory.join("blobs/sha256")).map_err(doing())?;
    for (name, text) in documents(image) {
        std::fs::write(directory.join(name), text).map_err(doing())?;
    }
    for blob in blobs(image) {
        let mut file = File::create_new(directory.join(self::path(blob.digest))).map_err(doing())?;
        let mut reader = work.watch(store.open_blob(blob.digest)?);
        let mut buffer = vec![0; 128 * 1024];
        loop {
            let count = reader.read(&mut buffer).map_err(|error| work.check().err().unwrap_or(doing()(error)))?;
            if count == 0 {
                break;
            }
            file.write_all(&buffer[..count]).map_err(doing())?;
        }
    }
    Ok(())
}

/// A name for what is not finished, on the same file system.
fn beside(path: &Path) -> Result<std::path::PathBuf> {
    let name = path.file_name().ok_or_else(|| Error::Invalid(format!("{} is not a file", path.display())))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.unfinished", std::process::id()));
    Ok(path.with_file_name(temporary))
}

/// The manifest, the configuration and the layers, each once.
fn blobs(image: &Image) -> Vec<&Descriptor> {
    let mut blobs: Vec<&Descriptor> = vec![&image.named.manifest, &image.manifest.config];
    for layer in &image.manifest.layers {
        if !blobs.iter().any(|blob| blob.digest == layer.digest) {
            blobs.push(layer);
        }
    }
    blobs
}

fn documents(image: &Image) -> [(&'static str, String); 3] {
    let reference = &image.named.reference;
    let mut one = image.named.manifest.clone();
    one.platform = Some(image.named.platform.clone());
    one.annotations.insert(FULL_NAME.to_owned(), reference.to_string().into());
    if let Some(tag) = reference.tag() {
        one.annotations.insert(TAG.to_owned(), tag.into());
    }
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [one]});
    // A name with a digest is none that Docker would give an image.
    let names: Vec<String> = reference.digest().is_none().then(|| reference.familiar()).into_iter().collect();
    let layers: Vec<String> = image.manifest.layers.iter().map(|layer| path(layer.digest)).collect();
    let list = json!([{"Config": path(image.manifest.config.digest), "RepoTags": names, "Layers": layers}]);
    let text = |value: Value| value.to_string();
    [
        ("oci-layout", text(json!({"imageLayoutVersion": "1.0.0"}))),
        ("index.json", text(index)),
        ("manifest.json", text(list)),
    ]
}

fn path(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.digits())
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}
