//! What is there, and what the dead have left: asked of the daemon, which knows.
//!
//! What an installation left is cleared away by its own next process. Where there is none any more, because its directory of
//! state was deleted, what runs ends by itself; what was never started would stay for ever, and is cleared away by anybody
//! once it is so old that nobody can be about to start it. What is persistent is never anybody else's to clear away.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};
use futures_util::StreamExt;
use sandbox::{EngineSandbox, Persistence, Result, SandboxId};

use crate::engine::Shared;
use crate::record::Description;
use crate::stopped::Condition;
use crate::{carrier, record};

/// A daemon may take long to say that it does not remove one, and the others are not to wait for that.
const AT_ONCE: usize = 8;

/// Nothing takes this long from a container's making to its start, or to the end of one that is never started.
const FORSAKEN: Duration = Duration::from_secs(24 * 60 * 60);

/// What to do about a container that carries our installation's label.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// A persistent sandbox that runs.
    Listed(EngineSandbox),
    /// A persistent one that does not run: whether and how it has ended has to be looked at. One that was never started may be
    /// somebody's who lives and is about to.
    LookedAt {
        id: SandboxId,
        is_awaited: bool,
    },
    /// Somebody who lives takes care of it, or it is not ours after all.
    Left,
    Removed,
}

impl Shared {
    /// Persistent sandboxes of this installation, after what dead processes left behind was removed.
    pub async fn look_around(&self) -> Result<Vec<EngineSandbox>> {
        let installation = &self.places.installation;
        // Before the containers: each is written when its container is there.
        let keepsakes = self.places.keepsakes.all();
        let sandboxes = self.daemon.list("label", record::INSTALLATION).await?;
        let carriers = self.daemon.list("name", carrier::ANY).await?;
        let is_alive = |instance: &str| instance == self.config.instance.as_str() || self.places.is_alive(instance);
        let mut listed = Vec::new();
        let mut left_behind = Vec::new();
        for container in &sandboxes {
            let verdict = match is_of(container, installation) {
                true => verdict(container, is_alive),
                false => foreign_verdict(container, SystemTime::now()),
            };
            match verdict {
                Verdict::Listed(sandbox) => listed.push(sandbox),
                Verdict::LookedAt { id, is_awaited } => listed.extend(self.resting(&id, is_awaited).await?),
                Verdict::Left => {}
                Verdict::Removed => left_behind.extend(container.id.clone()),
            }
        }
        left_behind.extend(carriers.iter().filter_map(|container| {
            let (theirs, instance) = carrier::made_by(name(container)?)?;
            let is_left = match theirs == installation {
                true => !is_alive(instance),
                false => is_forsaken(container, SystemTime::now()),
            };
            container.id.clone().filter(|_| is_left)
        }));
        let has_container = |id: &SandboxId| {
            let named = |container: &ContainerSummary| container.labels.as_ref()?.get(record::ID).cloned();
            sandboxes.iter().filter_map(named).any(|named| named == id.as_str())
        };
        for id in keepsakes.iter().filter(|id| !has_container(id)) {
            self.places.keepsakes.forget(id);
        }
        let removals = futures_util::stream::iter(&left_behind);
        removals.for_each_concurrent(AT_ONCE, |container| self.remove_left_behind(container)).await;
        self.drop_orphans(is_alive).await?;
        self.sweep_volumes().await?;
        self.sweep_checkpoints().await?;
        if let Err(error) = self.drop_left_builds().await {
            // Sandboxes are not to be unknown because of that.
            tracing::warn!(?error, "images that exports have left are not looked for");
        }
        self.places.forget_the_dead();
        if self.retired.swap(false, Ordering::Relaxed) {
            self.drop_all_retired().await?;
        }
        Ok(listed)
    }

    /// A persistent sandbox that rests; one that has ended, or that nobody starts any more, is removed.
    async fn resting(&self, id: &SandboxId, is_awaited: bool) -> Result<Option<EngineSandbox>> {
        let Some((found, description)) = self.find(id).await? else { return Ok(None) };
        let rest = match Condition::of(&found, &description) {
            Condition::Runs => None,
            Condition::Rests(rest) => Some(rest),
            Condition::Made if is_awaited => return Ok(None),
            Condition::Made | Condition::Ended => {
                if let Err(error) = self.remove_whole(&record::container_name(id), &description).await {
                    tracing::warn!(?error, %id, "a sandbox that has ended cannot be removed");
                }
                return Ok(None);
            }
        };
        Ok(Some(EngineSandbox { rest, ..listed(description) }))
    }

    /// One that the daemon does not let go of must not hide the others, and is tried again at the next look.
    async fn remove_left_behind(&self, container: &str) {
        if let Err(error) = self.daemon.remove(container).await {
            tracing::warn!(?error, container, "a container that was left behind cannot be removed");
        }
    }
}

fn is_of(container: &ContainerSummary, installation: &str) -> bool {
    container.labels.as_ref().and_then(|labels| labels.get(record::INSTALLATION)).is_some_and(|of| of == installation)
}

/// Labels pass from a container to an image made of it, and on to containers of that image. Names do not.
fn is_sandbox(container: &ContainerSummary) -> bool {
    let description = container.labels.as_ref().and_then(record::read);
    description.is_some_and(|description| name(container) == Some(&record::container_name(&description.id)))
}

/// Of an installation that we know nothing about. A persistent one may hold files, whatever its state is called: Podman calls
/// those that ran when its host went down as it calls those that were never started.
fn foreign_verdict(container: &ContainerSummary, now: SystemTime) -> Verdict {
    let description = container.labels.as_ref().and_then(record::read);
    match description.map(|description| description.persistence) {
        Some(Persistence::Ephemeral) if is_sandbox(container) && is_forsaken(container, now) => Verdict::Removed,
        Some(Persistence::Ephemeral | Persistence::Persistent) | None => Verdict::Left,
    }
}

