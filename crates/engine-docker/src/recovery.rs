//! What is there, and what the dead have left: asked of the daemon, which knows.
//!
//! What an installation left is cleared away by its own next process. Where there is none any more, because its directory of
//! state was deleted, what runs ends by itself; what was never started would stay for ever, and is cleared away by anybody
//! once it is so old that nobody can be about to start it. What is persistent is never anybody else's to clear away.

use std::time::{Duration, SystemTime};

use bollard::models::{
    ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary, ContainerSummaryStateEnum,
};
use futures_util::StreamExt;
use sandbox::{EngineSandbox, ErrorKind, Persistence, Rest, Result, SandboxId};

use crate::engine::Shared;
use crate::record::Description;
use crate::stopped::Condition;
use crate::{carrier, record};

/// A daemon may take long to say that it does not remove one, and the others are not to wait for that.
const AT_ONCE: usize = 8;

/// How long a daemon is taken for the one that it said it is, by those who remove what it does not know.
pub(crate) const SURE: Duration = Duration::from_secs(60);

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
        sandbox: EngineSandbox,
        is_awaited: bool,
    },
    /// Made by somebody who lives and does not wait for it: the daemon may have made it later than they waited.
    NeverStarted,
    /// Somebody who lives takes care of it, or it is not ours after all.
    Left,
    Removed,
}

