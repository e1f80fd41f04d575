//! A directory as one stream: the sandbox's own tar, or the same as a ZIP.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method};
use sandbox::Owner;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::io::{ReaderStream, SyncIoBridge};

use super::Target;
use super::download::{PIECE, unknown_archive};
use super::failure::{Answer, Failure};
use super::served;
use super::zip::{Facts, ZipWriter, plain_name};

/// Each needs a thread of its own, and memory for the names in it.
const ZIPS_AT_ONCE: usize = 16;

/// Who reads slowly keeps others waiting only for so many.
const ZIPS_OF_OWNER: usize = 2;

/// Pieces of a ZIP that wait for whoever reads it.
const WAITING: usize = 4;

/// Who has how many under way.
#[derive(Debug, Default)]
pub struct Places(Mutex<HashMap<Owner, usize>>);

/// One that is under way.
struct Place {
    places: Arc<Places>,
    owner: Owner,
}

impl Places {
    fn take(self: &Arc<Self>, owner: &Owner) -> Option<Place> {
        let mut taken = self.lock();
        if taken.values().sum::<usize>() >= ZIPS_AT_ONCE || taken.get(owner).is_some_and(|of| *of >= ZIPS_OF_OWNER) {
            return None;
        }
        *taken.entry(owner.clone()).or_default() += 1;
        Some(Place { places: self.clone(), owner: owner.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(of) = taken.get_mut(&self.owner) {
            *of -= 1;
            if *of == 0 {
                taken.remove(&self.owner);
            }
        }
    }
}

pub async fn get(target: &Target, format: &str, parts: &Parts, places: &Arc<Places>) -> Answer {
    let kind = match format {
        "tar" => HeaderValue::from_static("application/x-tar"),
        "zip" => HeaderValue::from_static("application/zip"),
        _ => return Err(unknown_archive(format)),
    };
    // Before anything is packed: what is not there is no archive.
    target.files.stat(&target.path).await?;
    let body = match format {
        _ if parts.method == Method::HEAD => Body::empty(),
        "tar" => Body::from_stream(ReaderStream::with_capacity(target.files.pack(&target.path).await?, PIECE)),
        _ => {
            let busy = || Failure::Busy("too many archives are being made; come back soon");
            let place = places.take(&target.info.owner).ok_or_else(busy)?;
            zipped(target.files.pack(&target.path).await?, place)
        }
    };
    let name = target.path.file_name().unwrap_or(b"sandbox");
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    let name = [name, b".", format.as_bytes()].concat();
    response.headers_mut().insert(CONTENT_DISPOSITION, served::attachment(&name));
    Ok(response)
}

/// What reads and packs blocks, so it has a thread; it ends with whoever reads, or with the sandbox.
fn zipped(tree: Box<dyn AsyncRead + Send + Unpin>, place: Place) -> Body {
    let (sender, receiver) = mpsc::channel(WAITING);
    let tree = SyncIoBridge::new(tree);
    tokio::task::spawn_blocking(move || {
        let _place = place;
        let output = Pieces { sender: sender.clone(), piece: Vec::with_capacity(PIECE) };
        if let Err(error) = zip(tree, output) {
            // The stream breaks off, and whoever reads it sees that.
            let _ = sender.blocking_send(Err(error));
        }
    });
    Body::from_stream(ReceiverStream::new(receiver))
}

fn zip(tree: impl Read, output: impl Write) -> io::Result<()> {
    let mut zip = ZipWriter::new(output);
    let mut tree = tar::Archive::new(io::BufReader::with_capacity(PIECE, tree));
    for entry in tree.entries()? {
        let entry = entry?;
        let name = plain_name(&entry.path_bytes());
        let name = name.trim_start_matches("./");
        let facts = Facts { mode: entry.header().mode()?, modified: entry.header().mtime()? };
        match entry.header().entry_type() {
            _ if name.is_empty() => {}
            tar::EntryType::Directory => zip.directory(name, facts)?,
            tar::EntryType::Symlink => zip.link(name, facts, &entry.link_name_bytes().unwrap_or_default())?,
            tar::EntryType::Regular => zip.file(name, facts, entry.size(), entry)?,
            // Nothing else is ever packed.
            _ => {}
        }
    }
    // The end of the stream says whether all of it was packed.
    io::copy(&mut tree.into_inner(), &mut io::sink())?;
    zip.finish()
}

/// Writes in pieces to whoever reads.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_some_places_and_leaves_the_rest() {
        let places = Arc::new(Places::default());
        let take = |number: usize| places.take(&format!("owner-{number}").parse().unwrap());
        let held: Vec<_> = (0..ZIPS_OF_OWNER).map(|_| take(0).unwrap()).collect();
        assert!(take(0).is_none() && take(1).is_some());
        let all: Vec<_> = (1..=ZIPS_AT_ONCE).map_while(take).collect();
        assert_eq!(all.len() + held.len(), ZIPS_AT_ONCE);
        drop(held);
        assert!(take(0).is_some());
        drop(all);
        assert!(places.lock().is_empty());
    }
}
