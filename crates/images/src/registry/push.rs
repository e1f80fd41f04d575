//! From the store to a registry.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

use super::client::{Access, Client, header};
use super::connection::{Body, no_body};
use super::{Settings, refuse_local, wait_for};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::Descriptor;
use crate::reference::Reference;
use crate::store::{Image, Store};
use crate::work::{Step, Work};

const MOST_TRIES: u32 = 3;

/// Brings an image to a registry under a name there. Returns the digest under which it can be had from now on.
pub fn push(
    store: &Arc<Store>,
    image: &Image,
    reference: &Reference,
    settings: &Settings,
    work: &Work,
) -> Result<Digest> {
    refuse_local(reference)?;
    wait_for(work, push_all(store, image, reference, settings, work))
}

async fn push_all(
    store: &Store,
    image: &Image,
    reference: &Reference,
    settings: &Settings,
    work: &Work,
) -> Result<Digest> {
    let manifest = &image.named.manifest;
    if reference.digest().is_some_and(|digest| digest != manifest.digest) {
        return Err(Error::Invalid("the name to push to has the digest of another image".to_owned()));
    }
    let client = Client::new(settings, reference.registry(), reference.repository(), Access::Push);
    work.progress.step(Step::Uploading);
    work.progress.total(image.manifest.bytes());
    for blob in image.manifest.layers.iter().chain([&image.manifest.config]) {
        upload(&client, store, blob, work).await?;
    }
    let name = reference.tag().map_or_else(|| manifest.digest.qualified(), str::to_owned);
    let bytes = Bytes::from(store.read_document(manifest)?);
    let address = client.address(&format!("manifests/{name}"))?;
    let headers = [(CONTENT_TYPE, manifest.media_type.clone())];
    let body = || Full::new(bytes.clone()).map_err(|never| match never {}).boxed_unsync();
    let answer = client.send(&Method::PUT, &address, &headers, body).await?;
    if !answer.response.status().is_success() {
        return Err(client.refusal(answer, &format!("room for {}", reference.familiar())).await);
    }
    Ok(manifest.digest)
}

async fn upload(client: &Client<'_>, store: &Store, blob: &Descriptor, work: &Work) -> Result<()> {
    let there = client.head(&client.address(&format!("blobs/{}", blob.digest.qualified()))?).await?;
    if there.response.status() == StatusCode::OK {
        client.connections.finish(there);
        work.progress.advance(blob.size);
        return Ok(());
    }
    drop(there);
    for attempt in 1.. {
        match upload_once(client, store, blob, work).await {
            Err(Error::Unavailable(_)) if attempt < MOST_TRIES => {
                tokio::time::sleep(Duration::from_millis(200 << attempt)).await;
            }
            other => return other,
        }
    }
    Ok(())
}

async fn upload_once(client: &Client<'_>, store: &Store, blob: &Descriptor, work: &Work) -> Result<()> {
    let what = || format!("room for {}", blob.digest.qualified());
    let begin = client.address("blobs/uploads/")?;
    let answer = client.send(&Method::POST, &begin, &[(CONTENT_LENGTH, "0".to_owned())], no_body).await?;
    if answer.response.status() != StatusCode::ACCEPTED {
        return Err(client.refusal(answer, &what()).await);
    }
    let location = header(&answer, LOCATION).unwrap_or_default().to_owned();
    let place = begin.join(&location)?.with_query("digest", &blob.digest.qualified());
    if begin.origin.encrypted && !place.origin.encrypted {
        return Err(Error::Refused("the registry wants a layer to be sent in the clear".to_owned()));
    }
    client.connections.read_all(answer, 1 << 16).await?;
    let headers = [(CONTENT_LENGTH, blob.size.to_string()), (CONTENT_TYPE, "application/octet-stream".to_owned())];
    let file = store.open_blob(blob.digest)?;
    let body = || match file.try_clone() {
        Ok(file) => stream_of(file, work.clone()),
        Err(_) => no_body(),
    };
    let answer = client.send(&Method::PUT, &place, &headers, body).await?;
    if answer.response.status() != StatusCode::CREATED {
        return Err(client.refusal(answer, &what()).await);
    }
    Ok(())
}

/// The file in parts, each read when the last is on its way.
fn stream_of(file: File, work: Work) -> Body {
    let parts = stream::try_unfold((file, 0), move |(file, offset)| {
        let work = work.clone();
        async move {
            let mut buffer = vec![0; 128 * 1024];
            let count = std::os::unix::fs::FileExt::read_at(&file, &mut buffer, offset)?;
            buffer.truncate(count);
            work.progress.advance(count as u64);
            Ok((count > 0).then(|| (Frame::data(Bytes::from(buffer)), (file, offset + count as u64))))
        }
    });
    StreamBody::new(parts).boxed_unsync()
}
