//! Containers that are never started: hands that reach into images and volumes through the daemon, wherever that is.
//!
//! They are found again by their names and not by labels, because an image that is made of one keeps its labels, and what
//! somebody else starts from that image must not look like ours.

use std::collections::HashMap;

use bollard::models::{ContainerCreateBody, HostConfig};
use sandbox::Result;

use crate::client::Daemon;
use crate::names::Held;
use crate::random;
use crate::record::Maker;
use crate::translate::{self, AGENT_DIRECTORY};
use crate::volume_mounts::{Access, VolumeMount, VolumeMounts};

/// Removed when it is dropped, or by the next who looks around.
#[derive(Debug)]
pub struct Carrier {
    daemon: Daemon,
    pub id: String,
    _held: Held,
}

const ROOT: &str = "0:0";

/// How the names of all carriers begin.
pub const ANY: &str = "sandpen-carrier-";

/// The installation and the instance that a carrier of this name belongs to.
pub fn made_by(name: &str) -> Option<(&str, &str)> {
    let (installation, rest) = name.strip_prefix(ANY)?.split_once('-')?;
    let (instance, _) = rest.rsplit_once('-')?;
    instance.starts_with("in-").then_some((installation, instance))
}

impl Carrier {
    /// On this image. What is done with it is done as the image's user, whom Podman wants to know.
    pub async fn make(daemon: &Daemon, maker: Maker<'_>, image: &str) -> Result<Self> {
        Self::make_with(daemon, maker, image, None, None).await
    }

    /// The same as root, whom every image has, and where Docker makes no directory that the image lacks.
    pub async fn make_as_root(daemon: &Daemon, maker: Maker<'_>, image: &str) -> Result<Self> {
        Self::make_with(daemon, maker, image, Some(ROOT), None).await
    }

    /// The same, with a volume that can be written to.
    pub async fn make_with_volume(daemon: &Daemon, maker: Maker<'_>, image: &str, volume: &str) -> Result<Self> {
        Self::make_with(daemon, maker, image, Some(ROOT), Some(volume)).await
    }

    async fn make_with(
        daemon: &Daemon,
        maker: Maker<'_>,
        image: &str,
        user: Option<&str>,
        volume: Option<&str>,
    ) -> Result<Self> {
        let name = format!("{ANY}{}-{}-{}", maker.installation, maker.instance, random::text(8)?);
        let volume = volume.map(|volume| VolumeMount { volume, target: AGENT_DIRECTORY, access: Access::ReadWrite });
        let VolumeMounts { mounts, binds } = VolumeMounts::new(daemon.flavour(), volume);
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            user: user.map(str::to_owned),
            // An image that is made of one keeps its own.
            working_dir: user.map(|_| "/".to_owned()),
            // An image need not name a program, and this one is never started.
            cmd: Some(vec!["/nothing".to_owned()]),
            network_disabled: Some(true),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                mounts: Some(mounts),
                binds: (!binds.is_empty()).then_some(binds),
                tmpfs: Some(covered(daemon, image).await?),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        // Let go of also when nobody waits for the daemon any more: what it then makes is removed by whoever looks around.
        let held = daemon.names().hold(&name);
        let id = daemon.create(&name, body).await?;
        Ok(Self { daemon: daemon.clone(), id, _held: held })
    }

    /// Remove it now, and hear whether that worked.
    pub async fn end(mut self) -> Result<()> {
        let id = std::mem::take(&mut self.id);
        self.daemon.remove(&id).await
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let id = std::mem::take(&mut self.id);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !id.is_empty() {
            let daemon = self.daemon.clone();
            runtime.spawn(async move {
                if let Err(error) = daemon.remove(&id).await {
                    tracing::debug!(?error, "a container that was never started stays until somebody looks around");
                }
            });
        }
    }
}

/// Where the image asks for volumes. The daemon would make them on its disk, and then what is read and written there would be
/// theirs and not the image's. Something in memory is mounted only when a container is started, which this one never is.
async fn covered(daemon: &Daemon, image: &str) -> Result<HashMap<String, String>> {
    let config = daemon.image(image).await?.and_then(|image| image.config).unwrap_or_default();
    let places = config.volumes.unwrap_or_default().into_iter().filter_map(|place| translate::place_of(&place).ok());
    Ok(places.map(|place| (place, String::new())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_say_whose_they_are() {
        assert_eq!(made_by("sandpen-carrier-one-in-23456789abcdefgh-x7"), Some(("one", "in-23456789abcdefgh")));
        for other in
            ["sandpen-sb-23456789abcdefgh", "sandpen-carrier-somebody-elses", "sandpen-carrier-a-b-c", "x-y-in-z-1"]
        {
            assert_eq!(made_by(other), None, "{other}");
        }
    }
}
