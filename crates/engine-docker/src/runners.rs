//! Images of the daemon that say by their labels which language they run.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bollard::models::{ImageInspect, ImageSummary};
use sandbox::{ImageName, ImageRunner, ImageRunners, Result};

use crate::Flavour;
use crate::engine::{DockerEngine, Shared};
use crate::image::SAVED;
use crate::joint::Joint;
use crate::reference::Reference;

/// Images that are looked at and remembered, those that are no runners included.
const MOST_KNOWN: usize = 256;

impl DockerEngine {
    /// Those that were made or named on the daemon's host, and those that the operator has named: what a model had fetched
    /// must not take over a language of everybody.
    pub fn runners(&self, is_named: impl Fn(&ImageName) -> bool + Send + Sync + 'static) -> Arc<dyn ImageRunners> {
        let (shared, named) = (Arc::clone(&self.shared), Named(Box::new(is_named)));
        Arc::new(Labelled {
            labels: Arc::new(Labels { shared, named, known: Mutex::default() }),
            found: Joint::default(),
        })
    }
}

#[derive(Debug)]
struct Labelled {
    labels: Arc<Labels>,
    /// Many who ask at once are one question to the daemon.
    found: Joint<Vec<Finding>>,
}

/// The list of images is short and has the labels, so it is asked for anew each time; the rest is not in it, and changes only
/// with the names of an image.
#[derive(Debug)]
struct Labels {
    shared: Arc<Shared>,
    named: Named,
    known: Mutex<HashMap<(String, Vec<String>), Finding>>,
}

#[async_trait]
impl ImageRunners for Labelled {
    async fn list(&self) -> Result<Vec<ImageRunner>> {
        let found = self.look().await?.into_iter().filter_map(std::result::Result::ok);
        Ok(within_bounds(found.map(|found| found.runner)))
    }

    fn is_same(&self, one: &ImageName, other: &ImageName) -> bool {
        Reference::parse(one.as_str()).is_ok_and(|reference| reference.is_called(other.as_str()))
    }

    async fn can_be_had(&self, image: &ImageName) -> Result<bool> {
        let Shared { images, daemon, .. } = &*self.labels.shared;
        images.can_be_had(daemon, &Reference::parse(image.as_str())?).await
    }

    async fn refused(&self) -> Result<Vec<String>> {
        Ok(self.look().await?.into_iter().filter_map(std::result::Result::err).collect())
    }
}

/// A runner, or why an image that says it is one is none.
type Finding = std::result::Result<Found, String>;

#[derive(Clone, Debug)]
struct Found {
    rank: Rank,
    runner: ImageRunner,
}

/// Which of several images for one language counts. What an image says of itself comes after what the operator and the daemon
/// say of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_named: bool,
    /// When it was last built or tagged here. Only Docker knows.
    tagged: String,
    /// Its own word, unless it is from the future.
    created: i64,
    name: Reverse<String>,
}

impl Labelled {
    async fn look(&self) -> Result<Vec<Finding>> {
        self.found.answer(|| Arc::clone(&self.labels).ask()).await
    }
}

impl Labels {
    async fn ask(self: Arc<Self>) -> Result<Vec<Finding>> {
        let images = self.shared.daemon.images().await?;
        let mut found = Vec::new();
        for image in images.iter().filter(|image| is_marked(image)).take(MOST_KNOWN) {
            found.extend(self.finding(image).await?);
        }
        found.sort_by_cached_key(|finding| Reverse(finding.as_ref().ok().map(|found| found.rank.clone())));
        Ok(found)
    }

    async fn finding(&self, image: &ImageSummary) -> Result<Option<Finding>> {
        let mut names = image.repo_tags.clone();
        names.extend_from_slice(&image.repo_digests);
        let key = (image.id.clone(), names);
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Some(known.clone()));
        }
        // One that was removed since it was listed is none.
        let Some(inspected) = self.shared.daemon.image(&image.id).await? else { return Ok(None) };
        let finding = judged(image, inspected, self.shared.config.flavour, &self.named);
        if let Err(why) = &finding {
            tracing::warn!("an image with the label of a runner is left out: {why}");
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(key, finding.clone());
        Ok(Some(finding))
    }
}

