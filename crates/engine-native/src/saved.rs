//! Sandboxes as images: what a sandbox was made from, and one more layer with all that it has changed.
//!
//! They have names of our own in the store, one place for each owner.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use images::{Descriptor, ImageConfig, ImageLimits, Named, Reference, Store, Writing, local};
use sandbox::{Error, GuestPath, Owner, Result, SandboxId, SandboxSpec, SavedImage, SavedName, Snapshots};
use serde_json::json;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use crate::ahead;
use crate::base::Base;
use crate::engine::{NativeEngine, Shared};
use crate::image::{BASE_LABEL, HOST_BASE, Hold, LAYERS_LABEL, image_error, own_layers};
use crate::live::Live;
use crate::pack::{NewLayer, blocking};

/// How many things there were that no image can hold.
const LEFT_OUT_LABEL: &str = "org.sandpen.left-out";
/// What labels of ours begin with.
const OUR_LABELS: &str = "org.sandpen.";
/// By how much it is more than what the sandbox was made from.
const BYTES_LABEL: &str = "org.sandpen.bytes";

#[async_trait]
impl Snapshots for NativeEngine {
    async fn save(&self, id: &SandboxId, name: &SavedName) -> Result<SavedImage> {
        let (live, _unchanged) = self.shared.unchanged(id).await?;
        let base = base_of(&live)?;
        let layers = self.shared.pack_all(&live).await?;
        let (owner, name) = (live.description.owner.clone(), name.clone());
        let work_directory = live.description.work_directory.clone();
        blocking(move || {
            let named = name_image(&layers, &base, &work_directory, &reference(&owner, &name)?)?;
            described(writing_of(&layers)?.store(), name, &named)
        })
        .await
    }

    async fn saved(&self, owner: &Owner) -> Result<Vec<SavedImage>> {
        let owner = owner.clone();
        let list = move |store: &Store| {
            let named = store.names().map_err(image_error)?;
            let own =
                named.iter().filter_map(|named| Some((local::saved_by(owner.as_str(), &named.reference)?, named)));
            own.map(|(name, named)| described(store, name.parse()?, named)).collect()
        };
        self.shared.with_store(list).await.map(Option::unwrap_or_default)
    }

    async fn forget(&self, owner: &Owner, name: &SavedName) -> Result<bool> {
        let reference = reference(owner, name)?;
        let forget = move |store: &Store| {
            let was_there = store.remove_name(&reference).map_err(image_error)?;
            store.collect().map(|_| was_there).map_err(image_error)
        };
        self.shared.with_store(forget).await.map(Option::unwrap_or_default)
    }

    async fn fork(&self, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.shared.fork(id, new, spec).await
    }
}

impl Shared {
    /// A sandbox that is not restarted as long as the answer is kept; commands come and go.
    async fn unchanged(&self, id: &SandboxId) -> Result<(Arc<Live>, OwnedMutexGuard<()>)> {
        loop {
            let live = self.live(id).await?;
            ahead::dismiss(&live).await;
            let changing = live.changing.clone().lock_owned().await;
            // While we waited it may have been restarted or ended.
            if self.is_current(&live) {
                return Ok((live, changing));
            }
        }
    }

    /// The image that an owner saved under this name, in use as long as the answer is kept.
    pub(crate) async fn hold_saved(&self, owner: &Owner, name: &SavedName) -> Result<Hold> {
        let reference = reference(owner, name)?;
        let found = self.with_store(move |store| store.resolve(&reference).map_err(image_error)).await?.flatten();
        found.map(Hold::new).ok_or_else(|| Error::not_found(format!("there is no saved image {name}")))
    }
}

fn reference(owner: &Owner, name: &SavedName) -> Result<Reference> {
    local::saved(owner.as_str(), name.as_str()).map_err(image_error)
}

/// What an image of this sandbox begins with.
pub(crate) fn base_of(live: &Live) -> Result<Base> {
    match live.description.base.clone() {
        Some(Base::Tree) => Err(made_from_a_tree()),
        None => Err(Error::unsupported("the sandbox was made by a version that did not write down from what")
            .with_hint("create another and copy what is needed to it")),
        Some(base) => Ok(base),
    }
}

