//! The gateway of one process: makes passes, opens doors.

use std::collections::HashMap;
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::fd::OwnedFd as OwnedSocket;
#[cfg(windows)]
use std::os::windows::io::OwnedSocket;
use std::sync::{Arc, Mutex, PoisonError};

use sandbox::{Environment, Error, EventBus, HostRule, NetworkActivity, NetworkUsage, Owner, Result};
use tokio::task::AbortHandle;

use crate::activity::{Activity, Mark};
use crate::caps::{Cap, Caps};
use crate::dial::Dialer;
use crate::door::{self, Doorway, Entrance};
use crate::far::Arrivals;
use crate::grant::{Allowance, Grant, Pass};
use crate::names::Names;
use crate::reach::Reach;
use crate::resolve::Resolver;
use crate::responder::Questions;
use crate::rule::Rules;
use crate::secrets::{self, Prepared, Secret, SecretSource, Vault};
use crate::worker::Worker;

/// Decided once, when the process starts.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Hosts by name that may be reached although their addresses are private. Only an operator may name one.
    pub private_hosts: Vec<HostRule>,
    pub secrets: SecretSource,
    pub of_sandbox: Allowance,
    pub of_owner: Allowance,
    /// Of owners for whom it is another.
    pub of_owners: HashMap<Owner, Allowance>,
    pub events: EventBus,
    /// Rules to be left out, to see that a test would notice.
    #[cfg(feature = "weaken")]
    pub without: std::collections::BTreeSet<crate::rule::Rule>,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            private_hosts: Vec::new(),
            secrets: SecretSource::default(),
            of_sandbox: Allowance { connections: 1024, bytes: None, rate: None },
            of_owner: Allowance { connections: 4096, bytes: None, rate: None },
            of_owners: HashMap::new(),
            events: EventBus::default(),
            #[cfg(feature = "weaken")]
            without: std::collections::BTreeSet::new(),
        }
    }
}

/// Sockets that were made inside the network of a sandbox.
#[derive(Debug)]
pub struct Sockets {
    /// Listens on port [`Sockets::PROXY_PORT`] of every address. Connections to that port of a loopback address speak to
    /// the proxy; the local address of any other is where its maker wanted to go.
    pub streams: OwnedSocket,
    /// Bound to port 53 of 127.0.0.1.
    pub names: OwnedSocket,
}

impl Sockets {
    pub const PROXY_PORT: u16 = 3128;
}

/// What all sandboxes of an owner may do together.
#[derive(Debug)]
struct Owners {
    usual: Allowance,
    of: HashMap<Owner, Allowance>,
    /// For as long as the process lives: what an owner used up stays used up.
    caps: HashMap<Owner, Arc<Cap>>,
}

impl Owners {
    fn allowance(&self, owner: &Owner) -> Allowance {
        self.of.get(owner).copied().unwrap_or(self.usual)
    }
}

/// One for each process. Runs on a thread of its own, which starts with the first door.
#[derive(Debug)]
pub struct Gateway {
    settings: GatewaySettings,
    reach: Arc<Reach>,
    resolver: Arc<Resolver>,
    owners: Mutex<Owners>,
    /// Secrets that this process found elsewhere than where people keep theirs.
    entrusted: Mutex<Vault>,
    worker: Mutex<Option<Worker>>,
}

impl Gateway {
    pub fn new(settings: GatewaySettings) -> Self {
        let rules = Rules {
            #[cfg(feature = "weaken")]
            without: settings.without.clone(),
        };
        Self {
            reach: Arc::new(Reach::new(settings.private_hosts.clone(), rules)),
            owners: Mutex::new(Owners {
                usual: settings.of_owner,
                of: settings.of_owners.clone(),
                caps: HashMap::new(),
            }),
            settings,
            resolver: Arc::default(),
            entrusted: Mutex::default(),
            worker: Mutex::default(),
        }
    }

    /// This process listens here: no sandbox may connect to it, whatever its network and whatever the operator allowed.
    pub fn protect(&self, address: SocketAddr) {
        self.reach.protect(address);
    }

    /// A secret of this process itself, such as the login of a package index. Whoever knows its name can grant it, so the
    /// name must be one that no person could have meant. One that had it before is replaced. It is put in for reading alone:
    /// what runs while packages are installed must not publish any.
    pub fn entrust(&self, secret: Secret) {
        self.entrusted.lock().unwrap_or_else(PoisonError::into_inner).insert(secret.for_reading());
    }

    /// Check a grant and make what the sandbox needs. With a keepsake, the same as before.
    ///
    /// Fails when a secret is unknown, or its host is out of the network's reach.
    pub fn prepare(&self, grant: Grant, keepsake: Option<&str>) -> Result<Pass> {
        if grant.network.is_none() {
            return Err(Error::internal("a sandbox without a network needs no way out"));
        }
        let entrusted = self.entrusted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let source = match grant.secrets.iter().all(|name| entrusted.get(name).is_some()) {
            true => &SecretSource::Vault(entrusted),
            false => &self.settings.secrets,
        };
        let secrets = secrets::prepare(source, &grant, keepsake, &[], &self.reach.rules)?;
        let environment = proxy_variables()?;
        Ok(match secrets {
            None => Pass { grant, environment, files: Vec::new(), keepsake: None, inspector: None },
            Some(Prepared { environment: variables, files, keepsake, inspector }) => Pass {
                grant,
                environment: environment.overlaid_by(&variables),
                files,
                keepsake: Some(keepsake),
                inspector: Some(inspector),
            },
        })
    }

