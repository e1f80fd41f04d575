//! Fetching an image: the daemon does it, with the login that the user has, and says how far it is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as ClientError;
use bollard::models::CreateImageInfo;
use futures_util::StreamExt;
use sandbox::{Error, ErrorKind, Result};

use crate::client::{Daemon, Failure, credentials, shortened};
use crate::reference::Reference;
use crate::{Login, Logins};

/// A pull that says nothing for this long is given up.
const SILENCE: Duration = Duration::from_secs(120);

/// What a daemon says while it fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullProgress {
    pub status: String,
    /// The layer that this is about.
    pub layer: Option<String>,
    pub bytes: Option<(u64, u64)>,
}

/// Somebody who wants to see images come.
pub trait PullWatcher: fmt::Debug + Send + Sync {
    /// An image may have to be fetched. What is returned hears how far it is, and is dropped when that is over.
    fn begin(&self, image: &str) -> Box<dyn Fn(PullProgress) + Send + Sync>;
}

/// With all that it needs, because it outlives who began it when others wait for it too.
pub(crate) struct Pull {
    pub daemon: Daemon,
    pub reference: Reference,
    pub logins: Option<Arc<dyn Logins>>,
}

impl Pull {
    /// To its end. Dropping it gives the pull up, and the daemon keeps no part of it that has a name.
    pub async fn follow(self, progress: &(dyn Fn(PullProgress) + Send + Sync)) -> Result<()> {
        let Self { daemon, reference, logins } = &self;
        let login = login(logins.clone(), reference.registry()).await?;
        let known = if login.is_some() { Known::Login } else { Known::Nobody };
        let login = login.map(|login| credentials(reference.registry(), login));
        let mut said = Box::pin(daemon.pull(&reference.repository, reference.version(), login));
        loop {
            // A registry may take its time, and the daemon says nothing meanwhile; one that hangs says nothing to anybody.
            let next = async { Ok(tokio::time::timeout(SILENCE, said.next()).await) };
            match daemon.unless_hanging(next).await? {
                Ok(None) => return Ok(()),
                Ok(Some(Ok(info))) => progress(heard(info)),
                Ok(Some(Err(failure))) => return Err(not_pulled(daemon, failure, reference, known)),
                Err(_) => {
                    let title = daemon.flavour().title();
                    let seconds = SILENCE.as_secs();
                    return Err(Error::unavailable(format!(
                        "the image {reference} does not come: the {title} daemon has said nothing for {seconds} s"
                    ))
                    .with_hint("look at the daemon's log"));
                }
            }
        }
    }
}

/// Whether the registry was told who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Login,
    Nobody,
}

async fn login(logins: Option<Arc<dyn Logins>>, registry: &str) -> Result<Option<Login>> {
    let Some(logins) = logins else { return Ok(None) };
    let asked = registry.to_owned();
    let found = tokio::task::spawn_blocking(move || logins.find(&asked)).await;
    found.map_err(|cause| Error::internal("a login could not be looked up").with_cause(cause))?
}

fn heard(info: CreateImageInfo) -> PullProgress {
    let bytes = info.progress_detail.and_then(|detail| {
        let count = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        Some((count(detail.current)?, count(detail.total)?))
    });
    PullProgress { status: info.status.unwrap_or_default(), layer: info.id, bytes }
}

fn not_pulled(daemon: &Daemon, failure: Failure, reference: &Reference, known: Known) -> Error {
    let words = match &failure {
        Failure::Client(ClientError::DockerResponseServerError { message, .. }) => message.clone(),
        Failure::Client(ClientError::DockerStreamError { error }) => error.clone(),
        Failure::Client(_) | Failure::Slow => return daemon.told("fetch an image", failure),
    };
    let registry = reference.registry();
    let title = daemon.flavour().title();
    let error = match verdict(&words) {
        Some(ErrorKind::Denied) => {
            let who = match known {
                Known::Login => "the login that Docker has for it is not taken",
                Known::Nobody => "no login for it is known",
            };
            Error::denied(format!("the registry {registry} does not give out {reference}, and {who}"))
                .with_hint(format!("log in by `docker login {registry}`, or check the name of the image"))
        }
        Some(ErrorKind::NotFound) => Error::not_found(format!("the registry {registry} has no image {reference}"))
            .with_hint(format!("`{} images` shows those that are there", daemon.flavour().as_str())),
        Some(ErrorKind::Unavailable) => Error::unavailable(format!(
            "the image {reference} cannot be fetched: the {title} daemon does not reach the registry {registry}"
        ))
        .with_hint("what counts is the daemon's own network, and its settings for proxies and registries"),
        _ => daemon.told("fetch an image", failure),
    };
    error.with_cause(shortened(&words))
}

/// Daemons have one status for all of these, and their registries' words.
fn verdict(words: &str) -> Option<ErrorKind> {
    let words = words.to_ascii_lowercase();
    let says = |any: &[&str]| any.iter().any(|phrase| words.contains(phrase));
    if says(&["unauthorized", "no basic auth credentials", "authentication required", "access denied", "denied:"]) {
        Some(ErrorKind::Denied)
    } else if says(&["manifest unknown", "not found", "name unknown", "no such image"]) {
        Some(ErrorKind::NotFound)
    } else if says(&["dial tcp", "no such host", "i/o timeout", "connection refused", "tls:", "x509", "http response"])
    {
        Some(ErrorKind::Unavailable)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_registries_are_told_apart() {
        for (words, kind) in [
            ("Get http://127.0.0.1:5000/v2/a/manifests/1: no basic auth credentials", Some(ErrorKind::Denied)),
            (
                "pull access denied for a, repository does not exist or may require 'docker login'",
                Some(ErrorKind::Denied),
            ),
            ("unable to retrieve auth token: invalid username/password: unauthorized: x", Some(ErrorKind::Denied)),
            ("manifest for a:2 not found: manifest unknown: manifest unknown", Some(ErrorKind::NotFound)),
            (
                "Get \"https://registry-1.docker.io/v2/\": dial tcp: lookup registry-1.docker.io: no such host",
                Some(ErrorKind::Unavailable),
            ),
            (
                "pinging container registry a: http: server gave HTTP response to HTTPS client",
                Some(ErrorKind::Unavailable),
            ),
            ("write /var/lib/docker/tmp/x: no space left on device", None),
        ] {
            assert_eq!(verdict(words), kind, "{words}");
        }
    }
}
