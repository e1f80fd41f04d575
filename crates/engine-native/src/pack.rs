//! Trees of sandboxes as layers in the store: the launcher's child reads them, the server only stores what comes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use images::manifest::OCI_LAYER;
use images::store::NewBlob;
use images::{Descriptor, Store, Writing};
use rustix::pipe::PipeFlags;
use sandbox::{Error, Result};
use tokio_util::sync::CancellationToken;

use crate::create::unavailable;
use crate::engine::Shared;
use crate::image::image_error;
use crate::jail::Failure;
use crate::launcher::{PackFailure, PackRequest, PackedTree, Tree};
use crate::live::{Live, not_found};
use crate::plan;

/// A layer that is in the store and has no name yet; nothing is collected as long as this is there.
#[derive(Debug)]
pub struct NewLayer {
    pub writing: Writing,
    pub descriptor: Descriptor,
    /// What no image can hold.
    pub left_out: u64,
}

impl Shared {
    /// Pack the tree of a sandbox into the store. Whoever drops this gives it up, and nothing of it stays.
    pub(crate) async fn pack(&self, live: &Live, tree: Tree) -> Result<NewLayer> {
        let request = PackRequest {
            tree,
            namespaces: plan::namespaces(&live.description.walls),
            most_bytes: live.description.limits.disk.bytes(),
        };
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| unavailable(error.into()))?;
        let asked = self.launcher()?.pack(request.clone(), live.process(), theirs.as_fd()).await;
        let asked = asked.map_err(unavailable)?;
        // What is read ends when the last writer is gone.
        drop(theirs);
        let given_up = CancellationToken::new();
        let _guard = given_up.clone().drop_guard();
        let images = self.places.images.clone();
        let received = blocking(move || receive(&images, ours, &given_up)).await;
        let launcher_gone =
            || Error::unavailable("the engine's launcher has ended").with_hint("start the program again");
        let answer = asked.await.map_err(|_| launcher_gone())?;
        // When the store has no room, the packer only sees that nobody reads: what we know ourselves goes first.
        let (writing, blob) = received?;
        let packed = answer.map_err(|failure| not_packed(&failure, &request.tree, live))?;
        blocking(move || finish(writing, blob, packed)).await
    }
}

impl Shared {
    /// All that is different from what a sandbox started with: a layer for each that is frozen, and one for what came
    /// after, the lowest first.
    pub(crate) async fn pack_all(&self, live: &Live) -> Result<Vec<NewLayer>> {
        let mut layers = Vec::new();
        for index in 0..live.history().layers.len() {
            layers.push(self.pack(live, Tree::Frozen(index)).await?);
        }
        layers.push(self.pack(live, Tree::Changes).await?);
        Ok(layers)
    }
}

fn receive(images: &Path, pipe: OwnedFd, given_up: &CancellationToken) -> Result<(Writing, NewBlob)> {
    let store = Arc::new(Store::open(images).map_err(image_error)?);
    let writing = Writing::begin(&store).map_err(image_error)?;
    let mut blob = writing.begin_blob(u64::MAX).map_err(image_error)?;
    let mut pipe = File::from(pipe);
    let mut buffer = vec![0; 256 << 10];
    loop {
        if given_up.is_cancelled() {
            return Err(image_error(images::Error::Cancelled));
        }
        let count = pipe.read(&mut buffer).map_err(no_room)?;
        if count == 0 {
            return Ok((writing, blob));
        }
        blob.write_all(&buffer[..count]).map_err(no_room)?;
    }
}

fn finish(writing: Writing, blob: NewBlob, packed: PackedTree) -> Result<NewLayer> {
    let size = blob.size();
    let digest = writing.finish_blob(blob).map_err(image_error)?;
    if (digest, size) != (packed.digest, packed.size) {
        return Err(Error::internal("what came is not what was packed"));
    }
    Ok(NewLayer { writing, descriptor: Descriptor::new(OCI_LAYER, digest, size), left_out: packed.left_out })
}

fn no_room(cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::limit_exceeded("there is no room for it in the store of images")
                .with_hint("remove images that are not needed")
        }
        _ => Error::unavailable("the store of images cannot be written to"),
    }
    .with_cause(cause)
}

fn not_packed(failure: &PackFailure, tree: &Tree, live: &Live) -> Error {
    match failure {
        PackFailure::NoDirectory => {
            let path = match tree {
                Tree::Changes | Tree::Frozen(_) => "/".into(),
                Tree::Below(path) => String::from_utf8_lossy(path),
            };
            Error::not_found(format!("there is no directory {path} in the sandbox"))
        }
        PackFailure::TooLarge(what) => {
            Error::limit_exceeded(format!("the tree is more than an image may hold: {what}"))
                .with_hint("files with holes count as if they had none")
        }
        PackFailure::Changed(what) => {
            Error::wrong_state(what.clone()).with_hint("try again when nothing is written to it")
        }
        PackFailure::Unsupported(what) => Error::unsupported(what.clone()),
        PackFailure::Step(Failure { errno: libc::ESRCH, .. }) => not_found(live.id()),
        PackFailure::Step(Failure { step, errno, subject }) => {
            let cause = format!("{subject}: {}", io::Error::from_raw_os_error(*errno));
            Error::internal(format!("the tree of the sandbox could not be read (at step {step})")).with_cause(cause)
        }
    }
}

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|cause| Error::internal("the store of images could not be used").with_cause(cause))?
}
