//! Programs of the fake that listen: whoever connects hears everything again that it says.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::sandbox::FakeSandbox;
use super::{FakeEngine, process};
use crate::error::Result;
use crate::id::SandboxId;
use crate::port::{Connections, GuestPort, GuestStream, nobody_listens};

#[async_trait]
impl Connections for FakeEngine {
    async fn connect(&self, id: &SandboxId, port: GuestPort) -> Result<GuestStream> {
        let sandbox = self.reach(id).sandbox()?;
        let listener = sandbox.listeners.lock().unwrap().get(&port.number()).cloned();
        let (ours, theirs) = tokio::io::duplex(process::PIPE_BYTES);
        match listener {
            Some(listener) if listener.send(theirs).is_ok() => Ok(GuestStream::new(ours)),
            Some(_) | None => Err(nobody_listens(port)),
        }
    }
}

/// The program `listen`: until it is ended, and with it all its connections. Fails when somebody listens there.
pub(super) fn listen(sandbox: Arc<FakeSandbox>, port: u16) -> Option<impl Future<Output = i32>> {
    let (sender, mut come) = mpsc::unbounded_channel::<DuplexStream>();
    {
        let mut listeners = sandbox.listeners.lock().unwrap();
        if listeners.contains_key(&port) {
            return None;
        }
        listeners.insert(port, sender);
    }
    let listening = Listening { sandbox, port };
    Some(async move {
        let _listening = listening;
        let mut connections = tokio::task::JoinSet::new();
        while let Some(stream) = come.recv().await {
            connections.spawn(echo(stream));
        }
        0
    })
}

async fn echo(mut stream: DuplexStream) {
    let mut bytes = vec![0; process::PIPE_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        if stream.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

struct Listening {
    sandbox: Arc<FakeSandbox>,
    port: u16,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.sandbox.listeners.lock().unwrap().remove(&self.port);
    }
}
