//! Into the store of images on this machine, for the embedded engine.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use images::{Reference, Store, Work, registry};
use sandbox::{Error, ImageName, Result};
use tokio::sync::{Mutex as Turn, Semaphore};
use tools::{ImageSource, Progress};

use super::News;
use crate::commands::image::{image_error, reference, settings};
use crate::config::Config;

/// By all callers together.
const AT_ONCE: usize = 4;

/// After this a pull is given up; the next one goes on with what has come.
const LONGEST: Duration = Duration::from_secs(30 * 60);

pub struct Pulls {
    directory: PathBuf,
    /// How registries are reached is looked up when one is: a proxy that makes no sense is no matter before.
    config: Config,
    at_once: Arc<Semaphore>,
    /// Whoever wants an image that is under way waits for it and does not fetch it twice.
    turns: Mutex<HashMap<Reference, Arc<Turn<()>>>>,
}

impl Pulls {
    pub fn new(config: &Config) -> Result<Self> {
        Ok(Self {
            directory: config.state_dir()?.join("images"),
            config: config.clone(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            turns: Mutex::default(),
        })
    }

    fn turn(&self, name: &Reference) -> Arc<Turn<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(name.clone()).or_default().clone()
    }

    fn is_here(&self, name: &Reference) -> Result<bool> {
        // Whoever only looks for an image need not make a store.
        if !self.directory.is_dir() {
            return Ok(false);
        }
        let found = Store::open(&self.directory).and_then(|store| store.find(name));
        found.map(|named| named.is_some()).map_err(image_error)
    }
}

#[async_trait]
impl ImageSource for Pulls {
    async fn provide(&self, name: &ImageName, progress: &Arc<dyn Progress>) -> Result<()> {
        let name = reference(name.as_str())?;
        if self.is_here(&name)? {
            return Ok(());
        }
        let settings = settings(&self.config)?;
        let turn = self.turn(&name).lock_owned().await;
        if self.is_here(&name)? {
            return Ok(());
        }
        let ended = |cause| Error::internal("a pull ended unexpectedly").with_cause(cause);
        let permit = self.at_once.clone().acquire_owned().await;
        let news = News::new(name.familiar(), progress);
        let work = Work { progress: Arc::new(news), ..Work::default() };
        let (cancel, directory) = (work.cancel.clone(), self.directory.clone());
        let mut working = tokio::task::spawn_blocking(move || {
            let store = Arc::new(Store::open(&directory)?);
            store.sweep()?;
            registry::pull(&store, &name, &settings, &work).map(drop)
        });
        // On its own: a caller that does not wait so long finds the image when it asks again.
        let pulling = tokio::spawn(async move {
            let _held = (turn, permit);
            let expired = tokio::time::timeout(LONGEST, &mut working).await;
            match expired {
                Ok(joined) => joined,
                Err(_) => {
                    cancel.cancel();
                    working.await
                }
            }
        });
        pulling.await.and_then(|joined| joined).map_err(ended)?.map_err(image_error)
    }
}

impl fmt::Debug for Pulls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulls").field("directory", &self.directory).finish_non_exhaustive()
    }
}
