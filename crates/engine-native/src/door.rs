//! A sandbox's way out: what is put inside, sockets in its network, and the gateway that serves them.

use egress::{Door, Grant, Pass, Sockets};
use sandbox::{Error, Layer, Network, Result, SandboxId, SandboxSpec};

use crate::client::AskedSockets;
use crate::create::{from_failure, unavailable};
use crate::engine::Shared;
use crate::files;
use crate::image;
use crate::live::{Description, Live};
use crate::plan;
use crate::skeleton::RootLayout;

impl Shared {
    /// Check what a sandbox asks for before anything of it is made. `None`: it has no network.
    fn prepare(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Option<Pass>> {
        let Some(grant) = Grant::asked_by(id, spec)? else { return Ok(None) };
        if !self.walls()?.contains(&Layer::NetworkNamespace) {
            return Err(Error::unsupported(
                "a sandbox without a network namespace of its own cannot be given a network",
            )
            .with_hint("run `sandpen doctor` to see why the layer is missing"));
        }
        self.config.gateway.prepare(grant, None).map(Some)
    }

    /// The same, with what its root adds to the environment.
    pub(crate) fn pass(&self, id: &SandboxId, spec: &SandboxSpec, root: &RootLayout) -> Result<Option<Pass>> {
        let mut pass = self.prepare(id, spec)?;
        if let Some(pass) = &mut pass {
            pass.environment = image::trusted_roots(root)?.overlaid_by(&pass.environment);
        }
        Ok(pass)
    }

    /// Let a sandbox out that nobody uses yet: its files are put inside while its sockets are made.
    pub(crate) async fn let_out(&self, live: &Live, pass: &Pass, sockets: AskedSockets) -> Result<()> {
        let (sockets, ()) = tokio::try_join!(receive(sockets), files::place(live, &pass.files))?;
        let door = self.config.gateway.open(pass, sockets)?;
        // Nobody else knows of this sandbox yet.
        let _ = live.door.set(door);
        Ok(())
    }

    /// Sockets for a sandbox that runs, whoever made it.
    pub(crate) async fn ask_for_sockets(&self, live: &Live) -> Result<AskedSockets> {
        let namespaces = plan::namespaces(&live.description.walls);
        self.launcher()?.listen(live.process(), namespaces).await.map_err(unavailable)
    }

    /// The way out of a sandbox that has one. For one that another process made it is opened by the first who needs it;
    /// what the gateway put inside is there already.
    pub(crate) async fn door<'live>(&self, live: &'live Live) -> Result<Option<&'live Door>> {
        let description = &live.description;
        if description.network == Network::None {
            return Ok(None);
        }
        let opened = live.door.get_or_try_init(|| async {
            let pass = self.config.gateway.prepare(grant(description), description.keepsake.as_deref())?;
            let sockets = receive(self.ask_for_sockets(live).await?).await?;
            match &live.account {
                Some(account) => self.config.gateway.open_again(&pass, sockets, account.clone()),
                None => self.config.gateway.open(&pass, sockets),
            }
        });
        opened.await.map(Some)
    }
}

/// What a sandbox that runs was given.
pub(crate) fn grant(description: &Description) -> Grant {
    Grant {
        id: description.id.clone(),
        owner: description.owner.clone(),
        network: description.network.clone(),
        private_hosts: description.private_hosts.clone(),
        secrets: description.secrets.clone(),
    }
}

async fn receive(sockets: AskedSockets) -> Result<Sockets> {
    match sockets.await {
        Ok(Ok(sockets)) => Ok(sockets),
        Ok(Err(failure)) => Err(from_failure(&failure)),
        Err(_) => Err(Error::unavailable("the engine's launcher has ended").with_hint("start the program again")),
    }
}
