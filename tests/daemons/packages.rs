//! Packages on a daemon: installed once from an index of our own, kept by the daemon, and gone when they are removed.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandpen_tests::program::{Program, Ran, run};
use sandpen_tests::{Result, images};
use serde_json::Value;

use crate::scene::{LIMIT, Scene};

/// Writes the packages; its arguments are the directory and the address that links begin with.
const MAKE: &str = include_str!("../../crates/sandpen/tests/support/index.py");

/// Debian with pip.
pub(crate) const IMAGE: &str = "pip:test";
const CODE: &str = "import small, inner; print(small.version, inner.word, small.__file__)";
const SAYS: &str = "2.0 inside /packages/python/small.py\n";

pub(crate) fn kept(scene: &mut Scene) -> Result<()> {
    scene.daemon.run(&["import", &images::debian_with_pip()?.to_string_lossy(), IMAGE])?;
    // What every sandbox needs is there before, and what is there after is compared with it.
    scene.expect(&["run", "python", "--image", IMAGE, "print(1)"], "1\n")?;
    let before = volumes(scene)?;
    let index = Index::start(&scene.path().join("index"))?;
    let with_index = |arguments: &[&str]| {
        let variables = [("PIP_CONFIG_FILE", "/dev/null"), ("PIP_INDEX_URL", index.address.as_str())];
        scene.ran_with(&variables, arguments)
    };
    let install = ["run", "python", "--image", IMAGE, CODE, "--package", "small"];
    says(&with_index(&install)?, SAYS)?;
    let fetched = index.fetched("small-2.0");
    says(&with_index(&install)?, SAYS)?;
    if fetched != 1 || index.fetched("small-2.0") != 1 {
        return Err(format!("it was fetched {fetched} times, and then again:\n{}", index.process.log()).into());
    }
    let Index { process, address } = index;
    drop(process);
    let with_index = |arguments: &[&str]| scene.ran_with(&[("PIP_INDEX_URL", address.as_str())], arguments);
    says(&with_index(&install)?, SAYS)?;
    in_a_sandbox_that_stays(&with_index)?;
    removed(scene, &with_index, &before)?;
    // Nothing is kept any more, so it would have to be installed.
    let ran = with_index(&install)?;
    if ran.status.code() != Some(125) || !ran.stderr.contains("does not answer") {
        return Err(ran.told("packages that were removed are still there"));
    }
    scene.settles_to(&BTreeSet::new(), Duration::from_secs(60))?;
    scene.daemon.run(&["rmi", IMAGE])?;
    same_volumes(scene, &before)
}

fn in_a_sandbox_that_stays(ran: &dyn Fn(&[&str]) -> Result<Ran>) -> Result<()> {
    let id = ran(&["create", "--image", IMAGE, "--package", "small"])?.succeeded()?.stdout;
    let said = ran(&["exec", id.trim(), "--", "python3", "-c", CODE]);
    let written = ran(&["exec", id.trim(), "--", "touch", "/packages/python/x"]);
    ran(&["stop", id.trim()])?.succeeded()?;
    says(&said?, SAYS)?;
    let written = written?;
    if written.stderr.contains("Read-only file system") { Ok(()) } else { Err(written.told("it was written to")) }
}

/// By name, with the volumes that held it.
fn removed(scene: &Scene, ran: &dyn Fn(&[&str]) -> Result<Ran>, before: &BTreeSet<String>) -> Result<()> {
    if volumes(scene)? == *before {
        return Err("packages are kept in no volume".into());
    }
    let listed = ran(&["package", "ls", "--json"])?.succeeded()?.stdout;
    let listed: Value = serde_json::from_str(&listed).map_err(|error| format!("{error}: {listed}"))?;
    let sets = listed["sets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [set] = sets else { return Err(format!("the kept packages are {listed}").into()) };
    ran(&["package", "rm", set["digest"].as_str().unwrap_or_default()])?.succeeded()?;
    same_volumes(scene, before)
}

fn same_volumes(scene: &Scene, before: &BTreeSet<String>) -> Result<()> {
    let after = volumes(scene)?;
    if after == *before { Ok(()) } else { Err(format!("there are volumes {after:?} instead of {before:?}").into()) }
}

fn volumes(scene: &Scene) -> Result<BTreeSet<String>> {
    let listed = scene.daemon.run(&["volume", "ls", "--quiet"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

fn says(ran: &Ran, output: &str) -> Result<()> {
    if ran.status.success() && ran.stdout == output { Ok(()) } else { Err(ran.told("it says something else")) }
}

/// Files of a directory; who asked for which is in the log of the program that serves them.
pub(crate) struct Index {
    process: Program,
    pub address: String,
}

impl Index {
    pub fn start(site: &Path) -> Result<Self> {
        fs::create_dir(site)?;
        let host = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut make = Command::new("python3");
        run(make.args(["-c", MAKE]).arg(site).arg(format!("http://{host}")), site, LIMIT)?.succeeded()?;
        let mut serve = Command::new("python3");
        serve.args(["-u", "-m", "http.server", &host.port().to_string(), "--bind", "127.0.0.1", "--directory"]);
        serve.arg(site).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Program::start(&mut serve, &site.join("log"))?;
        let started = Instant::now();
        while TcpStream::connect(host).is_err() {
            if process.child.try_wait()?.is_some() || started.elapsed() > LIMIT {
                return Err(process.tell("the index does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { process, address: format!("http://{host}/simple") })
    }

    fn fetched(&self, part: &str) -> usize {
        self.process.log().lines().filter(|line| line.contains("GET") && line.contains(part)).count()
    }
}