    /// Let a sandbox out, as far as its pass says, until the door is dropped.
    pub fn open(self: &Arc<Self>, pass: &Pass, sockets: Sockets) -> Result<Door> {
        self.open_with(pass, self.account(pass), || door::adopt(sockets))
    }

    /// The same for a sandbox that had a door before: what it used then counts.
    pub fn open_again(self: &Arc<Self>, pass: &Pass, sockets: Sockets, account: Account) -> Result<Door> {
        self.open_with(pass, account, || door::adopt(sockets))
    }

    /// The same for a sandbox whose sockets are in another kernel: somebody carries what lands on them to here.
    pub fn open_far(self: &Arc<Self>, pass: &Pass, arrivals: Arrivals) -> Result<Door> {
        self.open_far_again(pass, arrivals, self.account(pass))
    }

    /// The same for one that had a door before.
    pub fn open_far_again(self: &Arc<Self>, pass: &Pass, arrivals: Arrivals, account: Account) -> Result<Door> {
        let Arrivals { connections, questions } = arrivals;
        self.open_with(pass, account, || Ok((Entrance::Far(connections), Questions::Far(questions.into()))))
    }

    fn account(&self, pass: &Pass) -> Account {
        let Grant { id, owner, .. } = &pass.grant;
        let activity = Arc::new(Activity::new(owner.clone(), id.clone(), self.settings.events.clone()));
        Account { activity, cap: Cap::new(self.settings.of_sandbox) }
    }

    fn open_with(
        self: &Arc<Self>,
        pass: &Pass,
        account: Account,
        make: impl FnOnce() -> std::io::Result<(Entrance, Questions)>,
    ) -> Result<Door> {
        let broken =
            |error: std::io::Error| Error::internal("the sandbox's way out could not be opened").with_cause(error);
        let Grant { id: _, owner, network, private_hosts, secrets: _ } = &pass.grant;
        let handle = {
            let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
            match &*worker {
                Some(worker) => worker.handle().clone(),
                None => worker.insert(Worker::start().map_err(broken)?).handle().clone(),
            }
        };
        let doorway = Arc::new(Doorway {
            dialer: Dialer::new(
                network.clone(),
                private_hosts.clone(),
                Arc::clone(&self.reach),
                Arc::clone(&self.resolver),
            ),
            activity: Arc::clone(&account.activity),
            caps: Caps { of_sandbox: Arc::clone(&account.cap), of_owner: self.cap_of(owner) },
            inspector: pass.inspector.clone(),
            most_connections: self.settings.of_sandbox.connections,
            names: Arc::new(Mutex::new(Names::new())),
        });
        let (entrance, questions) = {
            let _context = handle.enter();
            make().map_err(broken)?
        };
        let task = handle.spawn(doorway.run(entrance, questions)).abort_handle();
        Ok(Door { task, account, _gateway: Arc::clone(self) })
    }

    fn cap_of(&self, owner: &Owner) -> Arc<Cap> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let allowance = owners.allowance(owner);
        Arc::clone(owners.caps.entry(owner.clone()).or_insert_with(|| Cap::new(allowance)))
    }

    /// Allowances of owners, in place of those before, also for what is open.
    pub fn set_allowances(&self, usual: Allowance, of: HashMap<Owner, Allowance>) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        (owners.usual, owners.of) = (usual, of);
        owners.caps.iter().for_each(|(owner, cap)| cap.set(owners.allowance(owner)));
    }
}

/// A sandbox's way out. Dropping it closes the sockets and ends every connection.
#[derive(Debug)]
pub struct Door {
    task: AbortHandle,
    account: Account,
    /// The thread that serves it ends with the gateway.
    _gateway: Arc<Gateway>,
}

impl Door {
    pub fn mark(&self) -> Mark {
        self.account.activity.mark()
    }

    /// What happened from then to now.
    pub fn since(&self, mark: Mark) -> NetworkActivity {
        self.account.activity.since(mark)
    }

    pub fn usage(&self) -> NetworkUsage {
        self.account.usage()
    }

    /// For the next door of the same sandbox.
    pub fn account(&self) -> Account {
        self.account.clone()
    }
}

/// What a sandbox has used of its way out and may still use. It outlives a door: a sandbox that is built anew over its own
/// files is the same sandbox.
#[derive(Clone, Debug)]
pub struct Account {
    activity: Arc<Activity>,
    cap: Arc<Cap>,
}

impl Account {
    pub fn usage(&self) -> NetworkUsage {
        self.activity.usage()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Both spellings, because each is the only one that some programs look at.
fn proxy_variables() -> Result<Environment> {
    let proxy = format!("http://127.0.0.1:{}", Sockets::PROXY_PORT);
    let mut environment = Environment::default();
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        environment.insert(name, proxy.as_str())?;
        environment.insert(name.to_ascii_lowercase(), proxy.as_str())?;
    }
    for name in ["NO_PROXY", "no_proxy"] {
        environment.insert(name, "localhost,127.0.0.1,::1")?;
    }
    // Without it, Node's own fetch does not look at any of them.
    environment.insert("NODE_USE_ENV_PROXY", "1")?;
    Ok(environment)
}
