//! The file tree of one sandbox, through a worker inside it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use agent::filework::{self, add_entries, no_worker, refused};
use async_trait::async_trait;
use egress::GuestFile;
use rustix::pipe::PipeFlags;
use sandbox::{
    ByteRange, Error, FileStat, Files, GuestPath, ListOptions, Listing, Overwrite, ReadFile, Result, SandboxId,
    WriteFile, WriteOptions,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::channel::{Channel, Stream};
use crate::engine::Shared;
use crate::live::{Live, not_found};
use crate::wire::{FileFailure, FileOperation, FromFile, PlacedFile, ToFile, ToInit, Work};

/// The most that an ordinary user may ask for; fewer turns between the two sides.
const PIPE_BYTES: usize = 1 << 20;

pub struct NativeFiles {
    pub shared: Arc<Shared>,
    pub id: SandboxId,
}

/// One operation under way.
struct Operation {
    live: Arc<Live>,
    channel: Channel,
    path: GuestPath,
}

impl NativeFiles {
    async fn begin(&self, path: &GuestPath, message: FileOperation, pipe: Option<OwnedFd>) -> Result<Operation> {
        // What is sent before a freeze is done before it.
        let (live, _inside) = self.shared.enter(&self.id).await?;
        let (channel, theirs) = Channel::pair().map_err(no_channel)?;
        let given: Vec<_> = [theirs.as_fd()].into_iter().chain(pipe.iter().map(AsFd::as_fd)).collect();
        let sent = live.channel.send(&ToInit::Work(Work::File(message)), &given).await;
        sent.map_err(|cause| not_found(&self.id).with_cause(cause))?;
        Ok(Operation { live, channel, path: path.clone() })
    }

    async fn do_only(&self, path: &GuestPath, message: FileOperation) -> Result<()> {
        self.begin(path, message, None).await?.done().await
    }
}

/// Write files of ours into a sandbox that nobody uses yet, in one round trip.
pub(crate) async fn place(live: &Live, files: &[GuestFile]) -> Result<()> {
    let Some(first) = files.first() else { return Ok(()) };
    let (channel, theirs) = Channel::pair().map_err(no_channel)?;
    let (read, write) = pipe()?;
    let placed =
        files.iter().map(|file| PlacedFile { path: file.path.as_bytes().to_vec(), bytes: file.contents.len() as u64 });
    let work = Work::File(FileOperation::Place { files: placed.collect() });
    let sent = live.channel.send(&ToInit::Work(work), &[theirs.as_fd(), read.as_fd()]).await;
    sent.map_err(|cause| not_found(live.id()).with_cause(cause))?;
    drop((theirs, read));
    let mut stream = Stream::new(write).map_err(no_channel)?;
    for file in files {
        // A worker that has given up says why.
        if stream.write_all(&file.contents).await.is_err() {
            break;
        }
    }
    drop(stream);
    match channel.receive().await {
        Ok(Some((FromFile::Done, _))) => Ok(()),
        Ok(Some((FromFile::Failed(failure), _))) => Err(refused(failure, &first.path)),
        Ok(Some(_) | None) | Err(_) => Err(Error::internal("the sandbox did not take the gateway's files")),
    }
}

fn no_channel(cause: io::Error) -> Error {
    Error::internal("no channel for the file operation").with_cause(cause)
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|cause| no_channel(cause.into()))?;
    // Works with the usual size too.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES);
    Ok((read, write))
}

