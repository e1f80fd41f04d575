//! The rows: each one thing to time, done once per round.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sandbox::{
    Error, ExecRequest, ExecStatus, Layer, Network, OutputCaps, Owner, Result, SandboxId, SandboxService, SandboxSpec,
};
use serde_json::json;

use super::PAUSE;
use super::bundle::Bundle;
use super::program::{ask, time};
use crate::config::Config;
use crate::mcp::customer::Customer;
use crate::wiring;

const PRINT: &str = "print(1)";
const DATA: &str = "import numpy, pandas; print(1)";
const LOG: &str = "console.log(1)";
const TRUE: &str = "/bin/true";
/// As many as a server keeps.
const SPARES: usize = 2;

/// What a row is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Python,
    Node,
    /// Python with modules that take long to import.
    Data,
    True,
    /// Nothing to compare it with.
    Alone,
}

macro_rules! rows {
    ($($variant:ident, $name:literal, $work:ident, $what:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Row {
            $($variant,)*
        }

        impl Row {
            pub const ALL: &'static [Row] = &[$(Row::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(Row::$variant => $name,)* }
            }

            pub fn what(self) -> &'static str {
                match self { $(Row::$variant => $what,)* }
            }

            pub fn work(self) -> Work {
                match self { $(Row::$variant => Work::$work,)* }
            }
        }
    };
}

rows! {
    BarePython, "bare-python", Python, "python3 -c 'print(1)', no sandbox";
    SandboxPython, "sandbox-python", Python, "fresh sandbox, cold Python, through the service";
    SparePython, "spare-python", Python, "the same, sandbox made ahead";
    McpPython, "mcp-python", Python, "run_code over MCP stdio, as the client sees it";
    McpColdPython, "mcp-cold-python", Python, "the same with --no-warm";
    BareNode, "bare-node", Node, "node -e 'console.log(1)', no sandbox";
    McpNode, "mcp-node", Node, "run_code in JavaScript over MCP stdio";
    McpColdNode, "mcp-cold-node", Node, "the same with --no-warm";
    BareData, "bare-data", Data, "python3 -c 'import numpy, pandas; print(1)', no sandbox";
    McpData, "mcp-data", Data, "run_code of the same over MCP stdio";
    McpColdData, "mcp-cold-data", Data, "the same with --no-warm";
    RunPython, "run-python", Python, "sandpen run python, as a program";
    RunPackages, "run-packages", Python, "the same, with numpy and pandas installed before and not imported";
    BubblewrapPython, "bwrap-python", Python, "bubblewrap: namespaces and file tree, no limits, no filter";
    CrunPython, "crun-python", Python, "crun run, without a user namespace";
    RuncPython, "runc-python", Python, "runc run, without a user namespace";
    BareTrue, "bare-true", True, "/bin/true, no sandbox";
    SandboxTrue, "sandbox-true", True, "fresh sandbox, /bin/true, through the service";
    SpareTrue, "spare-true", True, "the same, sandbox made ahead";
    ExecTrue, "exec-true", True, "/bin/true in a running sandbox";
    BubblewrapTrue, "bwrap-true", True, "bubblewrap, /bin/true";
    Create, "create-destroy", Alone, "make an empty sandbox and remove it";
    CreateNetwork, "create-network", Alone, "the same, with a network";
    ForkContext, "fork-context", Alone, "fork_context over MCP stdio, of a live context of Python";
    ForkContexts, "fork-contexts", Alone, "the same, sixteen branches at once";
}

impl Row {
    /// How long to leave the machine alone after it.
    pub fn rest(self) -> Duration {
        match self {
            // Another interpreter imports the same meanwhile, which must not be on the clock of any row.
            Self::McpData => Duration::from_secs(2),
            _ => PAUSE,
        }
    }
}

/// What the rows need, made once.
#[derive(Debug)]
pub struct Setting {
    service: SandboxService,
    /// One that has sandboxes made ahead.
    keeping: SandboxService,
    owner: Owner,
    /// The interpreter itself, not a shim in front of it: every row starts the same program.
    python: Result<PathBuf>,
    prefix: Option<PathBuf>,
    ourselves: PathBuf,
    state_dir: PathBuf,
    allow_missing: BTreeSet<Layer>,
    standing: SandboxId,
    bundle: Bundle,
    /// Started when they are first needed.
    customer: OnceLock<Customer>,
    cold_customer: OnceLock<Customer>,
    /// With a live context in it, of the first customer.
    branched: OnceLock<String>,
}

