//! From a name to an image in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use http::header::CONTENT_TYPE;

use super::client::{Access, Client, accepted, header};
use super::{Settings, refuse_local, wait_for};
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, Document, MAX_DOCUMENT, Manifest};
use crate::reference::Reference;
use crate::store::{Named, NewImage, Store, Writing};
use crate::work::{Step, Work};

/// How many layers are on their way at once, as with Docker.
const AT_ONCE: usize = 3;

/// Brings an image to the store, whatever is there already left out. It gets its name when all of it is there.
pub fn pull(store: &Arc<Store>, reference: &Reference, settings: &Settings, work: &Work) -> Result<Named> {
    refuse_local(reference)?;
    let own = Work { cancel: work.cancel.child_token(), ..work.clone() };
    let writing = Arc::new(Writing::begin(store)?);
    let image = wait_for(&own, pull_from_any(&writing, reference, settings, &own));
    // What is being unpacked for an image that will not be is not unpacked any further.
    let image = image.inspect_err(|_| own.cancel.cancel())?;
    writing.name(reference, &image)
}

async fn pull_from_any(
    writing: &Arc<Writing>,
    reference: &Reference,
    settings: &Settings,
    work: &Work,
) -> Result<NewImage> {
    let mirrors = settings.mirrors.iter().filter(|mirror| mirror.of == reference.registry());
    for mirror in mirrors {
        let client = Client::new(settings, &mirror.host, reference.repository(), Access::Pull);
        match pull_from(&client, writing, reference, work).await {
            // A mirror that cannot help is no reason not to ask whom it mirrors.
            Err(Error::NotFound(_) | Error::Denied(_) | Error::Unavailable(_)) => {}
            other => return other,
        }
    }
    let client = Client::new(settings, reference.registry(), reference.repository(), Access::Pull);
    pull_from(&client, writing, reference, work).await
}

async fn pull_from(
    client: &Client<'_>,
    writing: &Arc<Writing>,
    reference: &Reference,
    work: &Work,
) -> Result<NewImage> {
    work.progress.step(Step::Asking);
    let what = format!("image {}", reference.familiar());
    let (descriptor, bytes) = ask(client, &tag_or_digest(reference), reference.digest(), &what).await?;
    let (descriptor, bytes, manifest, index) = match Document::parse(&bytes, Some(&descriptor.media_type))? {
        Document::Manifest(manifest) => (descriptor, bytes, manifest, None),
        Document::Index(list) => {
            let chosen = list.choose(&work.platform)?;
            let (descriptor, inner) = ask(client, &chosen.digest.qualified(), Some(chosen.digest), &what).await?;
            if descriptor.size != chosen.size || descriptor.media_type != chosen.media_type {
                return Err(Error::Refused("the manifest is not the one that the list names".to_owned()));
            }
            let Document::Manifest(manifest) = Document::parse(&inner, Some(&descriptor.media_type))? else {
                return Err(Error::Refused("a list of images names another list".to_owned()));
            };
            (descriptor, inner, manifest, Some(bytes))
        }
    };
    let manifest = *manifest;
    manifest.check(&work.limits)?;
    work.progress.step(Step::Downloading);
    work.progress.total(manifest.bytes());
    client.fetch(writing, &manifest.config, work).await?;
    let config = ImageConfig::parse(&writing.store().read_document(&manifest.config)?)?;
    config.check(&manifest, &work.limits)?;
    fetch_layers(client, writing, &manifest, &config, work).await?;
    writing.put_document(&bytes)?;
    let index = index.map(|bytes| writing.put_document(&bytes)).transpose()?;
    Ok(NewImage { descriptor, manifest, config, index })
}

/// Layers do not need each other to be unpacked, so each is as soon as it is there.
async fn fetch_layers(
    client: &Client<'_>,
    writing: &Arc<Writing>,
    manifest: &Manifest,
    config: &ImageConfig,
    work: &Work,
) -> Result<()> {
    let unpacked = Arc::new(AtomicU64::new(0));
    let layers = manifest.layers.iter().zip(config.rootfs.diff_ids.iter().copied());
    let fetching = layers.map(|(layer, diff_id)| {
        let unpacked = unpacked.clone();
        async move {
            client.fetch(writing, layer, work).await?;
            let (writing, layer, work) = (writing.clone(), layer.clone(), work.clone());
            let unpacking = move || {
                let limits = crate::store::remaining(&work.limits, unpacked.load(Ordering::Relaxed));
                let bytes = writing.unpack(diff_id, &layer, &limits, &work.cancel)?;
                if unpacked.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > work.limits.unpacked_bytes {
                    let most = work.limits.unpacked_bytes;
                    return Err(Error::LimitExceeded(format!("its layers have more than {most} bytes")));
                }
                Ok(())
            };
            let done = tokio::task::spawn_blocking(unpacking).await;
            done.map_err(|_| Error::Unavailable("a layer could not be unpacked".to_owned()))?
        }
    });
    stream::iter(fetching).buffer_unordered(AT_ONCE).try_collect().await
}

fn tag_or_digest(reference: &Reference) -> String {
    let digest = reference.digest().map(Digest::qualified);
    digest.or_else(|| reference.tag().map(str::to_owned)).unwrap_or_default()
}

/// A manifest or list, which is what its digest says if one is known.
async fn ask(client: &Client<'_>, name: &str, digest: Option<Digest>, what: &str) -> Result<(Descriptor, Vec<u8>)> {
    let answer = client.get(&client.address(&format!("manifests/{name}"))?, &accepted()).await?;
    if !answer.response.status().is_success() {
        return Err(client.refusal(answer, what).await);
    }
    let media_type = header(&answer, CONTENT_TYPE).unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let media_type = media_type.to_owned();
    let bytes = client.connections.read_all(answer, MAX_DOCUMENT).await?;
    let found = Digest::of(&bytes);
    if digest.is_some_and(|digest| digest != found) {
        return Err(Error::Refused(format!("the registry answers with {} instead", found.qualified())));
    }
    Ok((Descriptor::new(&media_type, found, bytes.len() as u64), bytes))
}
