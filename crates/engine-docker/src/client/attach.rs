//! The streams of a container's own process 1, and its end.

use bollard::errors::Error as ClientError;
use bollard::query_parameters::{AttachContainerOptionsBuilder, WaitContainerOptionsBuilder};
use futures_util::StreamExt;
use sandbox::Result;
use tokio_util::io::StreamReader;

use super::{Daemon, Failure, Streams, piece_of_stdout};

impl Daemon {
    /// Before a container is started, so that nothing of what it says is missed. There is no end of the streams to see when
    /// it is never started.
    pub(crate) async fn attach(&self, container: &str) -> Result<Streams> {
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            // Podman would look for keys of a person in what we send.
            .detach_keys("")
            .build();
        let attached = self.ask(self.docker.attach_container(container, Some(options))).await;
        let attached = attached.map_err(|failure| self.told("attach to a container", failure))?;
        let bytes = Box::pin(attached.output.filter_map(|piece| async { piece_of_stdout(piece) }));
        Ok((Box::new(StreamReader::new(bytes)), Box::new(attached.input)))
    }
    /// Wait until a container that ends by itself is gone.
    pub(crate) async fn removed(&self, container: &str) -> Result<()> {
        let options = WaitContainerOptionsBuilder::default().condition("removed").build();
        let mut answers = Box::pin(self.docker.wait_container(container, Some(options)));
        let first = async {
            match answers.next().await {
                Some(answer) => answer.map(drop),
                None => Ok(()),
            }
        };
        match self.ask(first).await {
            // How it ended is of no matter.
            Ok(()) | Err(Failure::Client(ClientError::DockerContainerWaitError { .. })) => Ok(()),
            Err(failure) => self.perhaps::<()>("wait for a container", Err(failure)).map(drop),
        }
    }
}
