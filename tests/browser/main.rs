//! The dashboard in a real browser, on the real program: what a person does, and what a page of somebody else cannot do.
//!
//! `cargo xtask test browser` installs what drives it. What is missing is skipped by name. Pictures of what was seen are left
//! in `target/browser`. With a daemon in the environment, its are the sandboxes that the page shows.

mod rebuilt;
mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use libtest_mimic::{Arguments, Failed, Trial};
use sandpen_tests::Result;
use sandpen_tests::daemon::Given;
use sandpen_tests::program::{built, run};
use serde_json::{Value, json};
use server::Server;

/// A browser is several busy processes.
const AT_ONCE: usize = 2;

/// For one script.
const LIMIT: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let installed = match Installed::find() {
        Ok(installed) => Arc::new(installed),
        Err(trouble) => {
            println!("the browser cannot run: {trouble}");
            return ExitCode::FAILURE;
        }
    };
    type Run = fn(&Installed) -> Result<()>;
    let trials: &[(&str, &[Need], Run)] = &[
        ("a person does everything that there is to do", &[Need::Browser], person),
        ("files are brought, seen and taken", &[Need::Browser], files),
        ("the keyboard alone is enough", &[Need::Browser], keyboard),
        ("somebody with an account signs in and leaves", &[Need::Browser], account),
        ("users of an older server find their page", &[Need::Browser], older),
        ("HT-07 a page of another origin has no effect and reads nothing", &[Need::Browser], foreign),
        ("FU-04 what code has made is opened in every way and runs in none", &[Need::Browser], served),
        ("what is in the program is what its source makes", &[Need::Toolchain], rebuilt::is_reproduced),
    ];
    let trials = trials.iter().map(|&(name, needs, run)| {
        let missing = needs.iter().find_map(|need| installed.missing(*need));
        if let Some(why) = &missing {
            eprintln!("SKIPPED: {name}: {why}");
        }
        let is_skipped = missing.is_some();
        let installed = installed.clone();
        let run = move || match missing {
            Some(why) => Err(Failed::from(why)),
            None => run(&installed).map_err(|trouble| Failed::from(trouble.to_string())),
        };
        Trial::test(name, run).with_ignored_flag(is_skipped)
    });
    let trials = trials.collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A part that may be missing on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Browser,
    /// What makes the dashboard from its source.
    Toolchain,
}

/// Where things are.
struct Installed {
    product: PathBuf,
    target: PathBuf,
    /// Where sandboxes are made, if not by the embedded engine.
    daemon: Option<Given>,
}

impl Installed {
    fn find() -> Result<Self> {
        let product = built("sandpen")?;
        let target = product.ancestors().nth(2).ok_or("the program lies nowhere")?.to_owned();
        Ok(Self { product, target, daemon: Given::of_environment()? })
    }

    /// Why a part is not there, if it is not.
    fn missing(&self, need: Need) -> Option<String> {
        if need == Need::Toolchain && self.daemon.is_some() {
            return Some("there are no sandboxes in it, and the stage browser does it".to_owned());
        }
        let parts: &[&str] = match need {
            Need::Browser => &["node", "dashboard"],
            Need::Toolchain => &["dashboard"],
        };
        let part = parts.iter().find(|part| !self.clients().join(part).join("installed").is_file());
        match (part, need) {
            (Some(part), _) => Some(format!("{part} is not installed (cargo xtask test browser does that)")),
            (None, Need::Browser) if !self.chromium().is_file() => {
                Some(format!("{} is not there; SANDPEN_TEST_CHROMIUM names another", self.chromium().display()))
            }
            (None, Need::Browser | Need::Toolchain) => None,
        }
    }

    fn clients(&self) -> PathBuf {
        self.target.join("clients")
    }

    fn chromium(&self) -> PathBuf {
        env::var_os("SANDPEN_TEST_CHROMIUM").map_or_else(|| PathBuf::from("/usr/bin/chromium"), PathBuf::from)
    }

    /// The interpreter that comes with the packages.
    fn node(&self) -> PathBuf {
        self.clients().join("node/node_modules/.bin/node")
    }

    /// A script of this test, with what it is told.
    fn script(&self, name: &str, mut given: Value) -> Result<()> {
        let axe = fs::read_to_string(self.clients().join("dashboard/node_modules/axe-core/axe.min.js"))?;
        given["packages"] = json!(self.clients().join("node/node_modules"));
        given["chromium"] = json!(self.chromium());
        given["pictures"] = json!(self.target.join("browser"));
        given["axe"] = json!(axe);
        let place = tempfile::Builder::new().prefix("sandpen-browser-").tempdir()?;
        let told = place.path().join("given.json");
        fs::write(&told, given.to_string())?;
        let mut command = Command::new(self.node());
        command
            .arg(source("browser").join(name))
            .env_clear()
            .env("HOME", place.path())
            .env("TMPDIR", place.path())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("SANDPEN_TEST_GIVEN", &told)
            .current_dir(place.path());
        run(&mut command, place.path(), LIMIT)?.succeeded().map(drop)
    }
}

/// A file or directory of this package in the source tree.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn person(installed: &Installed) -> Result<()> {
    let server = Server::with_audit_trail(installed, "alice", "admin")?;
    let other = server.token_for(installed, "bob", "run")?;
    let given = json!({ "url": server.url, "token": server.token, "other": other });
    server.explain(installed.script("person.mjs", given))
}

fn files(installed: &Installed) -> Result<()> {
    let server = Server::with_token(installed, "alice", "run")?;
    server.explain(installed.script("files.mjs", json!({ "url": server.url, "token": server.token })))
}

fn keyboard(installed: &Installed) -> Result<()> {
    let server = Server::open(installed)?;
    server.explain(installed.script("keyboard.mjs", json!({ "url": server.url })))
}

fn account(installed: &Installed) -> Result<()> {
    const PASSWORD: &str = "correct horse battery staple";
    // So short that it is over while the script works.
    let server = Server::with_account(installed, "alice", PASSWORD, "5s")?;
    server.explain(installed.script("account.mjs", json!({ "url": server.url, "password": PASSWORD })))
}

fn older(installed: &Installed) -> Result<()> {
    let server = Server::older(installed)?;
    server.explain(installed.script("older.mjs", json!({ "url": server.url, "token": server.token })))
}

fn served(installed: &Installed) -> Result<()> {
    let server = Server::open(installed)?;
    server.explain(installed.script("served.mjs", json!({ "url": server.url })))
}

fn foreign(installed: &Installed) -> Result<()> {
    let (open, guarded) = (Server::open(installed)?, Server::with_token(installed, "alice", "run")?);
    let servers = json!([
        { "what": "where nobody is asked who they are", "url": open.url },
        { "what": "where a token is asked for", "url": guarded.url, "token": guarded.token },
    ]);
    open.explain(installed.script("foreign.mjs", json!({ "servers": servers })))
}
