//! The files of a sandbox as the service hands them out: each operation counts as use and is worth an event.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::core::Core;
use super::hold::Hold;
use super::registry::Use;
use crate::engine::{Files, ReadFile, WriteFile};
use crate::error::Result;
use crate::event::EventKind;
use crate::file::{ByteRange, FileStat, ListOptions, Listing, WriteOptions};
use crate::history::Deed;
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;

pub(super) struct HeldFiles {
    core: Arc<Core>,
    owner: Owner,
    id: SandboxId,
    files: Box<dyn Files>,
    recorded: bool,
}

impl HeldFiles {
    pub fn new(core: &Arc<Core>, owner: &Owner, id: &SandboxId) -> Self {
        Self {
            core: Arc::clone(core),
            owner: owner.clone(),
            id: id.clone(),
            files: core.engine.files(id),
            recorded: true,
        }
    }

    /// For files that are ours and do not stay.
    pub fn unrecorded(mut self) -> Self {
        self.recorded = false;
        self
    }

    fn record(&self, deed: Deed) {
        if self.recorded {
            self.core.remember_done(&self.id, deed);
        }
    }

    async fn hold(&self) -> Result<Hold> {
        let hold = Hold::take(&self.core, &self.owner, &self.id, Use::Call)?;
        hold.keep_alive(Duration::ZERO).await?;
        Ok(hold)
    }

    fn emit(&self, kind: EventKind) {
        self.core.emit(&self.owner, &self.id, kind);
    }
}

/// Runs one operation under a hold; a sandbox that turns out to be gone is forgotten.
macro_rules! held {
    ($self:ident, $operation:expr) => {{
        let hold = $self.hold().await?;
        match $operation.await {
            Ok(value) => Ok((value, hold)),
            Err(error) => Err(hold.explain(error).await),
        }
    }};
}

#[async_trait]
impl Files for HeldFiles {
    async fn stat(&self, path: &GuestPath) -> Result<FileStat> {
        held!(self, self.files.stat(path)).map(|(stat, _)| stat)
    }

    async fn list(&self, path: &GuestPath, options: ListOptions) -> Result<Listing> {
        held!(self, self.files.list(path, options)).map(|(listing, _)| listing)
    }

    async fn read(&self, path: &GuestPath, range: ByteRange) -> Result<ReadFile> {
        let (file, hold) = held!(self, self.files.read(path, range))?;
        let stream = HeldRead { stream: file.stream, hold, path: path.clone(), bytes: 0 };
        Ok(ReadFile { stat: file.stat, stream: Box::new(stream) })
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions) -> Result<Box<dyn WriteFile>> {
        let (file, hold) = held!(self, self.files.write(path, options))?;
        let target = Target::File { mode: options.mode };
        Ok(Box::new(HeldWrite { file, hold, path: path.clone(), bytes: 0, recorded: self.recorded, target }))
    }

    async fn make_directory(&self, path: &GuestPath) -> Result<()> {
        held!(self, self.files.make_directory(path))?;
        self.record(Deed::DirectoryMade { path: path.clone() });
        Ok(())
    }

    async fn remove(&self, path: &GuestPath) -> Result<()> {
        held!(self, self.files.remove(path))?;
        self.record(Deed::Removed { path: path.clone() });
        self.emit(EventKind::FileRemoved { path: path.clone() });
        Ok(())
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath) -> Result<()> {
        held!(self, self.files.rename(from, to))?;
        self.record(Deed::Renamed { from: from.clone(), to: to.clone() });
        self.emit(EventKind::FileRenamed { from: from.clone(), to: to.clone() });
        Ok(())
    }

    async fn pack(&self, path: &GuestPath) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
        let (stream, hold) = held!(self, self.files.pack(path))?;
        Ok(Box::new(HeldRead { stream, hold, path: path.clone(), bytes: 0 }))
    }

    async fn unpack(&self, path: &GuestPath) -> Result<Box<dyn WriteFile>> {
        let (file, hold) = held!(self, self.files.unpack(path))?;
        let target = Target::Archive;
        Ok(Box::new(HeldWrite { file, hold, path: path.clone(), bytes: 0, recorded: self.recorded, target }))
    }
}

/// A file that is being read. What was read counts, also when the reader stops early.
struct HeldRead {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    hold: Hold,
    path: GuestPath,
    bytes: u64,
}

impl AsyncRead for HeldRead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.bytes += (buffer.filled().len() - before) as u64;
        polled
    }
}

impl Drop for HeldRead {
    fn drop(&mut self) {
        let event = EventKind::FileRead { path: self.path.clone(), bytes: self.bytes };
        self.hold.core.emit(&self.hold.owner, &self.hold.id, event);
    }
}

struct HeldWrite {
    file: Box<dyn WriteFile>,
    hold: Hold,
    path: GuestPath,
    bytes: u64,
    recorded: bool,
    target: Target,
}

#[derive(Clone, Copy)]
enum Target {
    File { mode: u32 },
    Archive,
}

impl AsyncWrite for HeldWrite {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.file).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            self.bytes += count as u64;
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_shutdown(context)
    }
}

#[async_trait]
impl WriteFile for HeldWrite {
    async fn commit(self: Box<Self>) -> Result<()> {
        let Self { file, hold, path, bytes, recorded, target } = *self;
        if let Err(error) = file.commit().await {
            return Err(hold.explain(error).await);
        }
        if recorded {
            let path = path.clone();
            let deed = match target {
                Target::File { mode } => Deed::FileWritten { path, mode, bytes },
                Target::Archive => Deed::Unpacked { path, bytes },
            };
            hold.core.remember_done(&hold.id, deed);
        }
        hold.core.emit(&hold.owner, &hold.id, EventKind::FileWritten { path, bytes });
        Ok(())
    }
}
