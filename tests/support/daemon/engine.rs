//! Our engine on a daemon that the environment names.

use std::path::Path;

use engine_docker::{DockerConfig, Wish};
use sandbox::InstanceId;

use super::{Flavour, Given};
use crate::Result;

impl Given {
    /// What it is started with, to be changed by whoever wants more of it.
    pub fn config(&self, state: &Path) -> Result<DockerConfig> {
        let flavour = match self.flavour {
            Flavour::Docker => engine_docker::Flavour::Docker,
            Flavour::Podman => engine_docker::Flavour::Podman,
        };
        Ok(DockerConfig {
            wish: Wish { host: Some(self.address.clone()), context: None },
            default_image: Some(self.image.clone()),
            ..DockerConfig::new(flavour, state.to_owned(), InstanceId::random()?)
        })
    }
}