impl Operation {
    async fn answer(&self) -> Result<(FromFile, Vec<OwnedFd>)> {
        match self.channel.receive().await {
            Ok(Some((FromFile::Failed(failure), _))) => Err(refused(failure, &self.path)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(_) if self.live.has_ended() => Err(not_found(self.live.id())),
            Ok(None) | Err(_) => Err(no_worker(&self.path)),
        }
    }

    async fn done(&self) -> Result<()> {
        match self.answer().await? {
            (FromFile::Done, _) => Ok(()),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&self, answer: &FromFile) -> Error {
        Error::internal("the sandbox gave an answer that does not fit").with_cause(format!("{}: {answer:?}", self.path))
    }
}

#[async_trait]
impl Files for NativeFiles {
    async fn stat(&self, path: &GuestPath) -> Result<FileStat> {
        let operation = self.begin(path, FileOperation::Stat { path: path.as_bytes().to_vec() }, None).await?;
        match operation.answer().await? {
            (FromFile::Stat(stat), _) => Ok(filework::stat(&stat)),
            (other, _) => Err(operation.unexpected(&other)),
        }
    }

    async fn list(&self, path: &GuestPath, options: ListOptions) -> Result<Listing> {
        let message = FileOperation::List {
            path: path.as_bytes().to_vec(),
            recursive: options.recursive,
            max_entries: options.max_entries as u64,
        };
        let operation = self.begin(path, message, None).await?;
        let mut listing = Listing::default();
        loop {
            match operation.answer().await? {
                (FromFile::Entries(entries), _) => add_entries(&mut listing, options.max_entries, entries)?,
                (FromFile::ListEnd { truncated }, _) => {
                    listing.truncated = truncated;
                    return Ok(listing);
                }
                (other, _) => return Err(operation.unexpected(&other)),
            }
        }
    }

    async fn read(&self, path: &GuestPath, range: ByteRange) -> Result<ReadFile> {
        let operation = self.begin(path, FileOperation::Read { path: path.as_bytes().to_vec() }, None).await?;
        let (stat, file) = match operation.answer().await? {
            (FromFile::Opened(stat), descriptors) => (stat, descriptors.into_iter().next()),
            (other, _) => return Err(operation.unexpected(&other)),
        };
        let file = file.ok_or_else(|| Error::internal("the sandbox opened no file"))?;
        let mut file = tokio::fs::File::from_std(std::fs::File::from(file));
        file.set_max_buf_size(PIPE_BYTES);
        if range.offset > 0 {
            let sought = file.seek(io::SeekFrom::Start(range.offset)).await;
            sought.map_err(|cause| Error::invalid_input(format!("{path} has no such part")).with_cause(cause))?;
        }
        let stream = file.take(range.length.unwrap_or(u64::MAX));
        Ok(ReadFile { stat: filework::stat(&stat), stream: Box::new(stream) })
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions) -> Result<Box<dyn WriteFile>> {
        let message = FileOperation::Write {
            path: path.as_bytes().to_vec(),
            mode: options.mode,
            parents: options.parents,
            replace: options.overwrite == Overwrite::Replace,
        };
        self.incoming(path, message).await
    }

    async fn make_directory(&self, path: &GuestPath) -> Result<()> {
        self.do_only(path, FileOperation::MakeDirectory { path: path.as_bytes().to_vec() }).await
    }

    async fn remove(&self, path: &GuestPath) -> Result<()> {
        self.do_only(path, FileOperation::Remove { path: path.as_bytes().to_vec() }).await
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath) -> Result<()> {
        let message = FileOperation::Rename { from: from.as_bytes().to_vec(), to: to.as_bytes().to_vec() };
        self.do_only(from, message).await
    }

    async fn pack(&self, path: &GuestPath) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
        let (read, write) = pipe()?;
        let message = FileOperation::Pack { path: path.as_bytes().to_vec() };
        let operation = self.begin(path, message, Some(write)).await?;
        operation.done().await?;
        Ok(Box::new(Outgoing { stream: Stream::new(read).map_err(no_channel)?, operation, complete: false }))
    }

    async fn unpack(&self, path: &GuestPath) -> Result<Box<dyn WriteFile>> {
        self.incoming(path, FileOperation::Unpack { path: path.as_bytes().to_vec() }).await
    }
}

impl NativeFiles {
    async fn incoming(&self, path: &GuestPath, message: FileOperation) -> Result<Box<dyn WriteFile>> {
        let (read, write) = pipe()?;
        let operation = self.begin(path, message, Some(read)).await?;
        operation.done().await?;
        Ok(Box::new(Incoming { stream: Stream::new(write).map_err(no_channel)?, operation, failure: None }))
    }
}

/// Bytes into the sandbox. The worker charges them to the sandbox, not to us.
struct Incoming {
    stream: Stream,
    operation: Operation,
    /// Why the worker gave up, once that is known.
    failure: Option<FileFailure>,
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            // The worker has given up, and has said why before it closed the pipe.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                if let Some(FromFile::Failed(failure)) = self.operation.channel.try_receive() {
                    self.failure = Some(failure);
                }
                Poll::Ready(Err(self
                    .failure
                    .map_or(error, |failure| io::Error::other(refused(failure, &self.operation.path)))))
            }
            other => other,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[async_trait]
impl WriteFile for Incoming {
    async fn commit(self: Box<Self>) -> Result<()> {
        let Self { stream, operation, failure } = *self;
        drop(stream);
        if let Some(failure) = failure {
            return Err(refused(failure, &operation.path));
        }
        // A worker that has given up does not take it, and its reason is read below.
        let _ = operation.channel.send(&ToFile::Commit, &[]).await;
        operation.done().await
    }
}

/// A tar stream out of the sandbox. Its end counts only when the worker says that all was sent.
struct Outgoing {
    stream: Stream,
    operation: Operation,
    complete: bool,
}

impl AsyncRead for Outgoing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let at_end = matches!(polled, Poll::Ready(Ok(()))) && buffer.filled().len() == before && buffer.remaining() > 0;
        if !at_end || self.complete {
            return polled;
        }
        match self.operation.channel.try_receive() {
            Some(FromFile::Done) => {
                self.complete = true;
                polled
            }
            Some(FromFile::Failed(failure)) => {
                Poll::Ready(Err(io::Error::other(refused(failure, &self.operation.path))))
            }
            _ => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}
