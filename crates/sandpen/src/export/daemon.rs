//! The same for sandboxes of a daemon, which has the images and builds. What a sandbox changed is in a few places, so those are
//! all that is fetched and compared.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_docker::{DockerEngine, ExportBase, ExportSource};
use images::difference::{Interest, Sides, Tree};
use images::manifest::OCI_LAYER;
use images::{Descriptor, ImageLayer, Reference, Store, Writing};
use sandbox::{Error, History, Image as Origin, ImageName, Owner, Result, SandboxInfo};
use tokio_util::sync::CancellationToken;
use tools::export::Outcome;

use super::base::{Asked, Base, OwnLayers, blocking, no_base};
use super::verify::{self, Verified};
use super::{Exports, Fetching};
use crate::commands::image::image_error;
use crate::config::Config;
use crate::random;

/// A sandbox at its daemon.
pub struct Side {
    engine: Arc<DockerEngine>,
    source: ExportSource,
    /// What the Dockerfile begins with, if the daemon has it.
    base: Option<ExportBase>,
    /// Where archives lie while they are written.
    directory: PathBuf,
}

/// Where layers are put together: apart from the images of the embedded engine, and never named.
pub fn open_store(config: &Config) -> Result<Arc<Store>> {
    let directory = config.state_dir()?.join("docker").join("images");
    Ok(Arc::new(Store::open(&directory).map_err(image_error)?))
}

/// What a sandbox has over the image that its Dockerfile is to begin with.
pub async fn find(
    exports: &Exports,
    engine: &Arc<DockerEngine>,
    owner: &Owner,
    sandbox: &SandboxInfo,
    history: &History,
    asked: Option<&ImageName>,
) -> Result<Base> {
    let store = Arc::clone(&exports.store);
    // What earlier exports left.
    blocking(move || store.collect()).await?;
    let source = engine.export_source(&sandbox.id).await?;
    let (reference, base) = match asked {
        Some(name) => {
            let Asked { reference, is_known } = Asked::new(name, &exports.bases)?;
            let base = if is_known { named(engine, name, exports.fetching).await? } else { None };
            (reference, base)
        }
        None => {
            let called = match &history.image {
                Origin::Named(name) => Some(name.as_str()),
                Origin::Host | Origin::Saved(_) | Origin::Directory(_) | Origin::Archive(_) => None,
            };
            let base = engine.export_base(&source, called, &|name| exports.bases.admits(name)).await?;
            let Some(base) = base else {
                return Err(no_base(&*exports.service.files(owner, &sandbox.id)?, &history.image).await);
            };
            let reference: Reference = base.name.parse().map_err(image_error)?;
            (reference, Some(base))
        }
    };
    let file = passing_file(&exports.directory)?;
    engine.export_layer(&source, base.as_ref(), shared(&file)?).await?;
    let store = Arc::clone(&exports.store);
    let (layer, writing, tree) = blocking(move || {
        let writing = Writing::begin(&store)?;
        let layer = put(&writing, file)?;
        let tree = Tree::read(&store, std::slice::from_ref(&layer), Interest::All, &CancellationToken::new())?;
        Ok((layer, writing, tree))
    })
    .await?;
    let (user, group) = source.user();
    Ok(Base {
        from: reference.familiar(),
        digest: base.as_ref().and_then(|base| base.digest.clone()),
        reference,
        environment: base.as_ref().map(|base| base.environment.clone()).unwrap_or_default(),
        layers: OwnLayers::Written { layer: Box::new(layer), _writing: writing },
        tree,
        user: (user.into(), group.into()),
        daemon: Some(Side { engine: Arc::clone(engine), source, base, directory: exports.directory.clone() }),
    })
}

