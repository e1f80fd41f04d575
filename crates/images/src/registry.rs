//! Images from and to registries.
//!
//! The client is our own, on hyper and rustls, which the server needs anyway. The crate that was considered, oci-client
//! 0.18, brings 33 crates that we do not have, reqwest and a regular-expression engine among them. It reads manifests
//! whole however long they are, and leaves redirects to a library that cannot be told that a named host alone may be
//! spoken to in the clear. Going on with half a layer after another process, mirrors, and logins would be ours anyway, and
//! what is left is not much more than the requests themselves.
//!
//! Calls block, and do their own input and output on a small runtime of their own: they belong on a thread that may wait.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

pub use self::proxy::Proxies;
pub use self::pull::pull;
pub use self::push::push;
pub use crate::credentials::{Credentials, Login};
use crate::error::{Error, Result};
pub use crate::mirror::Mirror;
use crate::reference::Reference;
use crate::work::Work;

mod address;
mod authorization;
mod challenge;
mod client;
mod connection;
mod fetch;
mod proxy;
mod pull;
mod push;

/// How registries are reached.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Hosts that are spoken to without encryption. Nobody else is, whatever they answer.
    pub insecure: BTreeSet<String>,
    pub mirrors: Vec<Mirror>,
    pub credentials: Credentials,
    pub proxies: Proxies,
    /// How long a registry may be silent.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            insecure: BTreeSet::new(),
            mirrors: Vec::new(),
            credentials: Credentials::none(),
            proxies: Proxies::default(),
            patience: Duration::from_secs(60),
        }
    }
}

/// Names of our own are not asked for in the world: a resolver that answers for hosts that cannot be would learn them, and
/// a mirror could put something else in their place.
fn refuse_local(reference: &Reference) -> Result<()> {
    if !reference.is_local() {
        return Ok(());
    }
    let familiar = reference.familiar();
    Err(Error::Invalid(format!("{familiar} is a name for images that were made on this machine, no registry has them")))
}

/// Waits for a future that is given up as soon as the work is.
fn wait_for<T>(work: &Work, future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("starting to talk to a registry"))?;
    runtime.block_on(async {
        tokio::select! {
            done = future => done,
            () = work.cancel.cancelled() => Err(Error::Cancelled),
        }
    })
}
