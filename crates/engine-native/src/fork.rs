//! Sandboxes from sandboxes.

use sandbox::{Error, Result, SandboxId, SandboxSpec};

use crate::engine::Shared;

impl Shared {
    pub(crate) async fn fork(&self, _id: &SandboxId, _new: &SandboxId, _spec: &SandboxSpec) -> Result<()> {
        Err(Error::unsupported("this engine cannot branch sandboxes")
            .with_hint("save it, and make sandboxes from that"))
    }
}
