//! The embedded engine and what only it has: its store of images, packages for its sandboxes, exports of them.
//!
//! Everything else in this crate reaches it by way of here, because only Linux has it.

use std::ffi::OsString;
use std::sync::Arc;

use engine_native::{NativeConfig, NativeEngine, Reopen};
use sandbox::{InstanceId, Powers, Recovery, Result, SandboxService};
use tools::{Exporter, ImageSource, Policy};

pub use crate::commands::image::{Pulled, pull_missing};
use crate::config::Config;
use crate::export::{Exports, Fetching, KnownBases, Terms};
use crate::packages;
use crate::pulls::Pulls;
use crate::wiring::{Built, Outlet};

/// The first thing that the program does: a launcher must never become anything else.
pub fn launcher_main_if_asked() {
    engine_native::launcher_main_if_asked();
}

/// Before the words are understood: a launcher that turns out not to be needed ends unnoticed, and for the commands
/// that make sandboxes it is ready sooner.
pub fn start_ahead(arguments: &[OsString]) {
    let names_engine = |word: &OsString| word.as_encoded_bytes().starts_with(b"--engine");
    let is_usual_engine = std::env::var_os("SANDPEN_ENGINE").is_none() && !arguments.iter().any(names_engine);
    if is_usual_engine && arguments.iter().any(|word| word == "run" || word == "create") {
        engine_native::start_launcher_ahead();
    }
}

pub(crate) async fn engine(
    config: &Config,
    outlet: &Outlet,
    instance: &InstanceId,
    spares: usize,
    recovery: Recovery,
) -> Result<Built> {
    let gateway = Arc::clone(&outlet.gateway);
    let native = NativeConfig {
        allow_missing: config.allow_missing.clone(),
        spares,
        reopen: match recovery {
            Recovery::BeforeStart => Reopen::WhenListed,
            Recovery::InBackground => Reopen::AtFirstStart,
        },
        ..NativeConfig::new(config.state_dir()?.to_owned(), instance.clone(), gateway)
    };
    let engine = Arc::new(NativeEngine::start(native).await?);
    let powers = Powers {
        snapshots: Some(engine.clone()),
        checkpoints: Some(engine.clone()),
        trees: Some(engine.clone()),
        connections: Some(engine.clone()),
    };
    let images: Arc<dyn ImageSource> = Arc::new(Pulls::new(config)?);
    let package_images = packages::Images::Here(config.state_dir()?.to_owned());
    Ok(Built { engine, powers, image_runners: None, images: Some(images), package_images })
}

/// Exports are put together here for daemons too.
pub fn exporter(
    service: &SandboxService,
    config: &Config,
    policy: &Arc<Policy>,
    images: packages::Images,
) -> Result<Option<Arc<dyn Exporter>>> {
    // A base that is missing was fetched before, as images of sandboxes are.
    let (fetching, timeout) = (Fetching::Nothing, policy.longest_timeout);
    let terms = Terms { fetching, timeout, bases: KnownBases::OfPolicy(Arc::clone(policy)), images };
    Ok(Some(Arc::new(Exports::new(service, config, terms)?)))
}
