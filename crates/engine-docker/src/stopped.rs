//! Persistent sandboxes that do not run: stopped by their operator or with their daemon, interrupted, or at their end.
//!
//! Such a container is not removed by the daemon when it ends, because its end may be a stop. Process 1 says by its exit code
//! which it was; what is at its end is removed by whoever sees it next, together with the volume that its files would have
//! been kept in.

use std::time::Duration;

use agent::KeptExit;
use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum};
use sandbox::{Error, ErrorKind, Persistence, Rest, Result, SandboxId};
use tokio::time::Instant;

use crate::engine::Shared;
use crate::live::Live;
use crate::reach::client;
use crate::record::{self, Description, Storage};
use crate::recovery::unless_unavailable;

/// How long a sandbox may take to bring its files back, or to keep them while somebody waits to start it again.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Where a container is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Runs,
    /// It was never started.
    Made,
    Rests(Rest),
    Ended,
}

impl Condition {
    pub fn of(container: &ContainerInspectResponse, description: &Description) -> Self {
        container.state.as_ref().map_or(Self::Ended, |state| Self::of_state(state, description))
    }

    fn of_state(state: &ContainerState, description: &Description) -> Self {
        let was_started = state.started_at.as_deref().is_some_and(|moment| !moment.starts_with("0001-01-01"));
        if state.running.unwrap_or(false) || state.paused.unwrap_or(false) {
            return Self::Runs;
        }
        if !was_started {
            return Self::Made;
        }
        if !description.keeps_files() {
            return Self::Ended;
        }
        // What Podman says of one that ran when its host went down. How it ended nobody has seen, and the code is an older one.
        if state.status == Some(ContainerStateStatusEnum::CREATED) {
            return Self::Rests(Rest::Interrupted);
        }
        match state.exit_code.and_then(|code| i32::try_from(code).ok()) {
            Some(KeptExit::STOPPED) => Self::Rests(Rest::Stopped),
            Some(KeptExit::ENDED) => Self::Ended,
            // However it ended, its files are where they were. Root inside can have brought it about.
            Some(_) | None if description.storage == Storage::Layer => Self::Rests(Rest::Stopped),
            Some(_) | None => Self::Rests(Rest::Interrupted),
        }
    }
}

impl Shared {
    /// The container of a persistent sandbox of ours.
    pub async fn find(&self, id: &SandboxId) -> Result<Option<(ContainerInspectResponse, Description)>> {
        let Some(found) = self.daemon.inspect(&record::container_name(id)).await? else { return Ok(None) };
        let labels = found.config.as_ref().and_then(|config| config.labels.clone()).unwrap_or_default();
        let is_ours = labels.get(record::INSTALLATION) == Some(&self.places.installation);
        let description = record::read(&labels).filter(|description| is_ours && description.id == *id);
        Ok(description.map(|description| (found, description)))
    }

    /// A persistent sandbox by its container, started if it was stopped. `None` when there is none that is ours. It may take
    /// longer than an answer of the daemon, who may hang at any step of it.
    pub async fn reconnect(&self, id: &SandboxId) -> Result<Option<Live>> {
        self.daemon.unless_hanging(self.find_and_reach(id)).await
    }

