//! Containers that are never started: hands that reach into images and volumes through the daemon, wherever that is.
//!
//! They are found again by their names and not by labels, because an image that is made of one keeps its labels, and what
//! somebody else starts from that image must not look like ours.

use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions};
use sandbox::Result;

use crate::client::Daemon;
use crate::random;
use crate::record::Maker;
use crate::translate::AGENT_DIRECTORY;

/// Removed when it is dropped, or by the next process that looks around.
#[derive(Debug)]
pub struct Carrier {
    daemon: Daemon,
    pub id: String,
}

const ROOT: &str = "0:0";

/// How the names of an instance's carriers begin.
pub fn prefix(installation: &str) -> String {
    format!("sandpen-carrier-{installation}-")
}

/// The instance that a carrier of this name belongs to.
pub fn instance_of<'a>(name: &'a str, installation: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(&prefix(installation))?;
    rest.rsplit_once('-').map(|(instance, _)| instance)
}

impl Carrier {
    /// On this image. What is done with it is done as the image's user, whom Podman wants to know.
    pub async fn make(daemon: &Daemon, maker: Maker<'_>, image: &str) -> Result<Self> {
        Self::make_with(daemon, maker, image, None, None).await
    }

    /// The same as root, whom every image has.
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
        let name = format!("{}{}-{}", prefix(maker.installation), maker.instance, random::text(8)?);
        let mounts = volume.map(|volume| Mount {
            target: Some(AGENT_DIRECTORY.to_owned()),
            source: Some(volume.to_owned()),
            typ: Some(MountType::VOLUME),
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        });
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            user: user.map(str::to_owned),
            // An image need not name a program, and this one is never started.
            cmd: Some(vec!["/nothing".to_owned()]),
            network_disabled: Some(true),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                mounts: Some(mounts.into_iter().collect()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let id = daemon.create(&name, body).await?;
        Ok(Self { daemon: daemon.clone(), id })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_say_whose_they_are() {
        let name = format!("{}in-23456789abcdefgh-x7", prefix("one"));
        assert_eq!(instance_of(&name, "one"), Some("in-23456789abcdefgh"));
        assert_eq!(instance_of(&name, "two"), None);
        assert_eq!(instance_of("sandpen-sb-23456789abcdefgh", "one"), None);
    }
}
