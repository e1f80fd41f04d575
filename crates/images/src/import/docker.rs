//! What `docker save` wrote before it wrote layouts, and what `podman save` still does.

use serde::Deserialize;

use super::members::{Member, Members};
use super::{Imported, Request, media_type, read_small};
use crate::config::ImageConfig;
use crate::error::{Error, Result};
use crate::manifest::Descriptor;
use crate::meter::Compression;
use crate::reference::Reference;
use crate::store::Writing;
use crate::work::Work;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Saved {
    fn names(&self) -> &[String] {
        self.repo_tags.as_deref().unwrap_or_default()
    }
}

pub fn import(writing: &Writing, members: &impl Members, request: &Request, work: &Work) -> Result<Imported> {
    let several: Vec<Saved> = serde_json::from_slice(&read_small(members, "manifest.json")?)
        .map_err(|error| Error::Refused(format!("its manifest.json is not in order ({error})")))?;
    let saved = choose(&several, request)?;
    if saved.layers.len() > work.limits.layers {
        return Err(Error::LimitExceeded(format!("it has {} layers", saved.layers.len())));
    }
    let config = read_small(members, &saved.config)?;
    let parsed = ImageConfig::parse(&config)?;
    if parsed.rootfs.diff_ids.len() != saved.layers.len() {
        return Err(Error::Refused("it has more or fewer layers than it describes".to_owned()));
    }
    let mut layers = Vec::new();
    let mut bytes = 0u64;
    for path in &saved.layers {
        let mut member = open(members, path)?;
        bytes = bytes.saturating_add(member.size());
        if bytes > work.limits.transfer_bytes {
            return Err(Error::LimitExceeded("its layers have too many bytes".to_owned()));
        }
        let kind = compression(&mut member)?;
        let (digest, size) = writing.put_file(&mut member, &work.cancel)?;
        work.progress.advance(size);
        layers.push(Descriptor::new(media_type(kind), digest, size));
    }
    let image = writing.assemble_from(&config, layers, &work.limits)?;
    Ok((image, saved.names().first().and_then(|name| name.parse::<Reference>().ok())))
}

fn choose<'a>(several: &'a [Saved], request: &Request) -> Result<&'a Saved> {
    let wanted = |saved: &&Saved| request.pick.as_ref().is_none_or(|wanted| saved.names().contains(wanted));
    let candidates: Vec<&Saved> = several.iter().filter(wanted).collect();
    let list = || {
        let names = several.iter().flat_map(Saved::names).take(16).map(|name| format!("{name:?}"));
        names.collect::<Vec<_>>().join(", ")
    };
    match candidates[..] {
        [one] => Ok(one),
        [] => Err(Error::NotFound(format!("it has no such image, only {}", list()))),
        _ => Err(Error::Invalid(format!("it has several images: {}", list()))),
    }
}

fn open(members: &impl Members, path: &str) -> Result<Member> {
    members.open(path)?.ok_or_else(|| {
        let shown: String = path.chars().take(100).collect();
        Error::Refused(format!("it has no {shown:?}"))
    })
}

fn compression(member: &mut Member) -> Result<Compression> {
    use std::io::{Read, Seek};
    let mut start = Vec::new();
    let read = member.take(4).read_to_end(&mut start).and_then(|_| member.rewind());
    read.map_err(Error::io("reading a layer"))?;
    Compression::of(&start)
}
