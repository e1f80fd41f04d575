//! Whether sandboxes can be given a network here: tried out, because it takes parts of the kernel that may be modules.

use sandbox::{Owner, Result, SandboxSpec};
use serde::Serialize;

use super::Mark;
use crate::config::{Config, EngineChoice};
use crate::output::{ADVICE, DIM};
use crate::wiring;

#[derive(Debug, Serialize)]
pub struct NetworkFinding {
    available: bool,
    detail: String,
    remedy: Option<String>,
}

/// `try_out` is whether a sandbox can be made at all.
pub fn look(config: &Config, try_out: bool) -> NetworkFinding {
    if !try_out {
        return NetworkFinding {
            available: false,
            detail: "not tried, because walls are missing".to_owned(),
            remedy: None,
        };
    }
    match make_one(config) {
        Ok(()) => NetworkFinding {
            available: true,
            detail: "a sandbox can be let out through the gateway, by nf_tables with tproxy".to_owned(),
            remedy: None,
        },
        Err(error) => NetworkFinding {
            available: false,
            detail: error.message().to_owned(),
            remedy: error.hint().map(str::to_owned),
        },
    }
}

/// One that may reach a name which nobody can have, and asks for nothing.
fn make_one(config: &Config) -> Result<()> {
    let mut config = config.clone();
    config.engine = EngineChoice::Native;
    wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let spec = SandboxSpec { network: "doctor.invalid".parse()?, ..SandboxSpec::new(owner.clone()) };
        let sandbox = service.create(&owner, spec).await?;
        service.stop(&owner, &sandbox.id).await
    })
}

/// Sandboxes have no network unless they are given one, so that it cannot be is no fault of the machine.
pub fn render(network: &NetworkFinding) -> String {
    let NetworkFinding { available, detail, remedy } = network;
    let mark = if *available { Mark::Yes } else { Mark::Perhaps };
    let mut text = format!("  {mark} egress  {DIM}{detail}{DIM:#}\n");
    if let Some(remedy) = remedy {
        text += &format!("            {ADVICE}remedy:{ADVICE:#} {remedy}\n");
    }
    text
}
