//! News of a resource: output that grows, files that are written.

use sandbox::service::JobFollower;
use sandbox::{Event, EventKind, GuestPath, JobStream, Owner, Result, SandboxId};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::call::Call;
use crate::uri::{self, Named, OutputStream};

/// Tells when a resource has changed. What it became is read as always.
#[derive(Debug)]
pub struct Watch(Watched);

#[derive(Debug)]
enum Watched {
    Output { follower: JobFollower, stream: JobStream },
    File { events: broadcast::Receiver<Event>, owner: Owner, id: SandboxId, path: GuestPath },
}

/// Fails for what cannot be read. A file need not exist yet, its sandbox must.
pub async fn watch(call: &Call, address: &str) -> Result<Watch> {
    let watched = match uri::parse(address)? {
        Named::Output { id, stream } => {
            let stream = match stream {
                OutputStream::Stdout => JobStream::Stdout,
                OutputStream::Stderr => JobStream::Stderr,
            };
            Watched::Output { follower: call.service.job(&call.owner, &id)?.follow(), stream }
        }
        Named::File { sandbox, path } => {
            let events = call.service.subscribe();
            let sandbox = call.service.find(&call.owner, &sandbox).await?;
            Watched::File { events, owner: call.owner.clone(), id: sandbox.id, path }
        }
    };
    Ok(Watch(watched))
}

impl Watch {
    /// `None` when nothing can change any more. Programs that write by themselves are seen when their run ends.
    pub async fn changed(&mut self) -> Option<()> {
        match &mut self.0 {
            Watched::Output { follower, stream } => loop {
                if follower.next().await?.stream == *stream {
                    return Some(());
                }
            },
            Watched::File { events, owner, id, path } => loop {
                match events.recv().await {
                    Ok(event) if event.id.as_ref() == Some(id) && event.owner == *owner => match event.kind {
                        EventKind::FileWritten { path: written, .. } | EventKind::FileRemoved { path: written }
                            if written == *path =>
                        {
                            return Some(());
                        }
                        EventKind::FileRenamed { from, to } if from == *path || to == *path => return Some(()),
                        // The program may have written it: better one look too many than one too few.
                        EventKind::ExecEnded { .. } | EventKind::Restored { .. } => return Some(()),
                        EventKind::Stopped { .. } => return None,
                        EventKind::Created { .. }
                        | EventKind::CreateRefused { .. }
                        | EventKind::CreateFailed { .. }
                        | EventKind::Adopted
                        | EventKind::ExecStarted { .. }
                        | EventKind::ExecRefused { .. }
                        | EventKind::FileRead { .. }
                        | EventKind::FileWritten { .. }
                        | EventKind::FileRemoved { .. }
                        | EventKind::FileRenamed { .. }
                        | EventKind::Connected { .. }
                        | EventKind::ConnectionRefused { .. }
                        | EventKind::Renewed
                        | EventKind::Saved { .. }
                        | EventKind::Forgotten { .. }
                        | EventKind::Forked { .. }
                        | EventKind::Checkpointed { .. }
                        | EventKind::TreeFailed { .. }
                        | EventKind::StopFailed { .. } => {}
                    },
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => return Some(()),
                    Err(RecvError::Closed) => return None,
                }
            },
        }
    }
}
