//! OCI layouts: `oci-layout`, `index.json`, and blobs under their digests.

use serde::Deserialize;

use super::members::Members;
use super::{Imported, Request, read_small};
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, Document, Index, Manifest, is_index};
use crate::reference::Reference;
use crate::store::{NewImage, Writing};
use crate::work::Work;

/// The name as `skopeo` and `docker save` write it, and as containerd does.
pub const TAG: &str = "org.opencontainers.image.ref.name";
pub const FULL_NAME: &str = "io.containerd.image.name";

#[derive(Deserialize)]
struct Mark {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

pub fn import(writing: &Writing, members: &impl Members, request: &Request, work: &Work) -> Result<Imported> {
    let mark: Option<Mark> = serde_json::from_slice(&read_small(members, "oci-layout")?).ok();
    if !mark.is_some_and(|mark| mark.version.starts_with("1.")) {
        return Err(Error::Unsupported("it is an OCI layout of an unknown version".to_owned()));
    }
    let Document::Index(top) = Document::parse(&read_small(members, "index.json")?, None)? else {
        return Err(Error::Refused("its index.json is not a list".to_owned()));
    };
    let chosen = choose(&top, request, work)?;
    let name = name_of(&chosen);
    let (descriptor, bytes, index) = if is_index(&chosen.media_type) {
        let list = read_document(members, &chosen)?;
        let Document::Index(inner) = Document::parse(&list, Some(&chosen.media_type))? else {
            return Err(Error::Refused("a list of images is not one".to_owned()));
        };
        let descriptor = inner.choose(&work.platform)?.clone();
        let bytes = read_document(members, &descriptor)?;
        (descriptor, bytes, Some(list))
    } else {
        let bytes = read_document(members, &chosen)?;
        (chosen, bytes, None)
    };
    let Document::Manifest(manifest) = Document::parse(&bytes, Some(&descriptor.media_type))? else {
        return Err(Error::Refused("an image is a list of images".to_owned()));
    };
    let manifest = *manifest;
    manifest.check(&work.limits)?;
    let image = take(writing, members, descriptor, &bytes, manifest, index.as_deref(), work)?;
    Ok((image, name))
}

fn take(
    writing: &Writing,
    members: &impl Members,
    descriptor: Descriptor,
    bytes: &[u8],
    manifest: Manifest,
    index: Option<&[u8]>,
    work: &Work,
) -> Result<NewImage> {
    let config = read_document(members, &manifest.config)?;
    let parsed = ImageConfig::parse(&config)?;
    parsed.check(&manifest, &work.limits)?;
    for layer in &manifest.layers {
        let member = open(members, layer)?;
        writing.put(work.watch(member), layer, &work.cancel)?;
    }
    writing.put_document(&config)?;
    writing.put_document(bytes)?;
    let index: Option<Digest> = index.map(|bytes| writing.put_document(bytes)).transpose()?;
    let descriptor = Descriptor::new(&descriptor.media_type, descriptor.digest, descriptor.size);
    Ok(NewImage { descriptor, manifest, config: parsed, index })
}

/// The image that was asked for, or the only one.
fn choose(top: &Index, request: &Request, work: &Work) -> Result<Descriptor> {
    let names = |descriptor: &Descriptor| -> Vec<String> {
        let annotation = |key: &str| descriptor.annotations.get(key)?.as_str().map(str::to_owned);
        [TAG, FULL_NAME].iter().filter_map(|key| annotation(key)).collect()
    };
    let is_wanted = |one: &&Descriptor| request.pick.as_ref().is_none_or(|wanted| names(one).contains(wanted));
    let candidates: Vec<Descriptor> = top.manifests.iter().filter(is_wanted).cloned().collect();
    let mut different: Vec<String> = candidates.iter().filter_map(|one| names(one).into_iter().next()).collect();
    different.sort();
    different.dedup();
    match &candidates[..] {
        [] => {
            Err(Error::NotFound(format!("it has no such image, only {}", list(top.manifests.iter().flat_map(names)))))
        }
        [one] => Ok(one.clone()),
        _ if different.len() > 1 => {
            Err(Error::Invalid(format!("it has several images: {}", list(different.into_iter()))))
        }
        _ => {
            let several = Index { manifests: candidates, ..top.clone() };
            several.choose(&work.platform).cloned()
        }
    }
}

/// For a message; whoever wrote the file chose how many there are.
fn list(names: impl Iterator<Item = String>) -> String {
    names
        .take(16)
        .map(|name| format!("{:?}", name.chars().take(100).collect::<String>()))
        .collect::<Vec<_>>()
        .join(", ")
}

fn name_of(descriptor: &Descriptor) -> Option<Reference> {
    let annotation = |key: &str| descriptor.annotations.get(key)?.as_str();
    let full = annotation(FULL_NAME).and_then(|name| name.parse().ok());
    // A tag alone is no name.
    full.or_else(|| annotation(TAG).filter(|tag| tag.contains(['/', ':'])).and_then(|name| name.parse().ok()))
}

fn open(members: &impl Members, descriptor: &Descriptor) -> Result<super::members::Member> {
    let path = format!("blobs/sha256/{}", descriptor.digest.digits());
    let member = members.open(&path)?.ok_or_else(|| Error::Refused(format!("it has no {path:?}")))?;
    if member.size() != descriptor.size {
        let (there, announced) = (member.size(), descriptor.size);
        return Err(Error::Refused(format!("{path:?} has {there} bytes where {announced} are announced")));
    }
    Ok(member)
}

fn read_document(members: &impl Members, descriptor: &Descriptor) -> Result<Vec<u8>> {
    let bytes = open(members, descriptor)?.read_small("a manifest or configuration")?;
    if Digest::of(&bytes) != descriptor.digest {
        return Err(Error::Refused(format!("{} is something else", descriptor.digest.qualified())));
    }
    Ok(bytes)
}