/// Says that it is a runner, under names of its own. What was saved of a sandbox has the labels of its image, and is its
/// owner's alone.
fn is_marked(image: &ImageSummary) -> bool {
    let (mark, value) = ImageRunner::MARK;
    image.labels.get(mark).is_some_and(|found| found == value)
        && !image.repo_tags.is_empty()
        && !image.repo_tags.iter().any(|tag| tag.starts_with(SAVED))
}

fn judged(image: &ImageSummary, inspected: ImageInspect, flavour: Flavour, named: &Named) -> Finding {
    let is_built = inspected.identity.is_some_and(|identity| identity.build.is_some_and(|builds| !builds.is_empty()));
    let is_from_here = |tag: &str| match flavour {
        Flavour::Docker => is_built || !has_digest(image, tag),
        Flavour::Podman => Reference::parse(tag).is_ok_and(|reference| reference.registry() == NOWHERE),
    };
    let mut tags: Vec<&String> = image.repo_tags.iter().collect();
    tags.sort_unstable();
    let chosen = tags.iter().find(|tag| named.covers(tag)).map(|tag| (tag, true));
    let Some((tag, is_named)) = chosen.or(tags.iter().find(|tag| is_from_here(tag)).map(|tag| (tag, false))) else {
        let shown = tags.first().map_or("", |tag| tag.as_str());
        return Err(format!("the image {shown} is no runner: it is from a registry and no --runner-image names it"));
    };
    let name: ImageName = tag.parse().map_err(|_| format!("the image {tag} is no runner: no sandbox can name it"))?;
    let config = inspected.config.unwrap_or_default();
    let command = config.entrypoint.into_iter().flatten().chain(config.cmd.into_iter().flatten()).collect();
    let label = |label: &str| image.labels.get(label).map(String::as_str);
    let rank = Rank {
        is_named,
        tagged: inspected.metadata.and_then(|metadata| metadata.last_tag_time).map_or_else(String::new, comparable),
        created: Some(image.created).filter(|created| *created <= now()).unwrap_or(0),
        name: Reverse((*tag).clone()),
    };
    match ImageRunner::from_labels(&name, label, command) {
        Ok(Some(runner)) => Ok(Found { rank, runner }),
        Ok(None) => Err(format!("the image {name} is no runner: it has lost its labels")),
        Err(error) => Err(error.message().to_owned()),
    }
}

/// The registry of names that Podman makes up for what has none. Nothing is fetched from it for sandboxes, see `Images::provide`.
pub(crate) const NOWHERE: &str = "localhost";

/// Docker knows the digest of what a repository has given or was given. A name without one was given on this host.
fn has_digest(image: &ImageSummary, tag: &str) -> bool {
    let Ok(tag) = Reference::parse(tag) else { return true };
    let places = image.repo_digests.iter().filter_map(|digest| Reference::parse(digest).ok());
    places.into_iter().any(|place| place.repository == tag.repository)
}

/// Of the first languages, all images.
fn within_bounds(found: impl Iterator<Item = ImageRunner>) -> Vec<ImageRunner> {
    let mut languages = BTreeSet::new();
    let is_within = |runner: &ImageRunner| {
        let is_known = languages.contains(&runner.language);
        is_known || (languages.len() < ImageRunner::MOST_LANGUAGES && languages.insert(runner.language.clone()))
    };
    found.filter(is_within).collect()
}

/// A daemon's times have one time zone; without it they are in order as text.
fn comparable(time: String) -> String {
    let zone = time.char_indices().skip("0000-00-00T00:00:00".len()).find(|(_, letter)| "Z+-".contains(*letter));
    zone.map_or(time.as_str(), |(at, _)| &time[..at]).to_owned()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// What the operator lets be a runner, wherever it is from.
struct Named(Box<dyn Fn(&ImageName) -> bool + Send + Sync>);

impl Named {
    /// By any of its spellings: Podman writes names out, Docker does not.
    fn covers(&self, tag: &str) -> bool {
        let Ok(reference) = Reference::parse(tag) else { return false };
        reference.spellings().iter().any(|spelling| spelling.parse::<ImageName>().is_ok_and(|name| (self.0)(&name)))
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Named")
    }
}

#[cfg(test)]
#[path = "runners_tests.rs"]
mod tests;