impl Setting {
    pub async fn prepare(service: SandboxService, config: &Config) -> Result<Self> {
        let owner = Owner::local();
        let python = ask("python3", &["-c", "import sys; print(sys.executable)"]).map(PathBuf::from);
        let prefix = ask("python3", &["-c", "import sys; print(sys.base_prefix)"]).ok().map(PathBuf::from);
        let prefix = prefix.filter(|prefix| !prefix.starts_with("/usr") || prefix.starts_with("/usr/local"));
        let ourselves = std::env::current_exe()
            .map_err(|cause| Error::internal("this program does not know where it is").with_cause(cause))?;
        let keeping = wiring::service_with_spares(config, SPARES).await?;
        let standing = service.create(&owner, SandboxSpec::new(owner.clone())).await?.id;
        let bundle = Bundle::make(python.as_deref().ok(), prefix.as_deref())?;
        let state_dir = config.state_dir()?.to_owned();
        let allow_missing = config.allow_missing.clone();
        Ok(Self {
            service,
            keeping,
            owner,
            python,
            prefix,
            ourselves,
            state_dir,
            allow_missing,
            standing,
            bundle,
            customer: OnceLock::new(),
            cold_customer: OnceLock::new(),
            branched: OnceLock::new(),
        })
    }

    pub async fn clear_away(self) -> Result<()> {
        self.keeping.shutdown().await?;
        self.service.stop(&self.owner, &self.standing).await
    }

    /// Fails when this row cannot be measured here, with the reason.
    pub async fn once(&self, row: Row) -> Result<Duration> {
        match row {
            Row::BarePython => time(Command::new(self.python()?).args(["-c", PRINT]), "1\n"),
            Row::BareTrue => time(&mut Command::new(TRUE), ""),
            Row::BubblewrapPython => time(self.bubblewrap()?.arg(self.python()?).args(["-c", PRINT]), "1\n"),
            Row::BubblewrapTrue => time(self.bubblewrap()?.arg(TRUE), ""),
            Row::CrunPython => self.python().and_then(|_| time(&mut self.bundle.command("crun")?, "1\n")),
            Row::RuncPython => self.python().and_then(|_| time(&mut self.bundle.command("runc")?, "1\n")),
            Row::SandboxPython => self.fresh(&self.service, &[self.python_text()?, "-c", PRINT], b"1\n").await,
            Row::SparePython => self.fresh(&self.keeping, &[self.python_text()?, "-c", PRINT], b"1\n").await,
            Row::SandboxTrue => self.fresh(&self.service, &[TRUE], b"").await,
            Row::SpareTrue => self.fresh(&self.keeping, &[TRUE], b"").await,
            Row::ExecTrue => {
                let started = Instant::now();
                self.exec(&self.service, &self.standing, &[TRUE], b"").await?;
                Ok(started.elapsed())
            }
            Row::Create => {
                let started = Instant::now();
                let id = self.create(&self.service).await?;
                self.service.stop(&self.owner, &id).await?;
                Ok(started.elapsed())
            }
            Row::CreateNetwork => {
                let started = Instant::now();
                let spec = SandboxSpec { network: Network::Internet, ..SandboxSpec::new(self.owner.clone()) };
                let id = self.service.create(&self.owner, spec).await?.id;
                self.service.stop(&self.owner, &id).await?;
                Ok(started.elapsed())
            }
            Row::RunPython => time(self.ourselves().args(["run", "python", PRINT]), "1\n"),
            Row::RunPackages => {
                time(self.ourselves().args(["run", "python", PRINT, "--package", "numpy,pandas"]), "1\n")
            }
            Row::BareNode => time(Command::new("node").args(["-e", LOG]), "1\n"),
            Row::McpPython => self.call(&self.customer, &[], "python", PRINT),
            Row::McpColdPython => self.call(&self.cold_customer, &["--no-warm"], "python", PRINT),
            Row::BareData => time(Command::new(self.python()?).args(["-c", DATA]), "1\n"),
            Row::McpData => self.call(&self.customer, &[], "python", DATA),
            Row::McpColdData => self.call(&self.cold_customer, &["--no-warm"], "python", DATA),
            Row::ForkContext => self.branch(1),
            Row::ForkContexts => self.branch(16),
            Row::McpNode => self.call(&self.customer, &[], "javascript", LOG),
            Row::McpColdNode => self.call(&self.cold_customer, &["--no-warm"], "javascript", LOG),
        }
    }

    fn ourselves(&self) -> Command {
        let mut command = Command::new(&self.ourselves);
        command.arg("--state-dir").arg(&self.state_dir);
        for layer in &self.allow_missing {
            command.args(["--allow-missing", layer.as_str()]);
        }
        command
    }

