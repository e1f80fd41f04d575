//! Trees that are made once, by a sandbox, and seen read-only by others: images of one layer, under names of our own.

use async_trait::async_trait;
use images::{ImageConfig, ImageLimits, Local, Named, Reference, Store};
use sandbox::{Attachment, Error, GuestPath, KeptTree, KeptTrees, Result, SandboxId, TreeName};
use tokio_util::sync::CancellationToken;

use crate::engine::{NativeEngine, Shared};
use crate::image::{Bind, Hold, image_error};
use crate::launcher::Tree;
use crate::pack::{NewLayer, blocking};
use crate::wire;

/// Process 1 holds each of them, and the image.
const MOST_ATTACHMENTS: usize = wire::MAX_DESCRIPTORS - 1;

#[async_trait]
impl KeptTrees for NativeEngine {
    async fn keep(&self, id: &SandboxId, path: &GuestPath, name: &TreeName) -> Result<KeptTree> {
        let (live, _inside) = self.shared.enter(id).await?;
        if let Some(kept) = self.kept(name).await? {
            return Ok(kept);
        }
        if path.is_root() && !live.history().layers.is_empty() {
            return Err(Error::unsupported(
                "the changes of a sandbox that was branched or remembered are several layers",
            )
            .with_hint("save it instead"));
        }
        let tree = if path.is_root() { Tree::Changes } else { Tree::Below(path.as_bytes().to_vec()) };
        let layer = self.shared.pack(&live, tree).await?;
        let name = name.clone();
        blocking(move || name_tree(&layer, &name)).await
    }

    async fn kept(&self, name: &TreeName) -> Result<Option<KeptTree>> {
        let (reference, name) = (reference(name)?, name.clone());
        let find = move |store: &Store| match store.find(&reference).map_err(image_error)? {
            Some(named) => described(store, name, &named).map(Some),
            None => Ok(None),
        };
        self.shared.with_store(find).await.map(Option::flatten)
    }

    async fn list_kept(&self, prefix: &str) -> Result<Vec<KeptTree>> {
        let prefix = prefix.to_owned();
        let list = move |store: &Store| {
            let named = store.names().map_err(image_error)?;
            let ours = named.iter().filter_map(|named| Some((Local::Tree.name(&named.reference)?, named)));
            let wanted = ours.filter(|(name, _)| name.starts_with(&prefix));
            wanted.map(|(name, named)| described(store, name.parse()?, named)).collect()
        };
        self.shared.with_store(list).await.map(Option::unwrap_or_default)
    }

    async fn drop_kept(&self, name: &TreeName) -> Result<bool> {
        let reference = reference(name)?;
        let drop = move |store: &Store| {
            let was_there = store.remove_name(&reference).map_err(image_error)?;
            // Whoever uses it holds it; what is left then is collected another time.
            store.collect().map(|_| was_there).map_err(image_error)
        };
        self.shared.with_store(drop).await.map(Option::unwrap_or_default)
    }
}

impl Shared {
    /// Do something with the store of images on a thread that may block; nothing when there is none yet.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let images = self.places.images.clone();
        blocking(move || match images.is_dir() {
            true => Store::open(&images).map_err(image_error).and_then(|store| work(&store)).map(Some),
            false => Ok(None),
        })
        .await
    }

    /// The trees that a sandbox wants to see, in use as long as the answers are kept.
    pub(crate) async fn attachments(&self, wanted: &[Attachment]) -> Result<Vec<(Bind, Hold)>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        if wanted.len() > MOST_ATTACHMENTS {
            return Err(Error::limit_exceeded(format!("at most {MOST_ATTACHMENTS} trees can be attached")));
        }
        let wanted = wanted.to_vec();
        let hold = move |store: &Store| wanted.iter().map(|attachment| attach(store, attachment)).collect();
        self.with_store(hold).await?.ok_or_else(|| Error::not_found("no tree is kept here"))
    }
}

fn attach(store: &Store, attachment: &Attachment) -> Result<(Bind, Hold)> {
    let missing = || Error::not_found(format!("the tree {} is not kept here", attachment.tree));
    let image = store.resolve(&reference(&attachment.tree)?).map_err(image_error)?.ok_or_else(missing)?;
    let layer = image.layers.first().ok_or_else(missing)?;
    Ok((Bind { source: layer.path.clone(), target: attachment.at.clone() }, Hold::new(image)))
}

fn reference(name: &TreeName) -> Result<Reference> {
    Local::Tree.reference(name.as_str()).map_err(image_error)
}

fn name_tree(NewLayer { writing, descriptor, .. }: &NewLayer, name: &TreeName) -> Result<KeptTree> {
    let (limits, cancel) = (ImageLimits::default(), CancellationToken::new());
    let reference = reference(name)?;
    let config = ImageConfig::bare(vec![descriptor.digest]);
    let image = writing.assemble(config, vec![descriptor.clone()], &limits).map_err(image_error)?;
    writing.unpack_all(&image, &limits, &cancel).map_err(image_error)?;
    // Somebody else may have made the same meanwhile.
    let named = match writing.store().find(&reference).map_err(image_error)? {
        Some(named) => named,
        None => writing.name(&reference, &image).map_err(image_error)?,
    };
    described(writing.store(), name.clone(), &named)
}

/// The digest is the layer's: as it is not compressed, that of its contents too.
fn described(store: &Store, name: TreeName, named: &Named) -> Result<KeptTree> {
    let (manifest, _) = store.describe(&named.manifest).map_err(image_error)?;
    let layer = manifest.layers.first().ok_or_else(|| Error::internal(format!("the kept tree {name} is none")))?;
    Ok(KeptTree { name, digest: layer.digest.qualified(), bytes: layer.size })
}
