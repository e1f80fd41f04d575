//! Questions about volumes.

use std::collections::HashMap;

use bollard::models::{Volume, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptionsBuilder};
use sandbox::Result;

use super::Daemon;

/// What became of the wish to remove one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Removed,
    WasNotThere,
    InUse,
}

impl Daemon {
    /// Make one. Where there is one of this name already it stays as it is: who has to know looks at it afterwards.
    pub(crate) async fn make_volume(&self, name: &str, labels: HashMap<String, String>) -> Result<()> {
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            driver: Some("local".to_owned()),
            labels: Some(labels),
            ..VolumeCreateRequest::default()
        };
        let made = self.ask(self.docker.create_volume(request)).await;
        made.map(drop).map_err(|failure| self.told("make a volume", failure))
    }

    pub(crate) async fn volume(&self, name: &str) -> Result<Option<Volume>> {
        let found = self.ask(self.docker.inspect_volume(name)).await;
        self.perhaps("look at a volume", found)
    }

    /// All that have this label with this value.
    pub(crate) async fn volumes(&self, label: &str, value: &str) -> Result<Vec<Volume>> {
        self.list_volumes("label", &format!("{label}={value}")).await
    }

    /// All whose name has this in it.
    pub(crate) async fn volumes_named(&self, name: &str) -> Result<Vec<Volume>> {
        self.list_volumes("name", name).await
    }

    async fn list_volumes(&self, filter: &str, value: &str) -> Result<Vec<Volume>> {
        let filters = HashMap::from([(filter, vec![value])]);
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let listed = self.ask(self.docker.list_volumes(Some(options))).await;
        let listed = listed.map_err(|failure| self.told("list volumes", failure))?;
        Ok(listed.volumes.unwrap_or_default())
    }

    /// Never by force, by which Podman would remove the containers that use it too.
    pub(crate) async fn remove_volume(&self, name: &str) -> Result<Removal> {
        let options = RemoveVolumeOptionsBuilder::default().force(false).build();
        match self.ask(self.docker.remove_volume(name, Some(options))).await {
            Ok(()) => Ok(Removal::Removed),
            Err(failure) => match failure.status() {
                Some(404) => Ok(Removal::WasNotThere),
                Some(409) => Ok(Removal::InUse),
                Some(_) | None => Err(self.told("remove a volume", failure)),
            },
        }
    }
}