    /// From the first byte of the request to the last of the answer, in a sandbox of its own each time.
    fn call(&self, known: &OnceLock<Customer>, flags: &[&str], language: &str, code: &str) -> Result<Duration> {
        let customer = self.begun(known, flags)?;
        let started = Instant::now();
        let result = customer.call("run_code", json!({ "language": language, "code": code }))?;
        let took = started.elapsed();
        match result["stdout"].as_str() {
            Some("1\n") => Ok(took),
            Some(_) | None => Err(Error::unavailable(format!("it printed {}", result["stdout"]))),
        }
    }

    fn begun<'a>(&self, known: &'a OnceLock<Customer>, flags: &[&str]) -> Result<&'a Customer> {
        if let Some(customer) = known.get() {
            return Ok(customer);
        }
        let customer = Customer::begin(self.ourselves().arg("mcp").args(flags))?;
        Ok(known.get_or_init(|| customer))
    }

    /// Branches of one context, which are closed after the clock was stopped.
    fn branch(&self, count: usize) -> Result<Duration> {
        let customer = self.begun(&self.customer, &[])?;
        let sandbox = match self.branched.get() {
            Some(sandbox) => sandbox,
            None => {
                let made =
                    customer.call("create_sandbox", json!({ "idle_timeout_s": 24 * 60 * 60, "processes": 1000 }))?;
                let id = made["sandbox_id"].as_str().unwrap_or_default();
                let code = json!({ "sandbox_id": id, "context": "trunk", "language": "python", "code": "state = 1" });
                customer.call("run_code", code)?;
                self.branched.get_or_init(|| id.to_owned())
            }
        };
        let started = Instant::now();
        let forked =
            customer.call("fork_context", json!({ "sandbox_id": sandbox, "context": "trunk", "count": count }))?;
        let took = started.elapsed();
        let branches = forked["contexts"].as_array().map(Vec::as_slice).unwrap_or_default();
        if branches.len() != count {
            return Err(Error::unavailable(format!("there are {} branches", branches.len())));
        }
        for branch in branches {
            let close = json!({ "sandbox_id": sandbox, "action": "close", "context": branch });
            customer.call("manage_contexts", close)?;
        }
        Ok(took)
    }

    /// From the request to the last byte and the exit code; the sandbox is removed after the clock was stopped.
    async fn fresh(&self, service: &SandboxService, argv: &[&str], expected: &[u8]) -> Result<Duration> {
        let started = Instant::now();
        let id = self.create(service).await?;
        let done = self.exec(service, &id, argv, expected).await;
        let took = started.elapsed();
        service.stop(&self.owner, &id).await?;
        done.map(|()| took)
    }

    async fn create(&self, service: &SandboxService) -> Result<SandboxId> {
        service.create(&self.owner, SandboxSpec::new(self.owner.clone())).await.map(|sandbox| sandbox.id)
    }

    async fn exec(&self, service: &SandboxService, id: &SandboxId, argv: &[&str], expected: &[u8]) -> Result<()> {
        let request = ExecRequest::new(argv.iter().copied(), Duration::from_secs(30))?;
        let captured = service.exec(&self.owner, id, request).await?.capture(OutputCaps::default()).await?;
        if captured.outcome.status == ExecStatus::Exited(0) && captured.stdout.bytes() == expected {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "it ended as {}: {}",
            captured.outcome.status.as_str(),
            captured.stderr.to_text().trim()
        )))
    }

    fn python(&self) -> Result<&Path> {
        match &self.python {
            Ok(python) => Ok(python),
            Err(error) => Err(Error::new(error.kind(), error.message())),
        }
    }

    fn python_text(&self) -> Result<&str> {
        self.python()?.to_str().ok_or_else(|| Error::unsupported("the path of python3 is not UTF-8"))
    }

    /// As many of our walls as it can build by flags: it has no limits and brings no system call filter.
    fn bubblewrap(&self) -> Result<Command> {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]);
        command.args(["--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]);
        command.args(["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--ro-bind", "/usr", "/usr"]);
        for name in ["bin", "sbin", "lib", "lib64"] {
            let path = Path::new("/").join(name);
            match std::fs::read_link(&path) {
                Ok(target) => command.arg("--symlink").arg(target).arg(&path),
                Err(_) if path.exists() => command.arg("--ro-bind").arg(&path).arg(&path),
                Err(_) => &mut command,
            };
        }
        if let Some(prefix) = &self.prefix {
            command.arg("--ro-bind").arg(prefix).arg(prefix);
        }
        command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace"]);
        command.args(["--chdir", "/workspace", "--"]);
        Ok(command)
    }
}
