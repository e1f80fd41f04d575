//! Connections to what programs listen on: the bridge makes them inside, and carries them.

use async_trait::async_trait;
use sandbox::{Connections, GuestPort, GuestStream, Result, SandboxId};

use crate::engine::DockerEngine;

#[async_trait]
impl Connections for DockerEngine {
    async fn connect(&self, id: &SandboxId, port: GuestPort) -> Result<GuestStream> {
        let live = self.shared.live(id).await?;
        let inside = self.shared.inside(&live).await?;
        let dialled = live.connection.dial(port).await;
        drop(inside);
        self.shared.settled(&live, dialled).await.map(GuestStream::new)
    }
}
