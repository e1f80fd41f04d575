//! Images that are made to measure with, and removed from the store afterwards.

use std::fs::{self, File};
use std::io::{BufWriter, Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use images::manifest::OCI_LAYER;
use images::{Descriptor, Digest, ImageConfig, Reference, Store, Work, Writing};
use sandbox::{Error, Image, Result};

use super::program::ask;
use crate::commands::image::image_error;
use crate::config::Config;

/// The store with images of ours in it, until this is dropped.
#[derive(Debug)]
pub struct Stock {
    store: Arc<Store>,
    names: Vec<Reference>,
}

impl Stock {
    pub fn open(config: &Config) -> Result<Self> {
        let store = Store::open(&config.state_dir()?.join("images")).map_err(image_error)?;
        Ok(Self { store: Arc::new(store), names: Vec::new() })
    }

    /// As many layers as that. The lowest has a program with its libraries, the others a file each.
    pub fn layers(&mut self, program: &str, count: usize) -> Result<Image> {
        let mut layers = vec![archive_of(program)?];
        for number in 1..count {
            let mut archive = tar::Builder::new(Vec::new());
            add(&mut archive, &format!("srv/{number}"), format!("layer {number}").as_bytes()).map_err(unwritten)?;
            layers.push(archive.into_inner().map_err(unwritten)?);
        }
        self.add("layers", |writing| {
            for layer in &layers {
                writing.put_file(&mut Cursor::new(layer), &Work::default().cancel)?;
            }
            Ok(layers.iter().map(|layer| (Digest::of(layer), layer.len() as u64)).collect())
        })
    }

    /// One layer with files of this size in all.
    pub fn of_size(&mut self, name: &str, bytes: u64) -> Result<Image> {
        let path = self.store.directory().join(format!("bench-{}.tar", std::process::id()));
        let made = write_files(&path, bytes).map_err(unwritten).and_then(|()| {
            self.add(name, |writing| {
                let mut file = File::open(&path).map_err(images::Error::io("reading what was made to measure with"))?;
                writing.put_file(&mut file, &Work::default().cancel).map(|layer| vec![layer])
            })
        });
        let _ = fs::remove_file(path);
        made
    }

    fn add(&mut self, name: &str, put: impl FnOnce(&Writing) -> images::Result<Vec<(Digest, u64)>>) -> Result<Image> {
        let name = format!("localhost/sandpen-bench-{}/{name}:1", std::process::id());
        let reference: Reference = name.parse().map_err(image_error)?;
        self.names.push(reference.clone());
        let work = Work::default();
        let add = || {
            let writing = Writing::begin(&self.store)?;
            let layers = put(&writing)?;
            let config = ImageConfig::bare(layers.iter().map(|(digest, _)| *digest).collect());
            let blobs = layers.iter().map(|(digest, size)| Descriptor::new(OCI_LAYER, *digest, *size)).collect();
            let image = writing.assemble(config, blobs, &work.limits)?;
            writing.unpack_all(&image, &work.limits, &work.cancel)?;
            writing.name(&reference, &image)
        };
        add().map_err(image_error)?;
        Ok(Image::Named(name.parse()?))
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = self.store.remove_name(name);
        }
        let _ = self.store.collect();
    }
}

fn write_files(path: &Path, bytes: u64) -> std::io::Result<()> {
    const FILE: u64 = 4 << 20;
    let mut archive = tar::Builder::new(BufWriter::new(File::create(path)?));
    let (contents, mut left, mut number) = (vec![0; FILE as usize], bytes, 0);
    while left > 0 {
        let size = left.min(FILE);
        add(&mut archive, &format!("srv/{number}"), &contents[..size as usize])?;
        (left, number) = (left - size, number + 1);
    }
    archive.into_inner()?.flush()
}

/// A program of the host and the libraries that it needs, where it looks for them.
fn archive_of(program: &str) -> Result<Vec<u8>> {
    let needed = ask("ldd", &[program])?;
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    let mut archive = tar::Builder::new(Vec::new());
    for path in libraries.chain([PathBuf::from(program)]) {
        let contents = fs::read(&path).map_err(unwritten)?;
        add(&mut archive, &path.to_string_lossy(), &contents).map_err(unwritten)?;
    }
    archive.into_inner().map_err(unwritten)
}

fn add(archive: &mut tar::Builder<impl Write>, name: &str, contents: &[u8]) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(contents.len() as u64);
    archive.append_data(&mut header, name.trim_start_matches('/'), contents)
}

fn unwritten(cause: std::io::Error) -> Error {
    Error::unavailable("no image can be made to measure with").with_cause(cause)
}
