//! Where things are: the programs under test, and the clients that `cargo xtask test clients` has installed.

use std::path::{Path, PathBuf};

use sandpen_tests::Result;
use sandpen_tests::daemon::Given;
use sandpen_tests::program::{built, is_installed};

use crate::Need;

pub(crate) struct Installed {
    /// The program as its users get it.
    pub product: PathBuf,
    /// Where sandboxes are, if not on the embedded engine.
    pub daemon: Option<Given>,
    clients: PathBuf,
}

impl Installed {
    pub fn find() -> Result<Self> {
        let product = built("sandpen")?;
        let clients = product.ancestors().nth(2).ok_or("the program lies nowhere")?.join("clients");
        Ok(Self { product, daemon: Given::of_environment()?, clients })
    }

    /// The program with the fixtures of the conformance suite.
    pub fn fixtures() -> Result<PathBuf> {
        built("sandpen-conformance")
    }

    /// Why a part is not there, if it is not.
    pub fn missing(&self, need: Need) -> Option<String> {
        let part = match need {
            Need::Node => "node".to_owned(),
            Need::Python(version) => format!("python-{version}"),
            Need::Embedded => {
                let why = |_: &Given| "it needs nothing of an engine, and runs on the embedded one".to_owned();
                return self.daemon.as_ref().map(why);
            }
            // A daemon gets an image that has them.
            Need::Matplotlib | Need::Compiler if self.daemon.is_some() => return self.missing(Need::Debian),
            Need::Matplotlib => {
                let is_there = Path::new("/usr/lib/python3/dist-packages/matplotlib").is_dir();
                return (!is_there).then(|| "the machine has no matplotlib (python3-matplotlib)".to_owned());
            }
            Need::Compiler => return (!is_installed("cc")).then(|| "cc is not installed".to_owned()),
            Need::Debian => return (!is_installed("mmdebstrap")).then(|| "mmdebstrap is not installed".to_owned()),
            Need::Browser => return (!is_installed("chromium")).then(|| "chromium is not installed".to_owned()),
        };
        let complete = self.clients.join(&part).join("installed").is_file();
        (!complete).then(|| format!("{part} is not installed"))
    }

    pub fn python(&self, version: &str) -> PathBuf {
        self.clients.join(format!("python-{version}/bin/python"))
    }

    /// The interpreter that comes with the packages: the conformance suite asks for a newer one than most systems have.
    pub fn node(&self) -> PathBuf {
        self.packages().join(".bin/node")
    }

    /// As the system has it.
    pub fn browser() -> &'static str {
        "/usr/bin/chromium"
    }

    pub fn packages(&self) -> PathBuf {
        self.clients.join("node/node_modules")
    }
}

/// Files of this test in the source tree.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}
