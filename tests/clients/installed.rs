//! Where things are: the programs under test, and the clients that `cargo xtask test clients` has installed.

use std::path::{Path, PathBuf};

use sandpen_tests::Result;
use sandpen_tests::program::built;

use crate::Need;

pub(crate) struct Installed {
    /// The program as its users get it.
    pub product: PathBuf,
    /// The same with the fixtures of the conformance suite.
    pub fixtures: PathBuf,
    clients: PathBuf,
}

impl Installed {
    pub fn find() -> Result<Self> {
        let product = built("sandpen")?;
        let clients = product.ancestors().nth(2).ok_or("the program lies nowhere")?.join("clients");
        Ok(Self { product, fixtures: built("sandpen-conformance")?, clients })
    }

    /// Why a part is not there, if it is not.
    pub fn missing(&self, need: Need) -> Option<String> {
        let part = match need {
            Need::Node => "node".to_owned(),
            Need::Python(version) => format!("python-{version}"),
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

    pub fn packages(&self) -> PathBuf {
        self.clients.join("node/node_modules")
    }
}

/// Files of this test in the source tree.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}
