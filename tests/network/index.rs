//! The package indexes that this machine is set up for: the only check that needs the world as it is.

use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sandpen_tests::Result;
use sandpen_tests::table::{Table, Verdict};

use crate::backend::{self, is_installed};
use crate::product::Product;

pub const ARGUMENT: &str = "--be-this-machine";

struct Installation {
    name: &'static str,
    program: &'static str,
    /// Who must answer on the host, or there is nothing to install from.
    index: &'static str,
    network: &'static str,
    script: &'static str,
    says: &'static str,
}

const INSTALLATIONS: &[Installation] = &[
    Installation {
        name: "pip install",
        program: "python3",
        index: "pypi.org:443",
        network: "pypi.org,files.pythonhosted.org",
        script: "python3 -m pip install --quiet --disable-pip-version-check --target packages six && PYTHONPATH=packages python3 -c 'import six; print(six.__name__)'",
        says: "six",
    },
    Installation {
        name: "npm install",
        program: "npm",
        index: "registry.npmjs.org:443",
        network: "registry.npmjs.org",
        script: "npm install --silent --no-audit --no-fund is-number >&2 && node -e 'console.log(require(\"is-number\")(7))'",
        says: "true",
    },
];

pub fn judge(wanted: &[String]) -> Result<ExitCode> {
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|begin| name.starts_with(begin.as_str()));
    let mut chosen = INSTALLATIONS.iter().filter(|one| is_wanted(one.name)).peekable();
    if chosen.peek().is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    let product = Product::new()?;
    // On the embedded engine it is the host's own tree, which trusts whom the host trusts.
    let is_of_our_world = backend::daemon()?.is_some();
    let mut table = Table::titled("package indexes of this machine");
    for one in chosen {
        let started = Instant::now();
        let (verdict, detail) = if is_of_our_world {
            (
                Verdict::Skip,
                "the image on the daemon trusts the world of these checks, and no index outside of it".to_owned(),
            )
        } else if !is_installed(one.program) {
            (Verdict::Skip, format!("{} is not installed", one.program))
        } else if !answers(one.index) {
            (Verdict::Skip, format!("{} does not answer on this machine", one.index))
        } else {
            match install(&product, one) {
                Ok(()) => (Verdict::Pass, format!("with {}", one.network)),
                Err(trouble) if trouble.0.contains("No module named pip") => {
                    (Verdict::Skip, "pip is not installed for the Python of sandboxes".to_owned())
                }
                Err(trouble) => (Verdict::Fail, trouble.to_string()),
            }
        };
        table.add(one.name, verdict, &detail, started.elapsed());
    }
    Ok(table.finish())
}

fn install(product: &Product, one: &Installation) -> Result<()> {
    let ran = product.script(one.network, &["--memory", "1GiB"], one.script)?.succeeded()?;
    if ran.stdout.trim() == one.says { Ok(()) } else { Err(ran.told("it is not what was installed")) }
}

fn answers(index: &str) -> bool {
    let Ok(addresses) = index.to_socket_addrs() else { return false };
    addresses.into_iter().any(|address| TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok())
}