    async fn find_and_reach(&self, id: &SandboxId) -> Result<Option<Live>> {
        let deadline = Instant::now() + PATIENCE;
        let mut was_started = false;
        loop {
            let Some((found, description)) = self.find(id).await? else { return Ok(None) };
            if description.persistence == Persistence::Ephemeral {
                return Ok(None);
            }
            let container = found.id.clone().unwrap_or_else(|| record::container_name(id));
            match Condition::of(&found, &description) {
                Condition::Made => return Ok(None),
                Condition::Ended => {
                    self.remove_whole(&container, &description).await?;
                    return Ok(None);
                }
                Condition::Rests(Rest::Interrupted) => return Err(self.interrupted(id, &found)),
                // Whatever it ends of, it would again.
                Condition::Rests(Rest::Stopped) if was_started => return Err(self.interrupted(id, &found)),
                Condition::Rests(Rest::Stopped) => {
                    self.daemon.start(&container).await?;
                    was_started = true;
                    continue;
                }
                Condition::Runs => {}
            }
            let keeps_files = description.keeps_files();
            let environment = self.places.keepsakes.read(id)?.map(|keepsake| keepsake.environment);
            let description = Description { environment, ..description };
            match Live::reach(&self.daemon, container, description).await {
                Ok(live) => return Ok(Some(live)),
                // It may have ended while we knocked. And one that keeps its files, or brings them back, lets nobody in.
                Err(error) => {
                    let may_pass = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut);
                    let is_running = async || match self.find(id).await {
                        Ok(Some((found, description))) => Ok(Condition::of(&found, &description) == Condition::Runs),
                        Ok(None) => Ok(false),
                        Err(error) => Err(error),
                    };
                    let has_time = keeps_files && may_pass && Instant::now() < deadline;
                    if !has_time && is_running().await? {
                        return Err(error);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Why a sandbox is not started again by itself.
    pub fn interrupted(&self, id: &SandboxId, container: &ContainerInspectResponse) -> Error {
        let code = container.state.as_ref().and_then(|state| state.exit_code).unwrap_or_default();
        let name = record::container_name(id);
        let client = client(self.config.flavour, self.daemon.client_arguments());
        let labels = container.config.as_ref().and_then(|config| config.labels.as_ref());
        let is_layered = labels.and_then(record::read).is_some_and(|found| found.storage == Storage::Layer);
        let remove = "stop it to remove it, and create another";
        let go_on =
            format!("`{client} start {name}` goes on with the files of its last stop, if there was one; or {remove}");
        let (message, hint) = match i32::try_from(code) {
            Ok(KeptExit::LOST) => {
                ("its container was killed before it was ever stopped, and its files are lost", remove)
            }
            Ok(KeptExit::NOT_BROUGHT_BACK) => ("the files that it kept cannot be brought back", go_on.as_str()),
            Ok(KeptExit::NOT_KEPT) => ("there was no room to keep its files when it was stopped", go_on.as_str()),
            Ok(_) | Err(_) if is_layered => ("its container ends whenever it is started; its files are there", remove),
            Ok(_) | Err(_) => {
                ("its container was killed, and what it wrote since its last stop is lost", go_on.as_str())
            }
        };
        Error::wrong_state(format!("sandbox {id} was interrupted: {message}"))
            .with_hint(hint.to_owned())
            .with_cause(format!("process 1 ended with {code}"))
    }

    /// Remove a container and what it would have kept its files in.
    pub async fn remove_whole(&self, container: &str, description: &Description) -> Result<()> {
        self.daemon.remove(container).await?;
        self.forget_checkpoints(&description.id);
        self.places.keepsakes.forget(&description.id);
        if !description.has_kept_volume() {
            return Ok(());
        }
        self.daemon.remove_volume(&record::kept_volume_name(&description.id)).await.map(drop)
    }

    /// The volume of a sandbox whose container is gone.
    pub async fn remove_kept_volume(&self, id: &SandboxId) -> Result<()> {
        let name = record::kept_volume_name(id);
        let Some(volume) = self.daemon.volume(&name).await? else { return Ok(()) };
        if volume.labels.get(record::INSTALLATION) != Some(&self.places.installation) {
            return Ok(());
        }
        self.daemon.remove_volume(&name).await.map(drop)
    }

    /// Have a place where a sandbox can keep its files, before there is a container that names it: the daemon would make one
    /// that nobody knows to be ours.
    pub async fn make_kept_volume(&self, description: &Description) -> Result<()> {
        if !description.has_kept_volume() {
            return Ok(());
        }
        let maker = self.maker();
        let labels = [(record::INSTALLATION, maker.installation), (record::INSTANCE, maker.instance)];
        let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
        self.daemon.make_volume(&record::kept_volume_name(&description.id), labels.into()).await
    }

    /// Remove volumes of ours whose sandbox is gone. Whoever makes one makes its volume first, and is alive until then.
    pub async fn sweep_volumes(&self) -> Result<()> {
        let maker = self.maker();
        let volumes = self.daemon.volumes(record::INSTALLATION, maker.installation).await?;
        for volume in volumes {
            let Some(id) = record::sandbox_of_volume(&volume.name) else { continue };
            let instance = volume.labels.get(record::INSTANCE).map(String::as_str).unwrap_or_default();
            let is_awaited = match instance == maker.instance {
                true => self.daemon.names().is_held(&record::container_name(&id)),
                false => self.places.is_alive(instance),
            };
            if !is_awaited {
                unless_unavailable(
                    self.sweep_volume(&id, &volume.name).await,
                    "a volume cannot be looked at or removed",
                )?;
            }
        }
        Ok(())
    }

    async fn sweep_volume(&self, id: &SandboxId, volume: &str) -> Result<()> {
        if self.daemon.inspect(&record::container_name(id)).await?.is_none() {
            self.daemon.remove_volume(volume).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::User;
    use crate::record::tests::description;

    #[test]
    fn an_end_that_nobody_explains_is_not_an_end() {
        let state = |code: i64| ContainerState {
            started_at: Some("2026-01-01T00:00:00Z".to_owned()),
            exit_code: Some(code),
            running: Some(false),
            ..ContainerState::default()
        };
        let kept = description();
        let of = |code: i64| Condition::of_state(&state(code), &kept);
        assert_eq!(of(0), Condition::Rests(Rest::Stopped));
        assert_eq!(of(i64::from(KeptExit::ENDED)), Condition::Ended);
        for code in [1, 3, 137, 143, 255, i64::from(KeptExit::LOST), i64::from(KeptExit::NOT_KEPT), i64::MAX] {
            assert_eq!(of(code), Condition::Rests(Rest::Interrupted), "{code}");
        }
        let never = ContainerState { started_at: Some("0001-01-01T00:00:00Z".to_owned()), ..state(0) };
        assert_eq!(Condition::of_state(&never, &kept), Condition::Made);
        let went_down = ContainerState { status: Some(ContainerStateStatusEnum::CREATED), ..state(0) };
        assert_eq!(Condition::of_state(&went_down, &kept), Condition::Rests(Rest::Interrupted));
        let runs = ContainerState { running: Some(true), ..state(0) };
        assert_eq!(Condition::of_state(&runs, &kept), Condition::Runs);
        let of_root = Description { user: User { id: 0, group: 0 }, ..description() };
        assert_eq!(Condition::of_state(&state(0), &of_root), Condition::Ended);
        let layered = Description { storage: Storage::Layer, places: Vec::new(), ..of_root };
        for code in [0, 3, 137] {
            assert_eq!(Condition::of_state(&state(code), &layered), Condition::Rests(Rest::Stopped), "{code}");
        }
        assert_eq!(Condition::of_state(&state(i64::from(KeptExit::ENDED)), &layered), Condition::Ended);
    }
}