impl Shared {
    /// Persistent sandboxes of this installation, after what dead processes left behind was removed.
    pub async fn look_around(&self) -> Result<Vec<EngineSandbox>> {
        let installation = &self.places.installation;
        self.daemon.check_same(SURE).await?;
        // Before the containers: each is written when its container is there.
        let keepsakes = self.places.keepsakes.all();
        let sandboxes = self.daemon.list("label", record::INSTALLATION).await?;
        let carriers = self.daemon.list("name", carrier::ANY).await?;
        let own = self.config.instance.as_str();
        let is_alive = |instance: &str| instance == own || self.places.is_alive(instance);
        // Of what is not started yet.
        let is_awaited = |instance: &str, name: &str| match instance == own {
            true => self.daemon.names().is_held(name),
            false => self.places.is_alive(instance),
        };
        let mut listed = Vec::new();
        let mut left_behind = Vec::new();
        for container in &sandboxes {
            let verdict = match is_of(container, installation) {
                true => verdict(container, is_alive, is_awaited),
                false => foreign_verdict(container, SystemTime::now()),
            };
            match verdict {
                Verdict::Listed(sandbox) => listed.push(sandbox),
                Verdict::LookedAt { sandbox, is_awaited } => {
                    let found = self.resting(&sandbox.id, is_awaited).await;
                    // What is not listed is taken for gone, and one that cannot be looked at is not.
                    let found = unless_unavailable(found, "a sandbox cannot be looked at")?;
                    listed.extend(found.unwrap_or(Some(EngineSandbox { rest: Some(Rest::Interrupted), ..sandbox })));
                }
                Verdict::Left => {}
                Verdict::NeverStarted => left_behind.extend(self.never_started(container).await?),
                Verdict::Removed => left_behind.extend(container.id.clone()),
            }
        }
        left_behind.extend(carriers.iter().filter_map(|container| {
            let name = name(container)?;
            let (theirs, instance) = carrier::made_by(name)?;
            let is_left = match theirs == installation {
                true => !is_awaited(instance, name),
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
        // Sandboxes are not to be unknown because of what else is there.
        unless_unavailable(self.drop_orphans(is_alive).await, "files of trees that were left are not looked for")?;
        unless_unavailable(self.sweep_volumes().await, "volumes that sandboxes have left are not looked for")?;
        self.sweep_checkpoints().await?;
        if let Err(error) = self.drop_left_builds().await {
            tracing::warn!(?error, "images that exports have left are not looked for");
        }
        self.places.forget_the_dead();
        unless_unavailable(self.drop_all_retired().await, "images that lost their names are not looked for")?;
        Ok(listed)
    }

    /// One that this process made and that nobody waits for, if it has not been started since it was listed.
    async fn never_started(&self, container: &ContainerSummary) -> Result<Option<String>> {
        let Some(id) = &container.id else { return Ok(None) };
        let found = unless_unavailable(self.daemon.inspect(id).await, "a container cannot be looked at")?.flatten();
        let is_made = |found: &ContainerInspectResponse| {
            let status = found.state.as_ref().and_then(|state| state.status);
            status == Some(ContainerStateStatusEnum::CREATED)
        };
        Ok(found.filter(is_made).map(|_| id.clone()))
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

/// An answer about one of many things: what is wrong with it must not hide the others. A daemon that says nothing is not asked
/// for the next one.
pub(crate) fn unless_unavailable<T>(answer: Result<T>, otherwise: &'static str) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
        Err(error) => {
            tracing::warn!(?error, "{otherwise}");
            Ok(None)
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

/// Who lives may be about to start one, and need not be: that is another question, which is asked with its name.
fn verdict(
    container: &ContainerSummary,
    is_alive: impl Fn(&str) -> bool,
    is_awaited: impl Fn(&str, &str) -> bool,
) -> Verdict {
    let labels = container.labels.clone().unwrap_or_default();
    let Some(description) = record::read(&labels) else { return Verdict::Left };
    if !is_sandbox(container) {
        return Verdict::Left;
    }
    let instance = labels.get(record::INSTANCE).map_or("", String::as_str);
    let owner_lives = is_alive(instance);
    let is_awaited = owner_lives && is_awaited(instance, &record::container_name(&description.id));
    let is_made = container.state == Some(ContainerSummaryStateEnum::CREATED);
    let runs = matches!(container.state, Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED));
    match description.persistence {
        Persistence::Persistent if runs => Verdict::Listed(listed(description)),
        Persistence::Persistent if description.keeps_files() => {
            Verdict::LookedAt { sandbox: listed(description), is_awaited }
        }
        Persistence::Persistent | Persistence::Ephemeral if owner_lives && is_made && !is_awaited => {
            Verdict::NeverStarted
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
        let judged = |container: &ContainerSummary, lives: bool, is_awaited: bool| {
            verdict(container, |_| lives, |_, _| is_awaited)
        };
        let persistent = description();
        let ephemeral = Description { persistence: Persistence::Ephemeral, ..description() };
        for state in [CREATED, RUNNING, EXITED] {
            assert_eq!(judged(&container(&ephemeral, state), false, false), Verdict::Removed, "{state}");
            assert_eq!(judged(&container(&ephemeral, state), true, true), Verdict::Left, "{state}");
        }
        for state in [RUNNING, EXITED] {
            assert_eq!(judged(&container(&ephemeral, state), true, false), Verdict::Left, "{state}");
        }
        assert_eq!(judged(&container(&ephemeral, CREATED), true, false), Verdict::NeverStarted);
        let of_root = Description { user: User { id: 0, group: 0 }, ..description() };
        assert_eq!(judged(&container(&of_root, EXITED), false, false), Verdict::Removed);
        assert_eq!(judged(&container(&of_root, CREATED), true, true), Verdict::Left);
        assert_eq!(judged(&container(&of_root, CREATED), true, false), Verdict::NeverStarted);
        let looked_at = |is_awaited| Verdict::LookedAt { sandbox: listed(persistent.clone()), is_awaited };
        // It may have been stopped, or may have run when its host went down.
        for state in [CREATED, EXITED] {
            for is_awaited in [true, false] {
                let judged = judged(&container(&persistent, state), true, is_awaited);
                assert_eq!(judged, looked_at(is_awaited), "{state}");
            }
            assert_eq!(judged(&container(&persistent, state), false, false), looked_at(false), "{state}");
        }
        assert!(matches!(judged(&container(&persistent, RUNNING), false, false), Verdict::Listed(_)));
    }

    #[test]
    fn somebody_elses_container_of_a_saved_image_is_left_alone() {
        let mut other = container(&description(), ContainerSummaryStateEnum::EXITED);
        other.names = Some(vec!["/somebody-elses".to_owned()]);
        assert_eq!(verdict(&other, |_| false, |_, _| false), Verdict::Left);
        other.labels = Some([(record::INSTALLATION.to_owned(), "one".to_owned())].into());
        assert_eq!(verdict(&other, |_| false, |_, _| false), Verdict::Left);
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
