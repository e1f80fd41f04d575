//! Images that stages start from or copy from: of the store, fetched when they are not there.

use std::sync::Arc;

use images::{Platform, Reference, Work, registry};
use sandbox::{Error, Result};

use super::executor::{Executor, ended};
use super::stage::StageImage;
use super::{Bases, News, image_error};

impl Executor<'_> {
    pub async fn image(&self, name: &str) -> Result<StageImage> {
        let reference: Reference = name.parse().map_err(image_error)?;
        // Those are names of our own, for what is somebody's or half done.
        if reference.is_local() {
            return Err(not_here(&reference));
        }
        let found = self.store().find(&reference).map_err(image_error)?;
        // A name with a digest means the same whenever it is fetched.
        let is_fixed = reference.digest().is_some();
        let named = match (found, self.request.bases) {
            (Some(named), Bases::Missing) => named,
            (Some(named), Bases::Always) if is_fixed => named,
            (_, Bases::Missing | Bases::Always) => self.pull(&reference).await?,
        };
        let (manifest, config) = self.store().describe(&named.manifest).map_err(image_error)?;
        let machine = Platform::host();
        if config.platform.fitness(&machine).is_none() {
            let made_for = &config.platform;
            return Err(Error::unsupported(format!(
                "the image {} is made for {made_for}, and this machine is {machine}",
                reference.familiar()
            )));
        }
        let triggers = config.config.other.get("OnBuild").and_then(|triggers| triggers.as_array());
        if triggers.is_some_and(|triggers| !triggers.is_empty()) {
            let name = reference.familiar();
            return Err(Error::unsupported(format!("the image {name} has ONBUILD instructions, which are not known"))
                .with_hint("write them into the Dockerfile, or start from another image"));
        }
        Ok(StageImage::of_image(config, manifest.layers))
    }

    async fn pull(&self, reference: &Reference) -> Result<images::Named> {
        let settings = self.workshop.registries.clone().ok_or_else(|| not_here(reference))?;
        self.watcher.news(News::Pulling(reference));
        let work = Work { progress: self.watcher.pull_progress(), cancel: self.cancel.clone(), ..Work::default() };
        let (store, wanted) = (Arc::clone(self.store()), reference.clone());
        let pulling = tokio::task::spawn_blocking(move || registry::pull(&store, &wanted, &settings, &work)).await;
        let named = pulling.map_err(ended)?.map_err(crate::commands::image::image_error);
        if named.is_ok() {
            self.watcher.news(News::Pulled(reference));
        }
        named
    }
}

fn not_here(reference: &Reference) -> Error {
    Error::not_found(format!("there is no image {} here", reference.familiar()))
        .with_hint("sandpen image ls shows what is here")
}
