//! A world with a package index of its own.

use std::process::Command;

use super::index::Index;
use super::{Done, World};

pub struct Shop {
    pub world: World,
    pub index: Index,
}

impl Shop {
    pub fn open() -> Self {
        let world = World::new();
        let index = Index::start(&world.work().join("site"));
        Self { world, index }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.command(arguments);
        self.set_up(&mut command);
        command
    }

    /// As if pip and npm of this machine were set up for our index, and nothing else.
    pub fn set_up(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().to_ascii_lowercase();
            if ["pip_", "uv_", "npm_config_", "node_extra"].iter().any(|start| text.starts_with(start)) {
                command.env_remove(name);
            }
        }
        command
            .env("HOME", self.world.work())
            .env("PIP_CONFIG_FILE", "/dev/null")
            .env("PIP_INDEX_URL", self.index.python())
            .env("npm_config_globalconfig", "/nonexistent")
            .env("npm_config_registry", self.index.npm());
    }

    pub fn run(&self, arguments: &[&str]) -> Done {
        Done::from(self.command(arguments).output().unwrap())
    }

    pub fn python(&self, code: &str, packages: &str) -> Done {
        self.run(&["run", "python", code, "--package", packages])
    }
}
