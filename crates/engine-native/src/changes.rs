//! What a sandbox has changed since some moment: the launcher's child looks, the server only reads what it found.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::PipeFlags;
use sandbox::{Change, ChangeKind, Changes, Checkpoint, Error, FileKind, GuestPath, Result};

use crate::changed::{Changed, How, Kind};
use crate::create::unavailable;
use crate::engine::Shared;
use crate::launcher::LookRequest;
use crate::live::Live;
use crate::pack::blocking;
use crate::plan;

/// Longer than any entry can be.
const LARGEST_ENTRY: u32 = 64 << 10;

impl Shared {
    pub(crate) async fn changes(&self, live: &Live, since: Option<Checkpoint>, most: usize) -> Result<Changes> {
        let history = live.history();
        let Some(root) = &live.description.root else {
            return Err(Error::unsupported("the sandbox was made by a version that did not write down from what")
                .with_hint("create another and copy what is needed to it"));
        };
        let request = LookRequest {
            below: history.layers_at(since)?,
            frozen: history.layers.len(),
            paths: [&root.skeleton].into_iter().chain(&root.lowers).cloned().collect(),
            made: plan::given_directories(&root.work_directory),
            namespaces: plan::namespaces(&live.description.walls),
            most,
        };
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| unavailable(error.into()))?;
        let asked = self.launcher()?.look(request, live.process(), theirs.as_fd()).await.map_err(unavailable)?;
        // What is read ends when the last writer is gone.
        drop(theirs);
        let entries = blocking(move || read(ours, most)).await;
        let launcher_gone =
            || Error::unavailable("the engine's launcher has ended").with_hint("start the program again");
        let truncated = asked.await.map_err(|_| launcher_gone())?.map_err(|failure| {
            let cause = format!("{}: {}", failure.subject, io::Error::from_raw_os_error(failure.errno));
            Error::unavailable("the files of the sandbox could not be compared").with_cause(cause)
        })?;
        Ok(Changes { entries: entries?, truncated })
    }
}

fn read(pipe: OwnedFd, most: usize) -> Result<Vec<Change>> {
    let broken = |cause: io::Error| Error::internal("what was found cannot be read").with_cause(cause);
    let mut pipe = io::BufReader::new(File::from(pipe));
    let mut entries = Vec::new();
    loop {
        let mut length = [0; 4];
        match pipe.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(entries),
            result => result.map_err(broken)?,
        }
        let length = u32::from_le_bytes(length);
        if length > LARGEST_ENTRY || entries.len() >= most {
            return Err(broken(io::ErrorKind::InvalidData.into()));
        }
        let mut bytes = vec![0; length as usize];
        pipe.read_exact(&mut bytes).map_err(broken)?;
        let changed = postcard::from_bytes(&bytes).map_err(|error| broken(io::Error::other(error)))?;
        // Longer than a path may be, and so nothing that anybody could name.
        entries.extend(told(&changed));
    }
}

fn told(changed: &Changed) -> Option<Change> {
    Some(Change {
        path: GuestPath::resolve(&GuestPath::root(), &changed.path).ok()?,
        kind: match changed.how {
            How::Added => ChangeKind::Added,
            How::Modified => ChangeKind::Modified,
            How::Removed => ChangeKind::Removed,
        },
        file: match changed.kind {
            Kind::Regular => FileKind::Regular,
            Kind::Directory => FileKind::Directory,
            Kind::Link => FileKind::Link,
            Kind::Other => FileKind::Other,
        },
        bytes: changed.bytes,
        changed_ns: i128::from(changed.changed_seconds) * 1_000_000_000 + i128::from(changed.changed_nanoseconds),
    })
}
