//! The daemon that the environment names: `SANDPEN_TEST_ENGINE` (`docker` or `podman`), `SANDPEN_TEST_DAEMON` (its address) and
//! `SANDPEN_TEST_IMAGE` (an image with a POSIX shell and its tools); and perhaps `SANDPEN_TEST_RUNTIME`.

use std::path::Path;
use std::process::ExitCode;

use engine_docker::{DockerConfig, Fetch, Flavour, Wish};
use libtest_mimic::{Arguments, Completion, Trial};
use sandbox::InstanceId;

#[derive(Clone, Debug)]
pub struct Place {
    pub flavour: Flavour,
    pub address: String,
    pub image: String,
    pub runtime: Option<String>,
}

impl Place {
    pub fn of_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let flavour = match variable("SANDPEN_TEST_ENGINE")?.as_str() {
            "docker" => Flavour::Docker,
            "podman" => Flavour::Podman,
            other => panic!("SANDPEN_TEST_ENGINE is {other:?}, which is no engine of this crate"),
        };
        let (address, image) = (variable("SANDPEN_TEST_DAEMON")?, variable("SANDPEN_TEST_IMAGE")?);
        Some(Self { flavour, address, image, runtime: variable("SANDPEN_TEST_RUNTIME") })
    }

    /// Whether programs speak to gVisor's kernel and not to the host's.
    pub fn is_gvisor(&self) -> bool {
        self.runtime.as_deref() == Some("runsc")
    }

    pub fn config(&self, state: &Path) -> DockerConfig {
        let instance = InstanceId::random().expect("random numbers");
        DockerConfig {
            wish: Wish { host: Some(self.address.clone()), context: None },
            default_image: Some(self.image.clone()),
            runtime: self.runtime.clone(),
            // What is not there must not be looked for elsewhere: a registry may not answer, and that is another error.
            fetch: Fetch::Never,
            ..DockerConfig::new(self.flavour, state.to_owned(), instance)
        }
    }
}

/// The whole program, as one that was ignored.
pub fn skipped(name: &str) -> ExitCode {
    println!("skipped: SANDPEN_TEST_ENGINE, SANDPEN_TEST_DAEMON and SANDPEN_TEST_IMAGE name no daemon");
    let skipped = Trial::ignorable_test(name, || Ok(Completion::ignored_with("there is no daemon")));
    libtest_mimic::run(&Arguments::from_args(), vec![skipped.with_ignored_flag(true)]).exit_code()
}