impl Side {
    /// Has the daemon build a Dockerfile that copies and does nothing else, and compares what the sandbox can write to.
    pub async fn verify(
        &self,
        store: &Arc<Store>,
        base: &Arc<Base>,
        dockerfile: &str,
        context: &Path,
        cancel: &CancellationToken,
    ) -> Result<Verified> {
        if let Some(why) = self.why_not(dockerfile) {
            return Ok(Verified::Outcome(Outcome::NotChecked(why.to_owned())));
        }
        let archive = passing_file(&self.directory)?;
        let built = self.engine.begin_build()?;
        let (file, text, context) = (shared(&archive)?, built.marked(dockerfile), context.to_owned());
        blocking(move || pack(file, &text, &context).map_err(images::Error::io("packing the build context"))).await?;
        let built = self.engine.build(built, tokio::fs::File::from_std(archive)).await?;
        let compared = self.compare(store, base, &built.name, cancel).await;
        built.end().await?;
        Ok(Verified::Outcome(verify::told(compared?)))
    }

    /// What is built upon to be compared: that very image, because a name may have moved to another since it was looked at.
    pub fn checked_base(&self) -> Option<&str> {
        self.base.as_ref().map(ExportBase::id)
    }

    fn why_not(&self, dockerfile: &str) -> Option<&'static str> {
        let runs_something = dockerfile.lines().any(|line| line.starts_with("RUN "));
        match &self.base {
            None => Some("the daemon does not have the image to build from"),
            Some(base) if base.has_triggers => Some("the image to build from has commands run by every build"),
            Some(_) if runs_something => {
                Some("files are removed by commands, which a daemon runs outside of sandboxes")
            }
            Some(_) => None,
        }
    }

    async fn compare(
        &self,
        store: &Arc<Store>,
        base: &Arc<Base>,
        built: &str,
        cancel: &CancellationToken,
    ) -> Result<images::difference::Comparison> {
        let (wanted, made) = (passing_file(&self.directory)?, passing_file(&self.directory)?);
        self.engine.export_trees(&self.source, shared(&wanted)?).await?;
        self.engine.export_trees_of(&self.source, built, shared(&made)?).await?;
        let (store, base, cancel) = (Arc::clone(store), Arc::clone(base), cancel.clone());
        blocking(move || {
            let writing = Writing::begin(&store)?;
            let (wanted, made) = (put(&writing, wanted)?, put(&writing, made)?);
            let sides = Sides { below: &[], wanted: std::slice::from_ref(&wanted), made: std::slice::from_ref(&made) };
            verify::compare_sides(&store, &base, sides, &cancel)
        })
        .await
    }
}

async fn named(engine: &DockerEngine, name: &ImageName, fetching: Fetching) -> Result<Option<ExportBase>> {
    let found = engine.export_base_named(name).await?;
    match (found, fetching) {
        (None, Fetching::Missing) => {
            engine.pull(name, &|_| {}).await?;
            engine.export_base_named(name).await
        }
        (found, Fetching::Missing | Fetching::Nothing) => Ok(found),
    }
}

/// The context with the Dockerfile that is to be built, from its beginning.
fn pack(file: File, dockerfile: &str, context: &Path) -> io::Result<()> {
    let mut builder = tar::Builder::new(file);
    builder.follow_symlinks(false);
    builder.append_dir_all(".", context)?;
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(dockerfile.len() as u64);
    builder.append_data(&mut header, "Dockerfile", dockerfile.as_bytes())?;
    io::Seek::rewind(&mut builder.into_inner()?)
}

/// An archive as a layer of the store.
fn put(writing: &Writing, mut file: File) -> images::Result<ImageLayer> {
    io::Seek::rewind(&mut file).map_err(images::Error::io("reading an archive"))?;
    let (digest, size) = writing.put_file(&mut file, &CancellationToken::new())?;
    Ok(ImageLayer { diff_id: digest, blob: Descriptor::new(OCI_LAYER, digest, size), path: PathBuf::new() })
}

/// A file that is gone with its last reader.
fn passing_file(directory: &Path) -> Result<File> {
    let make = || -> io::Result<File> {
        std::fs::create_dir_all(directory)?;
        let place = directory.join(random::digits().map_err(io::Error::other)?);
        let file = File::options().read(true).write(true).create_new(true).open(&place)?;
        std::fs::remove_file(&place)?;
        Ok(file)
    };
    make().map_err(|cause| Error::unavailable("the export cannot be written").with_cause(cause))
}

/// For somebody else to write to; both are at the same place of it.
fn shared(file: &File) -> Result<File> {
    file.try_clone().map_err(|cause| Error::unavailable("the export cannot be written").with_cause(cause))
}
