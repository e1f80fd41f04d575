//! Flags for the engines that are somebody else's daemon.

use clap::Args;

use super::{Key, Written, push};

/// Where the daemon is and what it is asked for.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Docker and Podman")]
pub struct DaemonFlags {
    /// Where the daemon listens: unix:///path, tcp://host:port [default: where its own client looks]
    #[arg(long, global = true, value_name = "URL", hide_short_help = true)]
    daemon_host: Option<String>,

    /// The context of Docker's own client to take [default: the one in use there]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    docker_context: Option<String>,

    /// What sandboxes start from that ask for no image [default: docker.io/library/python:3.13-slim]
    #[arg(long, global = true, value_name = "IMAGE", hide_short_help = true)]
    container_image: Option<String>,

    /// Let images from registries that are called so, or begin so, bring languages along for everybody: ghcr.io/team/*
    #[arg(long, global = true, value_name = "NAME[*]", hide_short_help = true)]
    runner_image: Vec<String>,

    /// A runtime that the daemon knows: runsc for gVisor, kata [default: the daemon's own]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    runtime: Option<String>,
}

impl DaemonFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::DaemonHost, &self.daemon_host);
        push(written, Key::DockerContext, &self.docker_context);
        push(written, Key::ContainerImage, &self.container_image);
        push(written, Key::RunnerImage, &self.runner_image);
        push(written, Key::Runtime, &self.runtime);
    }
}
