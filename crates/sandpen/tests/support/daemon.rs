//! Images of the daemon that a run of these tests is about, made as its operator would: by Docker's own client.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Engine, World};

/// The client that came with the daemon goes before others: a newer one builds by a plugin that may not be there.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

impl World {
    /// What an image of this world is called. A daemon's images are everybody's, so there it is a name of its own.
    pub fn image(&self, name: &str) -> String {
        match Engine::of_test() {
            Engine::Embedded => name.to_owned(),
            Engine::OfDaemon { .. } => format!("{name}-{}", self.mark()),
        }
    }

    /// A tree from an archive in the work directory, under the name that is given back.
    pub fn import_image(&self, archive: &str, name: &str) -> String {
        let image = self.image(name);
        match Engine::of_test() {
            Engine::Embedded => {
                self.run(&["image", "import", archive, &image]).succeeds();
            }
            Engine::OfDaemon { name, address, .. } => {
                by_client(&name, &address, &self.work(), &["import", archive, &image]);
            }
        }
        image
    }

    /// From a Dockerfile and a context in the work directory.
    pub fn build_image(&self, name: &str, dockerfile: &str, context: &str) -> String {
        let image = self.image(name);
        match Engine::of_test() {
            Engine::Embedded => {
                self.run(&["image", "build", "-t", &image, "-f", dockerfile, context]).succeeds();
            }
            Engine::OfDaemon { name, address, .. } => {
                let words = ["build", "--network", "none", "-t", &image, "-f", dockerfile, context];
                by_client(&name, &address, &self.work(), &words);
            }
        }
        image
    }

    fn mark(&self) -> String {
        let name = self.directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.trim_start_matches("sandpen-test-").to_owned()
    }
}

#[track_caller]
fn by_client(engine: &str, address: &str, place: &Path, words: &[&str]) {
    // Podman builds by itself what Docker leaves to BuildKit.
    let by_plugin = if engine == "docker" { "1" } else { "0" };
    let done = Command::new("docker")
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", place)
        .env("DOCKER_HOST", address)
        .env("DOCKER_BUILDKIT", by_plugin)
        .current_dir(place)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}