/// Never started, and not about to be.
fn is_forsaken(container: &ContainerSummary, now: SystemTime) -> bool {
    let made = container.created.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let age = made.and_then(|made| now.duration_since(SystemTime::UNIX_EPOCH + made).ok());
    container.state == Some(ContainerSummaryStateEnum::CREATED) && age.is_some_and(|age| age > FORSAKEN)
}

fn verdict(container: &ContainerSummary, is_alive: impl Fn(&str) -> bool) -> Verdict {
    let labels = container.labels.clone().unwrap_or_default();
    let Some(description) = record::read(&labels) else { return Verdict::Left };
    if !is_sandbox(container) {
        return Verdict::Left;
    }
    let owner_lives = labels.get(record::INSTANCE).is_some_and(|instance| is_alive(instance));
    let runs = matches!(container.state, Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED));
    match description.persistence {
        Persistence::Persistent if runs => Verdict::Listed(listed(description)),
        Persistence::Persistent if description.keeps_files() => {
            Verdict::LookedAt { id: description.id, is_awaited: owner_lives }
        }
        // One that does not run is about to be started, or has ended and is about to be removed.
        Persistence::Persistent | Persistence::Ephemeral if owner_lives => Verdict::Left,
        Persistence::Persistent | Persistence::Ephemeral => Verdict::Removed,
    }
}

fn listed(description: Description) -> EngineSandbox {
    EngineSandbox {
        id: description.id,
        owner: description.owner,
        name: description.name,
        persistence: description.persistence,
        rest: None,
    }
}

fn name(container: &ContainerSummary) -> Option<&str> {
    container.names.as_ref()?.first().map(|name| name.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::description;
    use crate::record::{Maker, User};

    fn container(description: &Description, state: ContainerSummaryStateEnum) -> ContainerSummary {
        let maker = Maker { installation: "one", instance: "in-23456789abcdefgh" };
        ContainerSummary {
            id: Some("c".to_owned()),
            names: Some(vec![format!("/{}", record::container_name(&description.id))]),
            labels: Some(record::labels(maker, description)),
            state: Some(state),
            ..ContainerSummary::default()
        }
    }

    #[test]
    fn only_what_the_dead_left_is_removed() {
        use ContainerSummaryStateEnum::{CREATED, EXITED, RUNNING};
        let (lives, dead) = (|_: &str| true, |_: &str| false);
        let persistent = description();
        let ephemeral = Description { persistence: Persistence::Ephemeral, ..description() };
        for state in [CREATED, RUNNING, EXITED] {
            assert_eq!(verdict(&container(&ephemeral, state), dead), Verdict::Removed, "{state}");
            assert_eq!(verdict(&container(&ephemeral, state), lives), Verdict::Left, "{state}");
        }
        let of_root = Description { user: User { id: 0, group: 0 }, ..description() };
        assert_eq!(verdict(&container(&of_root, EXITED), dead), Verdict::Removed);
        assert_eq!(verdict(&container(&of_root, CREATED), lives), Verdict::Left);
        let looked_at = |is_awaited| Verdict::LookedAt { id: persistent.id.clone(), is_awaited };
        // It may have been stopped, or may have run when its host went down.
        for state in [CREATED, EXITED] {
            assert_eq!(verdict(&container(&persistent, state), lives), looked_at(true), "{state}");
            assert_eq!(verdict(&container(&persistent, state), dead), looked_at(false), "{state}");
        }
        assert!(matches!(verdict(&container(&persistent, RUNNING), dead), Verdict::Listed(_)));
    }

    #[test]
    fn somebody_elses_container_of_a_saved_image_is_left_alone() {
        let mut other = container(&description(), ContainerSummaryStateEnum::EXITED);
        other.names = Some(vec!["/somebody-elses".to_owned()]);
        assert_eq!(verdict(&other, |_| false), Verdict::Left);
        other.labels = Some([(record::INSTALLATION.to_owned(), "one".to_owned())].into());
        assert_eq!(verdict(&other, |_| false), Verdict::Left);
    }

    #[test]
    fn what_an_unknown_installation_never_started_is_removed_when_it_is_old() {
        use ContainerSummaryStateEnum::{CREATED, EXITED, RUNNING};
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let ephemeral = Description { persistence: Persistence::Ephemeral, ..description() };
        let of = |description: &Description, state, hours: i64| ContainerSummary {
            created: Some(2_000_000_000 - hours * 3600),
            ..container(description, state)
        };
        let judged = |state, hours| foreign_verdict(&of(&ephemeral, state, hours), now);
        assert!(!is_of(&of(&ephemeral, CREATED, 25), "another"));
        assert_eq!(judged(CREATED, 25), Verdict::Removed);
        assert_eq!(judged(CREATED, 23), Verdict::Left);
        assert_eq!(judged(CREATED, -25), Verdict::Left, "a clock that is behind is no age");
        assert_eq!(judged(RUNNING, 25), Verdict::Left);
        assert_eq!(judged(EXITED, 25), Verdict::Left);
        for state in [CREATED, EXITED, RUNNING] {
            let persistent = of(&description(), state, 25);
            assert_eq!(foreign_verdict(&persistent, now), Verdict::Left, "it may hold files: {state}");
        }
        let mut of_others = of(&ephemeral, CREATED, 25);
        of_others.names = Some(vec!["/somebody-elses".to_owned()]);
        assert_eq!(foreign_verdict(&of_others, now), Verdict::Left);
    }
}
