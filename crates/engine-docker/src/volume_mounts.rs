//! Volumes in containers. One that is empty would be filled by what the image has in its place, which may be a program that
//! then is process 1 of every sandbox. Docker is told not to where a mount is described; Podman (4.3) does not hear it there,
//! but in a bind.

use bollard::models::{Mount, MountType, MountVolumeOptions};

use crate::Flavour;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeMount<'a> {
    pub volume: &'a str,
    /// Without a colon, which only a place that is not ours to choose could have.
    pub target: &'a str,
    pub access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// As a daemon of this kind wants to be told, in one of two lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeMounts {
    pub mounts: Vec<Mount>,
    pub binds: Vec<String>,
}

impl VolumeMounts {
    pub fn new<'a>(flavour: Flavour, wanted: impl IntoIterator<Item = VolumeMount<'a>>) -> Self {
        let mut told = Self::default();
        for VolumeMount { volume, target, access } in wanted {
            match flavour {
                Flavour::Docker => told.mounts.push(Mount {
                    target: Some(target.to_owned()),
                    source: Some(volume.to_owned()),
                    typ: Some(MountType::VOLUME),
                    read_only: (access == Access::ReadOnly).then_some(true),
                    volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
                    ..Mount::default()
                }),
                Flavour::Podman => {
                    let access = match access {
                        Access::ReadOnly => "ro",
                        Access::ReadWrite => "rw",
                    };
                    told.binds.push(format!("{volume}:{target}:{access},nocopy"));
                }
            }
        }
        told
    }
}
