//! A world with a package index of its own.

use std::process::Command;
use std::sync::OnceLock;

use super::image::{Root, has_npm, has_pip};
use super::index::Index;
use super::{Done, Engine, World};

pub struct Shop {
    pub world: World,
    pub index: Index,
}

/// The image of sandboxes that name none, where that is an image's business: this machine's own programs, as the embedded
/// engine has them. It is made once, and stays for as long as its daemon.
fn image() -> Option<&'static str> {
    static IMAGE: OnceLock<Option<String>> = OnceLock::new();
    let made = IMAGE.get_or_init(|| match Engine::of_test() {
        Engine::Embedded => None,
        Engine::OfDaemon { .. } => {
            let world = World::new();
            let root = Root::new(&world).with_programs(&["sh", "touch"]);
            let root = if has_pip() { root.with_python() } else { root };
            let root = if has_npm() { root.with_npm() } else { root };
            Some(root.import("shop:test"))
        }
    });
    made.as_deref()
}

pub fn in_its_image(command: &mut Command) {
    if let Some(image) = image() {
        command.env("SANDPEN_IMAGE", image).env("SANDPEN_CONTAINER_IMAGE", image);
    }
}

/// Whether sandboxes that name no image can have packages of Python.
pub fn sells_python() -> bool {
    match Engine::of_test() {
        Engine::Embedded => true,
        Engine::OfDaemon { .. } => has_pip(),
    }
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
        in_its_image(command);
    }

    pub fn run(&self, arguments: &[&str]) -> Done {
        Done::from(self.command(arguments).output().unwrap())
    }

    pub fn python(&self, code: &str, packages: &str) -> Done {
        self.run(&["run", "python", code, "--package", packages])
    }
}
