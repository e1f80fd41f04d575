//! What is there, and what the dead have left: asked of the daemon, which knows.

use std::sync::atomic::Ordering;

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};
use futures_util::StreamExt;
use sandbox::{EngineSandbox, Persistence, Result};

use crate::engine::Shared;
use crate::{carrier, record};

/// A daemon may take long to say that it does not remove one, and the others are not to wait for that.
const AT_ONCE: usize = 8;

/// What to do about a container that carries our installation's label.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// A persistent sandbox that runs.
    Listed(EngineSandbox),
    /// Somebody who lives takes care of it, or it is not ours after all.
    Left,
    Removed,
}

impl Shared {
    /// Persistent sandboxes of this installation, after what dead processes left behind was removed.
    pub async fn look_around(&self) -> Result<Vec<EngineSandbox>> {
        let installation = &self.places.installation;
        let ours = self.daemon.list("label", &format!("{}={installation}", record::INSTALLATION)).await?;
        let carriers = self.daemon.list("name", &carrier::prefix(installation)).await?;
        let is_alive = |instance: &str| instance == self.config.instance.as_str() || self.places.is_alive(instance);
        let mut listed = Vec::new();
        let mut left_behind = Vec::new();
        for container in &ours {
            match verdict(container, is_alive) {
                Verdict::Listed(sandbox) => listed.push(sandbox),
                Verdict::Left => {}
                Verdict::Removed => left_behind.extend(container.id.clone()),
            }
        }
        left_behind.extend(carriers.iter().filter_map(|container| {
            let instance = carrier::instance_of(name(container)?, installation)?;
            if is_alive(instance) { None } else { container.id.clone() }
        }));
        let removals = futures_util::stream::iter(&left_behind);
        removals.for_each_concurrent(AT_ONCE, |container| self.remove_left_behind(container)).await;
        self.places.forget_the_dead();
        if self.retired.swap(false, Ordering::Relaxed) {
            self.drop_all_retired().await?;
        }
        Ok(listed)
    }

    /// One that the daemon does not let go of must not hide the others, and is tried again at the next look.
    async fn remove_left_behind(&self, container: &str) {
        if let Err(error) = self.daemon.remove(container).await {
            tracing::warn!(?error, container, "a container that was left behind cannot be removed");
        }
    }
}

fn verdict(container: &ContainerSummary, is_alive: impl Fn(&str) -> bool) -> Verdict {
    let labels = container.labels.clone().unwrap_or_default();
    let Some(description) = record::read(&labels) else { return Verdict::Left };
    // Labels pass from a container to an image made of it, and on to containers of that image. Names do not.
    if name(container) != Some(&record::container_name(&description.id)) {
        return Verdict::Left;
    }
    let owner_lives = labels.get(record::INSTANCE).is_some_and(|instance| is_alive(instance));
    let runs = matches!(container.state, Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED));
    match description.persistence {
        Persistence::Persistent if runs => Verdict::Listed(EngineSandbox {
            id: description.id,
            owner: description.owner,
            name: description.name,
            persistence: Persistence::Persistent,
        }),
        // One that does not run is about to be started, or has ended and is about to be removed.
        Persistence::Persistent | Persistence::Ephemeral if owner_lives => Verdict::Left,
        Persistence::Persistent | Persistence::Ephemeral => Verdict::Removed,
    }
}

fn name(container: &ContainerSummary) -> Option<&str> {
    container.names.as_ref()?.first().map(|name| name.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::description;
    use crate::record::{Description, Maker};

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
        for state in [CREATED, EXITED] {
            assert_eq!(verdict(&container(&persistent, state), dead), Verdict::Removed, "{state}");
            assert_eq!(verdict(&container(&persistent, state), lives), Verdict::Left, "{state}");
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
}