/// An image of these layers, the lowest first, over what they were made from.
pub(crate) fn name_image(
    layers: &[NewLayer],
    base: &Base,
    work_directory: &GuestPath,
    name: &Reference,
) -> Result<Named> {
    let (limits, writing) = (ImageLimits::default(), writing_of(layers)?);
    let (mut config, layers) = with_layers(base, layers, writing.store())?;
    // Ours need not be told, and what the image says of its own may be the name of a link.
    if *work_directory != GuestPath::workspace() {
        config.config.working_dir = work_directory.to_string_lossy().into_owned();
    }
    let image = writing.assemble(config, layers, &limits).map_err(image_error)?;
    writing.unpack_all(&image, &limits, &CancellationToken::new()).map_err(image_error)?;
    writing.name(name, &image).map_err(image_error)
}

/// What keeps the newest of them, and the store that all of them are in.
pub(crate) fn writing_of(layers: &[NewLayer]) -> Result<&Writing> {
    layers.last().map(|layer| &layer.writing).ok_or_else(|| Error::internal("there is no layer to save"))
}

/// All that the base says of itself stays, and the layers lie on top of its own.
fn with_layers(base: &Base, new: &[NewLayer], store: &Store) -> Result<(ImageConfig, Vec<Descriptor>)> {
    let (mut config, mut layers, in_upper) = match base {
        Base::Tree => return Err(made_from_a_tree()),
        Base::Host => {
            let mut config = ImageConfig::bare(Vec::new());
            config.config.labels.insert(BASE_LABEL.to_owned(), HOST_BASE.to_owned());
            (config, Vec::new(), 0)
        }
        Base::Image { manifest, in_upper, saved } => {
            let (manifest, mut config) = store.describe(manifest).map_err(image_error)?;
            // What somebody else's image says in our words is not believed of what is saved over it.
            if !saved {
                config.config.labels.retain(|label, _| !label.starts_with(OUR_LABELS));
            }
            (config, manifest.layers, *in_upper)
        }
    };
    let own = own_layers(&config).saturating_sub(in_upper) + new.len();
    // Those that were put into the writable layer came out of it again with all that is new.
    let replaced = layers.split_off(layers.len().saturating_sub(in_upper));
    let bytes = |layers: &mut dyn Iterator<Item = &Descriptor>| layers.map(|layer| layer.size).sum::<u64>();
    let more = bytes(&mut new.iter().map(|layer| &layer.descriptor)).saturating_sub(bytes(&mut replaced.iter()));
    layers.extend(new.iter().map(|layer| layer.descriptor.clone()));
    let diff_ids = &mut config.rootfs.diff_ids;
    diff_ids.truncate(diff_ids.len().saturating_sub(in_upper));
    diff_ids.extend(new.iter().map(|layer| layer.descriptor.digest));
    config.history.truncate(config.history.len().saturating_sub(in_upper));
    config.history.extend(new.iter().map(|_| json!({"created_by": "sandpen save"})));
    config.created = None;
    let numbers = [
        (LAYERS_LABEL, own as u64),
        (LEFT_OUT_LABEL, new.iter().map(|layer| layer.left_out).sum()),
        (BYTES_LABEL, more),
    ];
    config.config.labels.extend(numbers.map(|(label, number)| (label.to_owned(), number.to_string())));
    Ok((config, layers))
}

fn made_from_a_tree() -> Error {
    Error::unsupported("a sandbox that was made from a directory or an archive cannot be saved")
        .with_hint("import the archive as an image, and make sandboxes from that")
}

fn described(store: &Store, name: SavedName, named: &Named) -> Result<SavedImage> {
    let (_, config) = store.describe(&named.manifest).map_err(image_error)?;
    let number = |label: &str| config.config.labels.get(label).and_then(|number| number.parse().ok()).unwrap_or(0);
    Ok(SavedImage {
        name,
        digest: named.manifest.digest.qualified(),
        bytes: number(BYTES_LABEL),
        saved_at: SystemTime::UNIX_EPOCH + Duration::from_secs(named.added),
        left_out: number(LEFT_OUT_LABEL),
    })
}
